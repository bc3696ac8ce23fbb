//! History of decisions of the last day.
//!
//! Each decision is one line of JSON that can be read without the configuration. When the newer of two files is full,
//! it replaces the older one. A line that cannot be written is lost.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::decision::{Decision, DecisionKind};
use crate::formula::Inputs;
use crate::time::milliseconds;
use crate::types::GroupId;

/// Maximum age of shown decisions, in seconds.
pub const DAY_S: i64 = 24 * 3600;
/// About 50,000 decisions.
const MAX_FILE_BYTES: u64 = 16 << 20;
/// In bytes. Longer lines are skipped.
const MAX_LINE_BYTES: u64 = 1 << 20;
const VERSION: u32 = 1;

/// A decision in the history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HistoryEntry {
    /// Seconds since 1970.
    pub unix: i64,
    /// Kind of the decision, such as `scale_up`.
    pub kind: String,
    /// Name of the group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// ID of the instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// Task keys of the jobs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<String>,
    /// Human-readable description.
    pub text: String,
    /// Duration of the described step, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_ms: Option<u64>,
    /// Inputs of the scaling formula, if the decision depends on them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inputs: Option<Inputs>,
}

impl HistoryEntry {
    /// Creates an entry. `name` returns the name of a group.
    #[must_use]
    pub fn from_decision(decision: &Decision, name: impl Fn(GroupId) -> String) -> Self {
        let (kind, group, instance) = subject(&decision.kind);
        let (mut keys, mut inputs, mut text) = (Vec::new(), None, decision.kind.to_string());
        match &decision.kind {
            DecisionKind::Leased { key, .. }
            | DecisionKind::Released { key }
            | DecisionKind::JobUsage { key, .. }
            | DecisionKind::Held { key, .. } => {
                keys.push(key.to_string());
            }
            DecisionKind::Environment { name, event, .. } => {
                keys.extend([Some(name), event.key()].into_iter().flatten().map(ToString::to_string));
            }
            DecisionKind::Lost { jobs, .. } => keys.extend(jobs.iter().map(ToString::to_string)),
            DecisionKind::ScaleUp { inputs: used, skipped, .. } => {
                inputs = Some(*used);
                let skipped = skipped.iter().map(|(group, block)| format!("; skipped group {}: {block}", name(*group)));
                text.extend(skipped);
            }
            DecisionKind::Delete { inputs: used, .. } => inputs = Some(*used),
            DecisionKind::ScaleUpBlocked { missing, reasons, inputs: used } => {
                inputs = Some(*used);
                text = format!("cannot scale up by {missing} instance{}", if *missing == 1 { "" } else { "s" });
                let reasons = reasons.iter().map(|(group, block)| format!("; group {}: {block}", name(*group)));
                text.extend(reasons);
            }
            _ => {}
        }
        let after = match &decision.kind {
            DecisionKind::Discovered { after, .. }
            | DecisionKind::Running { after, .. }
            | DecisionKind::Ready { after, .. } => Some(after),
            DecisionKind::Leased { waited, .. } => Some(waited),
            DecisionKind::JobUsage { usage, .. } => Some(&usage.wall),
            DecisionKind::Deleted { lifetime, .. } => Some(lifetime),
            _ => None,
        };
        Self {
            unix: decision.unix,
            kind: kind.to_owned(),
            group: group.map(name),
            instance: instance.map(ToString::to_string),
            keys,
            text,
            after_ms: after.copied().map(milliseconds),
            inputs,
        }
    }
}

fn subject(kind: &DecisionKind) -> (&'static str, Option<GroupId>, Option<&muster_fleeting::model::InstanceId>) {
    match kind {
        DecisionKind::Policy { .. } => ("policy", None, None),
        DecisionKind::ScaleUpBlocked { .. } => ("scale_up_blocked", None, None),
        DecisionKind::Released { .. } => ("released", None, None),
        DecisionKind::JobUsage { .. } => ("job_usage", None, None),
        DecisionKind::Held { group, id, .. } => ("held", Some(*group), Some(id)),
        DecisionKind::ScaleUp { group, .. } => ("scale_up", Some(*group), None),
        DecisionKind::ScaleUpAccepted { group, .. } => ("scale_up_accepted", Some(*group), None),
        DecisionKind::CreationFailed { group, .. } => ("creation_failed", Some(*group), None),
        DecisionKind::ListFailed { group, .. } => ("list_failed", Some(*group), None),
        DecisionKind::Discovered { group, id, .. } => ("discovered", Some(*group), Some(id)),
        DecisionKind::Running { group, id, .. } => ("running", Some(*group), Some(id)),
        DecisionKind::Unmanaged { group, id, .. } => ("unmanaged", Some(*group), Some(id)),
        DecisionKind::Ready { group, id, .. } => ("ready", Some(*group), Some(id)),
        DecisionKind::Leased { group, id, .. } => ("leased", Some(*group), Some(id)),
        DecisionKind::Environment { group, id, event, .. } => (event.kind(), Some(*group), Some(id)),
        DecisionKind::Drain { group, id, .. } => ("drain", Some(*group), Some(id)),
        DecisionKind::Delete { group, id, .. } => ("delete", Some(*group), Some(id)),
        DecisionKind::DeletionStuck { group, id, .. } => ("deletion_stuck", Some(*group), Some(id)),
        DecisionKind::Deleted { group, id, .. } => ("deleted", Some(*group), Some(id)),
        DecisionKind::Lost { group, id, .. } => ("lost", Some(*group), Some(id)),
        DecisionKind::Operator { group, id, .. } => ("operator", Some(*group), id.as_ref()),
        DecisionKind::MissingFromList { group, id } => ("missing_from_list", Some(*group), Some(id)),
    }
}

