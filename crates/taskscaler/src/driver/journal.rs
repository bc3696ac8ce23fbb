//! The books in a file: a line per batch of changes, after a line with the version; rewritten when it has grown.
//!
//! A batch is one write. One that was cut by a kill is the last line and has no end: it was not acknowledged, and is left
//! out. The file is not synchronised for each batch: it survives the process, and after a loss of power the last second may
//! be missing, which the provider's list mends (what it shows and the books lack is reported as foreign).

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::store::{Store, StoreError};
use crate::books::{Change, Row, RowKey, VERSION};
use crate::history::{History, Told};

/// The file is rewritten when it has so many changes more than rows.
const SURPLUS_MAX: usize = 10_000;
/// Bytes of the file that are read; more is damage.
const FILE_MAX: u64 = 1 << 30;

#[derive(Serialize, Deserialize)]
struct Header {
    taskscaler_books: u32,
}

/// See the module.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    rows: BTreeMap<RowKey, Row>,
    file: Option<File>,
    changes: usize,
    history: History,
}

impl Journal {
    /// Books in this file, which is made when there is something to keep, with the history beside it. Its directory must
    /// exist.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let history = History::beside(&path);
        Self { path, rows: BTreeMap::new(), file: None, changes: 0, history }
    }

    /// The rows of books that another process may be writing.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn rows(path: &Path) -> Result<BTreeMap<RowKey, Row>, StoreError> {
        let mut journal = Self::new(path);
        journal.read()?;
        Ok(journal.rows)
    }

    /// Removes books that nobody will go on from, with their history. Books that are not there are removed.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn discard(path: &Path) -> Result<(), StoreError> {
        let [older, newer] = crate::history::files(path);
        for path in [older, newer, beside(path), path.to_owned()] {
            match std::fs::remove_file(&path) {
                Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                    return Err(StoreError::File { doing: "remove", path, source });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Books and history are from now on those of another name, in the same directory.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn rename(from: &Path, to: &Path) -> Result<(), StoreError> {
        let (from_history, to_history) = (crate::history::files(from), crate::history::files(to));
        let both = from_history.into_iter().zip(to_history);
        // The books at last: as long as they are there it is done again.
        for (from, to) in both.chain([(from.to_owned(), to.to_owned())]) {
            match std::fs::rename(&from, &to) {
                Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                    return Err(StoreError::File { doing: "rename", path: from, source });
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn error(&self, doing: &'static str) -> impl FnOnce(std::io::Error) -> StoreError + use<> {
        let path = self.path.clone();
        move |source| StoreError::File { doing, path, source }
    }

    fn read(&mut self) -> Result<(), StoreError> {
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(self.error("read")(error)),
        };
        let mut reader = BufReader::new(file.take(FILE_MAX));
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            reader.read_until(b'\n', &mut line).map_err(self.error("read"))?;
            if line.last() != Some(&b'\n') {
                if number == 1 {
                    return Err(StoreError::Cut(self.path.clone()));
                }
                break;
            }
            let format = |source| StoreError::Format { path: self.path.clone(), line: number, source };
            if number == 1 {
                let header: Header = serde_json::from_slice(&line).map_err(format)?;
                if header.taskscaler_books != VERSION {
                    let (path, found) = (self.path.clone(), header.taskscaler_books);
                    return Err(StoreError::Version { path, found, known: VERSION });
                }
            } else {
                let batch: Vec<(RowKey, Option<Row>)> = serde_json::from_slice(&line).map_err(format)?;
                for (key, row) in batch {
                    self.note(key, row);
                }
            }
        }
        Ok(())
    }

    fn note(&mut self, key: RowKey, row: Option<Row>) {
        self.changes += 1;
        match row {
            Some(row) => self.rows.insert(key, row),
            None => self.rows.remove(&key),
        };
    }

    fn write(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        if self.file.is_none() || self.changes > self.rows.len() + SURPLUS_MAX {
            self.rewrite()?;
        }
        let batch: Vec<(&RowKey, &Option<Row>)> = changes.iter().map(|change| (&change.key, &change.row)).collect();
        let mut line = serde_json::to_vec(&batch).map_err(|error| StoreError::Other(error.to_string()))?;
        line.push(b'\n');
        let error = self.error("write");
        let Some(file) = &mut self.file else { return Ok(()) };
        if let Err(cause) = file.write_all(&line) {
            // Half a line must not stand before a whole one: the next attempt begins with a new file.
            self.file = None;
            return Err(error(cause));
        }
        for change in changes {
            self.note(change.key.clone(), change.row.clone());
        }
        Ok(())
    }

    /// All rows in a new file, which takes the place of the old one.
    fn rewrite(&mut self) -> Result<(), StoreError> {
        let beside = beside(&self.path);
        let mut options = OpenOptions::new();
        options.create(true).write(true).truncate(true).mode(0o600);
        let mut file = options.open(&beside).map_err(self.error("write"))?;
        let mut text = serde_json::to_vec(&Header { taskscaler_books: VERSION })
            .map_err(|error| StoreError::Other(error.to_string()))?;
        text.push(b'\n');
        for row in &self.rows {
            serde_json::to_writer(&mut text, &[row]).map_err(|error| StoreError::Other(error.to_string()))?;
            text.push(b'\n');
        }
        file.write_all(&text).and_then(|()| file.sync_all()).map_err(self.error("write"))?;
        std::fs::rename(&beside, &self.path).map_err(self.error("replace"))?;
        self.changes = self.rows.len();
        self.file = Some(file);
        Ok(())
    }
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    path.with_file_name(name)
}

#[async_trait]
impl Store for Journal {
    async fn load(&mut self) -> Result<Vec<(RowKey, Row)>, StoreError> {
        self.read()?;
        Ok(self.rows.iter().map(|(key, row)| (key.clone(), row.clone())).collect())
    }

    async fn apply(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        // Some hundred bytes into the page cache: less than handing them to another thread.
        self.write(changes)
    }

    async fn tell(&mut self, decisions: &[Told]) {
        self.history.add(decisions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(name: &str, used: Option<u32>) -> Change {
        let key = RowKey::Instance { group: "main".to_owned(), id: name.to_owned() };
        let intent = crate::books::Intent::Use;
        Change {
            key,
            row: used.map(|used| Row::Instance {
                slots: vec![None],
                used,
                seen_unix: 1,
                idle_unix: None,
                intent: intent.clone(),
                contexts: Vec::new(),
                was_ready: false,
                environment: None,
            }),
        }
    }

    async fn names(path: &Path) -> Vec<String> {
        let rows = Journal::new(path).load().await.unwrap();
        rows.into_iter().map(|(key, row)| format!("{key:?} {row:?}")).collect()
    }

    #[tokio::test]
    async fn what_was_applied_is_there_and_half_a_batch_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("books");
        let mut journal = Journal::new(&path);
        journal.load().await.unwrap();
        journal.apply(&[change("a", Some(1)), change("b", Some(1))]).await.unwrap();
        journal.apply(&[change("a", Some(2)), change("b", None)]).await.unwrap();
        drop(journal);
        let whole = names(&path).await;
        assert_eq!(whole.len(), 1);
        assert!(whole[0].contains("used: 2"), "{whole:?}");

        let bytes = std::fs::read(&path).unwrap();
        let second = bytes.iter().rposition(|byte| *byte == b'[').unwrap();
        for cut in second..bytes.len() {
            std::fs::write(&path, &bytes[..cut]).unwrap();
            let rows = names(&path).await;
            assert!(rows.len() == 2 || rows.len() == 1, "a batch is whole or not there: {rows:?}");
            let mut journal = Journal::new(&path);
            journal.load().await.unwrap();
            journal.apply(&[change("c", Some(1))]).await.unwrap();
            assert_eq!(names(&path).await.len(), rows.len() + 1, "it goes on behind a cut line");
        }
    }

    #[tokio::test]
    async fn it_does_not_grow_without_bound() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("books");
        let mut journal = Journal::new(&path);
        for used in 0..30_000 {
            journal.apply(&[change("a", Some(used))]).await.unwrap();
        }
        let lines = std::fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines < SURPLUS_MAX + 10, "{lines}");
        assert_eq!(names(&path).await.len(), 1);
    }

    #[tokio::test]
    async fn damage_and_later_versions_are_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("books");
        std::fs::write(&path, "{\"taskscaler_books\":9}\n").unwrap();
        let error = Journal::new(&path).load().await.unwrap_err().to_string();
        assert!(error.contains("has version 9"), "{error}");
        std::fs::write(&path, "{\"taskscaler_books\":1}\nnonsense\n").unwrap();
        let error = Journal::new(&path).load().await.unwrap_err().to_string();
        assert!(error.contains("line 2 cannot be read"), "{error}");
        for cut in ["", "{\"taskscaler_books\":1}"] {
            std::fs::write(&path, cut).unwrap();
            let error = Journal::new(&path).load().await.unwrap_err().to_string();
            assert!(error.contains("is empty, or cut in its first line"), "{error}");
        }
    }

    #[tokio::test]
    async fn only_its_owner_reads_it() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("books");
        Journal::new(&path).apply(&[change("a", Some(1))]).await.unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
