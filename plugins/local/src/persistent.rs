//! Records of persistent instances, by which the next plugin process finds them.
//!
//! ```text
//! <directory>/.lock            locked by the plugin that uses the directory
//! <directory>/<instance>/      home directory of the instance
//! <directory>/<instance>.json  record: written (first as .new) before the instance receives its key, removed after its end
//! ```
//! An instance that has no key yet ends when the plugin ends, so every instance that outlives the plugin has a record.
//! A directory without a record belongs to an interrupted start.

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

/// Extension of a record's file name.
const RECORD_SUFFIX: &str = "json";
/// Extension of a record that is being written.
const TEMP_SUFFIX: &str = "new";
/// Maximum number of attempts to get the lock, which a plugin that is being killed may still hold.
const MAX_LOCK_ATTEMPTS: u32 = 100;
const LOCK_RETRY_DELAY: Duration = Duration::from_millis(50);
/// Maximum number of attempts to remove a directory, to which processes that are being killed may still write.
const MAX_REMOVE_ATTEMPTS: u32 = 100;
const REMOVE_RETRY_DELAY: Duration = Duration::from_millis(10);

/// Record of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InstanceRecord {
    version: u32,
    /// ID of the system's boot. With the process ID and the start time, it identifies the process.
    boot: String,
    pid: u32,
    /// In ticks since boot.
    started_ticks: u64,
    /// Port and host key fingerprint. `None` until the instance has reported them.
    #[serde(rename = "listens")]
    pub(crate) address: Option<(u16, String)>,
    /// Private key for the login.
    pub(crate) key: String,
}

/// Locks the directory `root` for this plugin, and returns the lock file. Closing the file releases the lock.
///
/// # Errors
/// Another plugin uses the directory, or the lock file cannot be opened.
pub(crate) async fn lock(root: &Path) -> Result<File, String> {
    let path = root.join(".lock");
    let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
    let file = file.map_err(|error| format!("failed to open {}: {error}", path.display()))?;
    for _ in 0..MAX_LOCK_ATTEMPTS {
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            return Ok(file);
        }
        tokio::time::sleep(LOCK_RETRY_DELAY).await;
    }
    Err(format!(
        "directory = {}: the directory is used by another plugin; each group needs its own directory",
        root.display()
    ))
}

/// Returns the instances with a record in a directory.
pub(crate) fn read_records(root: &Path) -> io::Result<Vec<(String, InstanceRecord)>> {
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
                tracing::error!(path = %path.display(), version = record.version, "ignored a record with an unsupported version")
            }
            Err(error) => tracing::error!(path = %path.display(), %error, "failed to read a record; ignoring it"),
        }
    }
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(found)
}

/// Returns the names of instances that have files in a directory but no record.
pub(crate) fn instances_without_record(root: &Path) -> io::Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(root)? {
        let name = entry?.file_name();
        let Some(name) = name.to_str() else { continue };
        let name = name.strip_suffix(TEMP_SUFFIX).and_then(|name| name.strip_suffix('.')).unwrap_or(name);
        if is_instance_name(name) && !record_path(root, name).try_exists()? {
            found.insert(name.to_owned());
        }
    }
    Ok(found)
}

/// `run` identifies the plugin process, and `number` counts its instances.
pub(crate) fn instance_name(run: u32, number: u64) -> String {
    format!("local-{run:08x}-{number}")
}

fn is_instance_name(text: &str) -> bool {
    let parts = text.strip_prefix("local-").and_then(|parts| parts.split_once('-'));
    let numbers = parts.and_then(|(run, number)| Some((u32::from_str_radix(run, 16).ok()?, number.parse().ok()?)));
    numbers.is_some_and(|(run, number)| instance_name(run, number) == text)
}