#[derive(Serialize, Deserialize)]
struct Header {
    taskscaler_history: u32,
}

#[derive(Debug)]
pub(crate) struct History {
    path: PathBuf,
    /// With its length in bytes. `None` before the first write and after a failed one.
    file: Option<(File, u64)>,
    max_file_bytes: u64,
    /// Whether the last write failed, so that further failures are not logged.
    failure_logged: bool,
}

/// The older file first.
pub(crate) fn history_files(ledger: &Path) -> [PathBuf; 2] {
    [ledger.with_extension("history.1"), ledger.with_extension("history")]
}

impl History {
    pub(crate) fn for_ledger(ledger: &Path) -> Self {
        let [_, path] = history_files(ledger);
        Self { path, file: None, max_file_bytes: MAX_FILE_BYTES, failure_logged: false }
    }

    pub(crate) fn add(&mut self, decisions: &[HistoryEntry]) {
        if decisions.is_empty() {
            return;
        }
        let added = self.write(decisions);
        if let Err(error) = &added {
            // Reopening the file terminates a partial line.
            self.file = None;
            if !self.failure_logged {
                let path = self.path.display();
                tracing::warn!(%path, %error, "failed to write the history; decisions are missing from `muster fleet explain`");
            }
        }
        self.failure_logged = added.is_err();
    }

    fn write(&mut self, decisions: &[HistoryEntry]) -> std::io::Result<()> {
        let mut text = Vec::new();
        for decision in decisions {
            serde_json::to_writer(&mut text, decision)?;
            text.push(b'\n');
        }
        if self.file.as_ref().is_some_and(|(_, length)| *length >= self.max_file_bytes) {
            self.file = None;
            std::fs::rename(&self.path, self.path.with_extension("history.1"))?;
        }
        let (file, length) = match &mut self.file {
            Some(open) => open,
            None => self.file.insert(open(&self.path)?),
        };
        file.write_all(&text)?;
        *length += text.len() as u64;
        Ok(())
    }
}

/// Opens the file for appending, and ends its last line if that is incomplete. Also returns its length in bytes.
fn open(path: &Path) -> std::io::Result<(File, u64)> {
    let mut file = OpenOptions::new().create(true).append(true).read(true).mode(0o600).open(path)?;
    let length = file.metadata()?.len();
    let mut prefix = Vec::new();
    if length == 0 {
        prefix = serde_json::to_vec(&Header { taskscaler_history: VERSION })?;
        prefix.push(b'\n');
    } else {
        use std::io::Seek;
        let mut last = [0];
        file.seek(std::io::SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
        if last != *b"\n" {
            prefix.push(b'\n');
        }
    }
    file.write_all(&prefix)?;
    Ok((file, length + prefix.len() as u64))
}

/// Maximum number of attempts to open both files while no file is replaced. Between two replacements, [`MAX_FILE_BYTES`]
/// are written.
const MAX_OPEN_ATTEMPTS: u32 = 3;

/// Opens the existing files of a history, the older one first. A writer may replace files meanwhile.
fn open_files(
    ledger: &Path,
    mut open: impl FnMut(&Path) -> std::io::Result<File>,
) -> std::io::Result<impl Iterator<Item = File>> {
    let [older_path, newer_path] = history_files(ledger);
    let mut open_existing = |path: &Path| match open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    };
    let mut attempt = 1;
    loop {
        let newer = open_existing(&newer_path)?;
        let older = open_existing(&older_path)?;
        let opened = newer.as_ref().map(File::metadata).transpose()?.map(|opened| (opened.dev(), opened.ino()));
        let current = std::fs::metadata(&newer_path).ok().map(|current| (current.dev(), current.ino()));
        // If the newer file was replaced, its entries may be in both open files, and those of its successor in none.
        if opened == current || attempt == MAX_OPEN_ATTEMPTS {
            return Ok(older.into_iter().chain(newer));
        }
        attempt += 1;
    }
}

