//! The ledger as a file: a line with the version, then one line of JSON for each batch of changes.
//!
//! An incomplete last line is ignored, because its batch was not acknowledged. The file is not synced after each batch,
//! so a power failure can lose the last batches. Instances that only these batches contain are then reported as
//! unmanaged.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::store::{LedgerError, LedgerStore};
use crate::history::{History, HistoryEntry};
use crate::ledger::{Change, Row, RowKey, VERSION};

/// The file is rewritten when it has this many more changes than the ledger has rows.
const MAX_SURPLUS_CHANGES: usize = 10_000;
/// A larger file is rejected as damaged, because rewrites keep a ledger far smaller.
const MAX_FILE_BYTES: u64 = 1 << 30;

#[derive(Serialize, Deserialize)]
struct Header {
    taskscaler_ledger: u32,
}

/// Ledger in a file. Only one process may write it at a time.
#[derive(Debug)]
pub struct FileLedger {
    path: PathBuf,
    rows: BTreeMap<RowKey, Row>,
    /// `None` before the first write and after a failed one.
    file: Option<File>,
    /// Number of changes in the file.
    changes: usize,
    history: History,
}

impl FileLedger {
    /// Creates a ledger at `path`, with the history next to it.
    ///
    /// The first change creates the file. Its directory must exist.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let history = History::for_ledger(&path);
        Self { path, rows: BTreeMap::new(), file: None, changes: 0, history }
    }

    /// Reads the rows. Another process may be writing the ledger.
    ///
    /// # Errors
    /// Returns [`LedgerError`] if the file cannot be read or is damaged.
    pub fn rows(path: &Path) -> Result<BTreeMap<RowKey, Row>, LedgerError> {
        let mut ledger = Self::new(path);
        ledger.read()?;
        Ok(ledger.rows)
    }

    /// Deletes a ledger and its history. Does nothing if the files do not exist.
    ///
    /// # Errors
    /// Returns [`LedgerError::File`] if a file cannot be deleted.
    pub fn discard(path: &Path) -> Result<(), LedgerError> {
        let [older, newer] = crate::history::history_files(path);
        for path in [older, newer, temporary_path(path), path.to_owned()] {
            match std::fs::remove_file(&path) {
                Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                    return Err(LedgerError::File { doing: "remove", path, source });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Renames a ledger and its history within a directory. Does nothing if the files do not exist.
    ///
    /// # Errors
    /// Returns [`LedgerError::File`] if a file cannot be renamed.
    pub fn rename(from: &Path, to: &Path) -> Result<(), LedgerError> {
        let (from_history, to_history) = (crate::history::history_files(from), crate::history::history_files(to));
        let histories = from_history.into_iter().zip(to_history);
        // The ledger is renamed last. If the caller is killed before that, it finds the old name after its restart and
        // repeats the call.
        for (from, to) in histories.chain([(from.to_owned(), to.to_owned())]) {
            match std::fs::rename(&from, &to) {
                Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                    return Err(LedgerError::File { doing: "rename", path: from, source });
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn error(&self, doing: &'static str) -> impl FnOnce(std::io::Error) -> LedgerError + use<> {
        let path = self.path.clone();
        move |source| LedgerError::File { doing, path, source }
    }

    fn read(&mut self) -> Result<(), LedgerError> {
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(self.error("read")(error)),
        };
        // Reading only the beginning would make the instances in the rest unmanaged.
        let size = file.metadata().map_err(self.error("read"))?.len();
        if size > MAX_FILE_BYTES {
            return Err(LedgerError::TooLarge { path: self.path.clone(), size });
        }
        let mut reader = BufReader::new(file.take(size));
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            reader.read_until(b'\n', &mut line).map_err(self.error("read"))?;
            if line.last() != Some(&b'\n') {
                if number == 1 {
                    return Err(LedgerError::Truncated(self.path.clone()));
                }
                break;
            }
            let format = |source| LedgerError::Format { path: self.path.clone(), line: number, source };
            if number == 1 {
                let header: Header = serde_json::from_slice(&line).map_err(format)?;
                if header.taskscaler_ledger != VERSION {
                    let (path, found) = (self.path.clone(), header.taskscaler_ledger);
                    return Err(LedgerError::Version { path, found, supported: VERSION });
                }
            } else {
                let batch: Vec<(RowKey, Option<Row>)> = serde_json::from_slice(&line).map_err(format)?;
                for (key, row) in batch {
                    self.apply_to_rows(key, row);
                }
            }
        }
        Ok(())
    }

    fn apply_to_rows(&mut self, key: RowKey, row: Option<Row>) {
        self.changes += 1;
        match row {
            Some(row) => self.rows.insert(key, row),
            None => self.rows.remove(&key),
        };
    }

    fn write(&mut self, changes: &[Change]) -> Result<(), LedgerError> {
        if self.file.is_none() || self.changes > self.rows.len() + MAX_SURPLUS_CHANGES {
            self.rewrite()?;
        }
        let batch: Vec<(&RowKey, &Option<Row>)> = changes.iter().map(|change| (&change.key, &change.row)).collect();
        let mut line = serde_json::to_vec(&batch).map_err(LedgerError::Encode)?;
        line.push(b'\n');
        let error = self.error("write");
        let Some(file) = &mut self.file else { return Ok(()) };
        if let Err(cause) = file.write_all(&line) {
            // The file may end in a partial line, which no complete line may follow. The next attempt writes a new
            // file.
            self.file = None;
            return Err(error(cause));
        }
        for change in changes {
            self.apply_to_rows(change.key.clone(), change.row.clone());
        }
        Ok(())
    }

    fn rewrite(&mut self) -> Result<(), LedgerError> {
        let temporary = temporary_path(&self.path);
        let mut options = OpenOptions::new();
        options.create(true).write(true).truncate(true).mode(0o600);
        let mut file = options.open(&temporary).map_err(self.error("write"))?;
        let mut text = serde_json::to_vec(&Header { taskscaler_ledger: VERSION }).map_err(LedgerError::Encode)?;
        text.push(b'\n');
        for row in &self.rows {
            serde_json::to_writer(&mut text, &[row]).map_err(LedgerError::Encode)?;
            text.push(b'\n');
        }
        file.write_all(&text).and_then(|()| file.sync_all()).map_err(self.error("write"))?;
        std::fs::rename(&temporary, &self.path).map_err(self.error("replace"))?;
        self.changes = self.rows.len();
        self.file = Some(file);
        Ok(())
    }
}

fn temporary_path(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    path.with_file_name(name)
}

#[async_trait]
impl LedgerStore for FileLedger {
    async fn load(&mut self) -> Result<Vec<(RowKey, Row)>, LedgerError> {
        self.read()?;
        Ok(self.rows.iter().map(|(key, row)| (key.clone(), row.clone())).collect())
    }

    async fn apply(&mut self, changes: &[Change]) -> Result<(), LedgerError> {
        self.write(changes)
    }

    async fn append_history(&mut self, decisions: &[HistoryEntry]) {
        self.history.add(decisions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(name: &str, job_count: Option<u32>) -> Change {
        let key = RowKey::Instance { group: "main".to_owned(), id: name.to_owned() };
        let intent = crate::ledger::Intent::Serve;
        Change {
            key,
            row: job_count.map(|job_count| Row::Instance {
                slots: vec![None],
                job_count,
                first_seen_at: 1,
                idle_since: None,
                intent: intent.clone(),
                contexts: Vec::new(),
                was_ready: false,
                suspended_environment: None,
            }),
        }
    }

    async fn rows_as_text(path: &Path) -> Vec<String> {
        let rows = FileLedger::new(path).load().await.unwrap();
        rows.into_iter().map(|(key, row)| format!("{key:?} {row:?}")).collect()
    }

    #[tokio::test]
    async fn applied_changes_survive_and_partial_batch_is_ignored() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger");
        let mut ledger = FileLedger::new(&path);
        ledger.load().await.unwrap();
        ledger.apply(&[change("a", Some(1)), change("b", Some(1))]).await.unwrap();
        ledger.apply(&[change("a", Some(2)), change("b", None)]).await.unwrap();
        drop(ledger);
        let rows = rows_as_text(&path).await;
        assert_eq!(rows.len(), 1);
        assert!(rows[0].contains("job_count: 2"), "{rows:?}");

        let bytes = std::fs::read(&path).unwrap();
        let inside_last_batch = bytes.iter().rposition(|byte| *byte == b'[').unwrap();
        for length in inside_last_batch..bytes.len() {
            std::fs::write(&path, &bytes[..length]).unwrap();
            let rows = rows_as_text(&path).await;
            assert!(rows.len() == 2 || rows.len() == 1, "a batch must be applied completely or not at all: {rows:?}");
            let mut ledger = FileLedger::new(&path);
            ledger.load().await.unwrap();
            ledger.apply(&[change("c", Some(1))]).await.unwrap();
            assert_eq!(rows_as_text(&path).await.len(), rows.len() + 1, "a change after a truncated line must be read");
        }
    }

    #[tokio::test]
    async fn file_size_is_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger");
        let mut ledger = FileLedger::new(&path);
        for job_count in 0..30_000 {
            ledger.apply(&[change("a", Some(job_count))]).await.unwrap();
        }
        let lines = std::fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines < MAX_SURPLUS_CHANGES + 10, "{lines}");
        assert_eq!(rows_as_text(&path).await.len(), 1);
    }

    #[tokio::test]
    async fn damaged_file_and_later_version_are_errors() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger");
        std::fs::write(&path, "{\"taskscaler_ledger\":9}\n").unwrap();
        let error = FileLedger::new(&path).load().await.unwrap_err().to_string();
        assert!(error.contains("has version 9"), "{error}");
        std::fs::write(&path, "{\"taskscaler_ledger\":1}\nnonsense\n").unwrap();
        let error = FileLedger::new(&path).load().await.unwrap_err().to_string();
        assert!(error.contains("at line 2"), "{error}");
        for text in ["", "{\"taskscaler_ledger\":1}"] {
            std::fs::write(&path, text).unwrap();
            let error = FileLedger::new(&path).load().await.unwrap_err().to_string();
            assert!(error.contains("is empty or truncated in its first line"), "{error}");
        }
    }

    #[tokio::test]
    async fn file_that_is_too_large_is_an_error_and_not_read_in_part() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger");
        FileLedger::new(&path).apply(&[change("a", Some(1))]).await.unwrap();
        // The new end of the file uses no disk blocks.
        File::options().write(true).open(&path).unwrap().set_len(MAX_FILE_BYTES + 1).unwrap();
        let error = FileLedger::new(&path).load().await.unwrap_err().to_string();
        assert!(error.contains("has 1073741825 bytes, which is more than a ledger can have"), "{error}");
    }

    #[tokio::test]
    async fn ledger_file_is_readable_by_owner_only() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ledger");
        FileLedger::new(&path).apply(&[change("a", Some(1))]).await.unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
