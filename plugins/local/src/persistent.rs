//! Persistent instances: each has a record beside its directory, by which the next plugin finds it.
//!
//! ```text
//! <directory>/.lock            held by the one plugin that works here
//! <directory>/<instance>/      its home
//! <directory>/<instance>.json  its record: written (as .new first) before it gets its key, removed after its end
//! ```
//! An instance without a key ends with the plugin, so every running instance has a record. A directory without a record
//! belongs to a start that was interrupted, and the next plugin removes it.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use crate::sys::Process;

/// Extension of the file name of a record.
const RECORD_SUFFIX: &str = "json";
/// Extension of the file name of a record that is being written.
const TEMP_SUFFIX: &str = "new";
/// Number of attempts to get the lock, in case the previous plugin was killed a moment ago.
const LOCK_TRIES: u32 = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(50);
/// Number of attempts to remove a directory: processes that are being killed may still write to it.
const CLEAR_TRIES: u32 = 100;
const CLEAR_PAUSE: Duration = Duration::from_millis(10);

/// Data about an instance, in format version 1.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InstanceRecord {
    version: u32,
    /// Process ID, and IDs of the boot of the system and of the start of the process.
    boot: String,
    pid: u32,
    started_ticks: u64,
    /// Port and fingerprint of its host key. `None` until the instance has reported them.
    pub(crate) listens: Option<(u16, String)>,
    /// Private key for the login.
    pub(crate) key: String,
}

/// Locks a directory for this plugin.
///
/// # Errors
/// Returns an error if another plugin uses the directory.
pub(crate) async fn lock(root: &Path) -> Result<File, String> {
    let path = root.join(".lock");
    let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
    let file = file.map_err(|error| format!("{}: {error}", path.display()))?;
    for _ in 0..LOCK_TRIES {
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            return Ok(file);
        }
        tokio::time::sleep(LOCK_PAUSE).await;
    }
    Err(format!(
        "directory = {}: the directory is used by another plugin; each group needs its own directory",
        root.display()
    ))
}

/// Returns the instances with a record in a directory.
pub(crate) fn recorded(root: &Path) -> io::Result<Vec<(String, InstanceRecord)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root)? {
        let path = entry?.path();
        let Some(name) = path.file_stem().and_then(|name| name.to_str()) else { continue };
        if path.extension().is_none_or(|extension| extension != RECORD_SUFFIX) {
            continue;
        }
        match std::fs::read(&path).and_then(|text| Ok(serde_json::from_slice::<InstanceRecord>(&text)?)) {
            Ok(record) if record.version == 1 => found.push((name.to_owned(), record)),
            Ok(record) => {
                tracing::error!(path = %path.display(), version = record.version, "ignoring record of another version")
            }
            Err(error) => tracing::error!(path = %path.display(), %error, "ignoring unreadable record"),
        }
    }
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(found)
}

/// Returns the names of instances that have files in a directory but no record.
pub(crate) fn unrecorded(root: &Path) -> io::Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(root)? {
        let name = entry?.file_name();
        let Some(name) = name.to_str() else { continue };
        let name = name.strip_suffix(TEMP_SUFFIX).and_then(|name| name.strip_suffix('.')).unwrap_or(name);
        if is_name(name) && !path(root, name).try_exists()? {
            found.insert(name.to_owned());
        }
    }
    Ok(found)
}

/// Returns the name of an instance: its number among those that a plugin process created.
pub(crate) fn name(run: u32, number: u64) -> String {
    format!("local-{run:08x}-{number}")
}

fn is_name(text: &str) -> bool {
    let parts = text.strip_prefix("local-").and_then(|parts| parts.split_once('-'));
    let numbers = parts.and_then(|(run, number)| Some((u32::from_str_radix(run, 16).ok()?, number.parse().ok()?)));
    numbers.is_some_and(|(run, number)| name(run, number) == text)
}