/// Reads the latest `max` decisions since `unix` that match `is_wanted`, the latest last.
///
/// Unreadable lines are skipped.
///
/// # Errors
/// Reading an existing file failed.
pub fn read(
    ledger: &Path,
    unix: i64,
    max: usize,
    is_wanted: impl Fn(&HistoryEntry) -> bool,
) -> std::io::Result<Vec<HistoryEntry>> {
    let mut found = VecDeque::new();
    for file in open_files(ledger, |path| File::open(path))? {
        let mut reader = BufReader::new(file);
        let mut line = Vec::new();
        loop {
            line.clear();
            if (&mut reader).take(MAX_LINE_BYTES).read_until(b'\n', &mut line)? == 0 {
                break;
            }
            let Ok(entry) = serde_json::from_slice::<HistoryEntry>(&line) else { continue };
            if entry.unix >= unix && is_wanted(&entry) {
                found.push_back(entry);
                if found.len() > max {
                    found.pop_front();
                }
            }
        }
    }
    Ok(found.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::ScaleUpBlock;
    use crate::types::TaskKey;

    fn released(unix: i64, key: &str) -> HistoryEntry {
        HistoryEntry::from_decision(&Decision { unix, kind: DecisionKind::Released { key: TaskKey::new(key) } }, |_| {
            String::new()
        })
    }

    fn keys(ledger: &Path, max: usize) -> Vec<String> {
        read(ledger, 0, max, |_| true).unwrap().into_iter().flat_map(|entry| entry.keys).collect()
    }

    #[test]
    fn entry_contains_group_names() {
        let reasons = vec![(
            GroupId(0),
            ScaleUpBlock::AtMax {
                max: 3,
                unconfirmed: 0,
                deleting: 0,
                stuck: crate::decision::StuckDeletions::default(),
            },
        )];
        let kind =
            DecisionKind::ScaleUpBlocked { missing: 2, reasons, inputs: Inputs { waiting: 2, ..Inputs::default() } };
        let entry = HistoryEntry::from_decision(&Decision { unix: 7, kind }, |_| "main".to_owned());
        assert_eq!(entry.text, "cannot scale up by 2 instances; group main: instance limit of 3 reached");
        assert_eq!((entry.kind.as_str(), entry.inputs.unwrap().waiting), ("scale_up_blocked", 2));
    }

    #[test]
    fn entries_after_a_partial_line_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let ledger = directory.path().join("x.ledger");
        assert!(keys(&ledger, 9).is_empty(), "a missing history is empty");
        History::for_ledger(&ledger).add(&[released(1, "one")]);
        let file = ledger.with_extension("history");
        let complete = std::fs::read(&file).unwrap();
        std::fs::write(&file, [&complete[..], b"{\"unix\":2,\"ki"].concat()).unwrap();
        History::for_ledger(&ledger).add(&[released(3, "three")]);
        assert_eq!(keys(&ledger, 9), ["one", "three"]);
        assert_eq!(read(&ledger, 2, 9, |_| true).unwrap().len(), 1, "only entries since `unix`");
    }

    #[test]
    fn history_size_is_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let ledger = directory.path().join("x.ledger");
        let mut history = History { max_file_bytes: 500, ..History::for_ledger(&ledger) };
        for n in 0..100 {
            history.add(&[released(n, &n.to_string())]);
        }
        let remaining = keys(&ledger, 1000);
        assert!(remaining.len() < 20 && remaining.last().unwrap() == "99", "{remaining:?}");
        assert_eq!(keys(&ledger, 2), ["98", "99"]);
        assert!(std::fs::read_dir(directory.path()).unwrap().count() == 2);
    }

    #[test]
    fn entries_are_read_once_if_the_files_are_replaced_meanwhile() {
        for replaced_before in 0..3 {
            let directory = tempfile::tempdir().unwrap();
            let ledger = directory.path().join("x.ledger");
            let mut history = History { max_file_bytes: 1, ..History::for_ledger(&ledger) };
            history.add(&[released(1, "one")]);
            history.add(&[released(2, "two")]);
            let mut opened = 0;
            let files = open_files(&ledger, |path| {
                if opened == replaced_before {
                    history.add(&[released(3, "three")]);
                }
                opened += 1;
                File::open(path)
            });
            let text: String = files.unwrap().map(|file| std::io::read_to_string(file).unwrap()).collect();
            let keys: Vec<_> = ["one", "two", "three"].into_iter().filter(|key| text.contains(key)).collect();
            let expected = if replaced_before == 2 { ["one", "two"] } else { ["two", "three"] };
            assert_eq!((keys.as_slice(), text.matches("released its").count()), (expected.as_slice(), 2), "{text}");
        }
    }

    #[test]
    fn reads_version_1() {
        let directory = tempfile::tempdir().unwrap();
        let ledger = directory.path().join("x.ledger");
        let sample = "{\"taskscaler_history\":1}\n{\"unix\":5,\"kind\":\"delete\",\"group\":\"g\",\"instance\":\"i\",\"text\":\"t\",\
                    \"inputs\":{\"instances\":1,\"acquired\":0,\"waiting\":0,\"reserved\":0,\"unavailable\":0,\"idle_count\":0,\
                    \"capacity\":1,\"usable\":1,\"scale_factor\":0.0,\"scale_factor_limit\":0}}\n";
        std::fs::write(ledger.with_extension("history"), sample).unwrap();
        let entries = read(&ledger, 0, 9, |_| true).unwrap();
        assert_eq!((entries[0].kind.as_str(), entries[0].inputs.unwrap().instances), ("delete", 1));
    }
}