/// Removes the files of an instance that has ended. The record is removed last.
pub(crate) async fn remove_files(root: &Path, id: &str) {
    let directory = root.join(id);
    for attempt in 1..=MAX_REMOVE_ATTEMPTS {
        match muster_files::remove_tree(&directory) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty && attempt < MAX_REMOVE_ATTEMPTS => {
                tokio::time::sleep(REMOVE_RETRY_DELAY).await;
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(id, %error, directory = %directory.display(), "failed to remove the instance's directory");
                return;
            }
            _ => break,
        }
    }
    let record = record_path(root, id);
    for path in [record.with_extension(TEMP_SUFFIX), record] {
        let _ = std::fs::remove_file(path);
    }
}

pub(crate) fn record_path(root: &Path, id: &str) -> PathBuf {
    root.join(format!("{id}.{RECORD_SUFFIX}"))
}

impl InstanceRecord {
    pub(crate) fn new(pid: u32, key: String) -> io::Result<Self> {
        let started_ticks = start_ticks(pid).ok_or(io::ErrorKind::NotFound)?;
        Ok(Self { version: 1, boot: boot_id()?, pid, started_ticks, address: None, key })
    }

    /// Writes the record atomically, readable by this user only.
    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        let temporary = path.with_extension(TEMP_SUFFIX);
        let mut file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        std::fs::rename(temporary, path)
    }

    /// `None` if the process no longer exists.
    pub(crate) fn open_process(&self) -> io::Result<Option<DetachedProcess>> {
        if self.boot != boot_id()? {
            return Ok(None);
        }
        let process = DetachedProcess::open(self.pid)?;
        // The start time is compared after opening: if the ID still belongs to the recorded process then, that process
        // was opened.
        Ok(process.filter(|_| start_ticks(self.pid) == Some(self.started_ticks)))
    }
}

/// Process of a persistent instance: `unshare`, whose child is the first process of the instance's namespace.
#[derive(Debug)]
pub(crate) struct DetachedProcess {
    pub(crate) pid: u32,
    process: Process,
}

impl DetachedProcess {
    /// `None` if the process does not exist.
    pub(crate) fn open(pid: u32) -> io::Result<Option<Self>> {
        let Some(raw_pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(None) };
        Ok(Process::open(raw_pid)?.map(|process| Self { pid, process }))
    }

    /// Cancel-safe.
    pub(crate) async fn wait_exit(&self) {
        self.process.wait_exit().await;
    }

    /// Kills all processes of the instance. `unshare` exits last, so no process writes to the directory afterwards.
    pub(crate) async fn kill(self) {
        let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.pid)).unwrap_or_default();
        let first_child = children.split_whitespace().next().and_then(|child| child.parse().ok());
        let unshare = i32::try_from(self.pid).ok();
        if let Some(pid) = first_child.or(unshare).and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
        self.wait_exit().await;
    }
}

fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// `None` if the process does not exist.
fn start_ticks(pid: u32) -> Option<u64> {
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
        let path = record_path(directory.path(), "i-1");
        let mut child = tokio::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let record = InstanceRecord::new(child.id().unwrap(), "key".to_owned()).unwrap();
        record.write(&path).unwrap();
        std::fs::write(directory.path().join("i-2.json"), "invalid").unwrap();
        assert_eq!(read_records(directory.path()).unwrap(), [("i-1".to_owned(), record.clone())]);
        let reused_id = InstanceRecord { started_ticks: record.started_ticks + 1, ..record.clone() };
        assert!(reused_id.open_process().unwrap().is_none(), "the process ID belongs to another process");
        let process = record.open_process().unwrap().unwrap();
        process.kill().await;
        child.wait().await.unwrap();
        assert!(record.open_process().unwrap().is_none());
    }

    #[tokio::test]
    async fn directory_is_locked_by_one_plugin() {
        let directory = tempfile::tempdir().unwrap();
        let lock_file = lock(directory.path()).await.unwrap();
        tokio::time::pause();
        let error = lock(directory.path()).await.unwrap_err();
        assert!(error.contains("the directory is used by another plugin"), "{error}");
        drop(lock_file);
        // A process that another test is starting holds a copy of the lock for a moment.
        tokio::time::resume();
        lock(directory.path()).await.unwrap();
    }
}