/// Removes the files of an instance that has ended, its record last.
pub(crate) async fn clear(root: &Path, id: &str) {
    let directory = root.join(id);
    for attempt in 1..=CLEAR_TRIES {
        match muster_files::remove_tree(&directory) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty && attempt < CLEAR_TRIES => {
                tokio::time::sleep(CLEAR_PAUSE).await;
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(id, %error, directory = %directory.display(), "failed to remove the instance's directory");
                return;
            }
            _ => break,
        }
    }
    let record = path(root, id);
    for path in [record.with_extension(TEMP_SUFFIX), record] {
        let _ = std::fs::remove_file(path);
    }
}

/// Returns the path of the record of an instance.
pub(crate) fn path(root: &Path, id: &str) -> PathBuf {
    root.join(format!("{id}.{RECORD_SUFFIX}"))
}

impl InstanceRecord {
    /// Creates the record of a process that was just started, with the key for the login.
    pub(crate) fn of(pid: u32, key: String) -> io::Result<Self> {
        let started_ticks = started(pid).ok_or(io::ErrorKind::NotFound)?;
        Ok(Self { version: 1, boot: boot()?, pid, started_ticks, listens: None, key })
    }

    /// Writes the record atomically, readable by this user only.
    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        let beside = path.with_extension(TEMP_SUFFIX);
        let mut file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&beside)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        std::fs::rename(beside, path)
    }

    /// Returns the process, if it still exists.
    pub(crate) fn process(&self) -> io::Result<Option<DetachedProcess>> {
        if self.boot != boot()? {
            return Ok(None);
        }
        let free = DetachedProcess::of(self.pid)?;
        // The process is held open, so its ID cannot be reused.
        Ok(free.filter(|_| started(self.pid) == Some(self.started_ticks)))
    }
}

/// The process of a persistent instance: `unshare`, whose child is the first process of the instance's namespace.
#[derive(Debug)]
pub(crate) struct DetachedProcess {
    pub(crate) pid: u32,
    process: Process,
}

impl DetachedProcess {
    /// Returns `None` if the process does not exist.
    pub(crate) fn of(pid: u32) -> io::Result<Option<Self>> {
        let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(None) };
        Ok(Process::of(number)?.map(|process| Self { pid, process }))
    }

    /// Waits until the process has ended. Cancel-safe.
    pub(crate) async fn ended(&self) {
        self.process.ended().await;
    }

    /// Kills the process and all processes of the instance. `unshare` ends last, so nothing writes to the directory
    /// after this returns.
    pub(crate) async fn end(self) {
        let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.pid)).unwrap_or_default();
        let first = children.split_whitespace().next().and_then(|child| child.parse().ok());
        let own = i32::try_from(self.pid).ok();
        if let Some(pid) = first.or(own).and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
        self.ended().await;
    }
}

/// Returns the ID of the current boot.
fn boot() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// Returns the start time of a process in ticks since boot. `None` if it does not exist.
fn started(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may contain any characters. The start time is the twentieth field after it.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn record_finds_only_its_process() {
        let directory = tempfile::tempdir().unwrap();
        let path = path(directory.path(), "i-1");
        let mut child = tokio::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let record = InstanceRecord::of(child.id().unwrap(), "a key".to_owned()).unwrap();
        record.write(&path).unwrap();
        std::fs::write(directory.path().join("i-2.json"), "no record").unwrap();
        assert_eq!(recorded(directory.path()).unwrap(), [("i-1".to_owned(), record.clone())]);
        let later = InstanceRecord { started_ticks: record.started_ticks + 1, ..record.clone() };
        assert!(later.process().unwrap().is_none(), "the number is another process's by now");
        let free = record.process().unwrap().unwrap();
        free.end().await;
        child.wait().await.unwrap();
        assert!(record.process().unwrap().is_none());
    }

    #[tokio::test]
    async fn directory_is_locked_by_one_plugin() {
        let directory = tempfile::tempdir().unwrap();
        let held = lock(directory.path()).await.unwrap();
        tokio::time::pause();
        let error = lock(directory.path()).await.unwrap_err();
        assert!(error.contains("the directory is used by another plugin"), "{error}");
        drop(held);
        // A process that another test is starting holds a copy of the lock for a moment.
        tokio::time::resume();
        lock(directory.path()).await.unwrap();
    }
}
