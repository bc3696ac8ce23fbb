//! Instances that outlive the plugin: beside the directory of each is a record, by which the next plugin finds it.
//!
//! ```text
//! <directory>/.lock            held by the one plugin that works here
//! <directory>/<instance>/      its home
//! <directory>/<instance>.json  its record: written (as .new first) before it gets its key, removed after its end
//! ```
//! An instance that has no key yet ends with the plugin, so none runs without a record: what has none was begun by a plugin
//! that was killed, and the next one clears it away.

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

/// What a record's file name ends with.
const EXTENSION: &str = "json";
/// What the name of one that is being written ends with.
const UNWRITTEN: &str = "new";
/// For a plugin that was killed a moment ago to let go of the directory.
const LOCK_TRIES: u32 = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(50);
/// For what ran in an instance to be gone: the system may still be ending it, and it may write until then.
const CLEAR_TRIES: u32 = 100;
const CLEAR_PAUSE: Duration = Duration::from_millis(10);

/// What is to be known of an instance. Version 1.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    version: u32,
    /// Its process, and which start of the system and of the process that is.
    boot: String,
    pid: u32,
    started_ticks: u64,
    /// Where it listens, and how it is told from another one; none: it was not heard of yet.
    pub(crate) listens: Option<(u16, String)>,
    /// The private key that lets in.
    pub(crate) key: String,
}

/// The sole use of a directory.
///
/// # Errors
/// Another plugin works there.
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
    Err(format!("directory = {}: another plugin works there; give each group a directory of its own", root.display()))
}

/// The instances that are recorded in a directory.
pub(crate) fn recorded(root: &Path) -> io::Result<Vec<(String, Record)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root)? {
        let path = entry?.path();
        let Some(name) = path.file_stem().and_then(|name| name.to_str()) else { continue };
        if path.extension().is_none_or(|extension| extension != EXTENSION) {
            continue;
        }
        match std::fs::read(&path).and_then(|text| Ok(serde_json::from_slice::<Record>(&text)?)) {
            Ok(record) if record.version == 1 => found.push((name.to_owned(), record)),
            Ok(record) => {
                tracing::error!(path = %path.display(), version = record.version, "a record of another version is left alone")
            }
            Err(error) => tracing::error!(path = %path.display(), %error, "a record that cannot be read is left alone"),
        }
    }
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(found)
}

/// The names of instances that have something in a directory and no record.
pub(crate) fn unrecorded(root: &Path) -> io::Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(root)? {
        let name = entry?.file_name();
        let Some(name) = name.to_str() else { continue };
        let name = name.strip_suffix(UNWRITTEN).and_then(|name| name.strip_suffix('.')).unwrap_or(name);
        if is_name(name) && !path(root, name).try_exists()? {
            found.insert(name.to_owned());
        }
    }
    Ok(found)
}

/// The name of an instance: its number among those that one start of the plugin made.
pub(crate) fn name(run: u32, number: u64) -> String {
    format!("local-{run:08x}-{number}")
}

fn is_name(text: &str) -> bool {
    let parts = text.strip_prefix("local-").and_then(|parts| parts.split_once('-'));
    let numbers = parts.and_then(|(run, number)| Some((u32::from_str_radix(run, 16).ok()?, number.parse().ok()?)));
    numbers.is_some_and(|(run, number)| name(run, number) == text)
}

/// Removes what is on disk of an instance that has ended: its record last.
pub(crate) async fn clear(root: &Path, id: &str) {
    let directory = root.join(id);
    for attempt in 1..=CLEAR_TRIES {
        match muster_files::remove_tree(&directory) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty && attempt < CLEAR_TRIES => {
                tokio::time::sleep(CLEAR_PAUSE).await;
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(id, %error, directory = %directory.display(), "the instance's directory is left");
                return;
            }
            _ => break,
        }
    }
    let record = path(root, id);
    for path in [record.with_extension(UNWRITTEN), record] {
        let _ = std::fs::remove_file(path);
    }
}

/// Where the record of an instance is.
pub(crate) fn path(root: &Path, id: &str) -> PathBuf {
    root.join(format!("{id}.{EXTENSION}"))
}

impl Record {
    /// Of a process that was started just now, with the key that will let in.
    pub(crate) fn of(pid: u32, key: String) -> io::Result<Self> {
        let started_ticks = started(pid).ok_or(io::ErrorKind::NotFound)?;
        Ok(Self { version: 1, boot: boot()?, pid, started_ticks, listens: None, key })
    }

    /// Whole or not at all; only this user reads it.
    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        let beside = path.with_extension(UNWRITTEN);
        let mut file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&beside)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        std::fs::rename(beside, path)
    }

    /// The process, if it is there still.
    pub(crate) fn process(&self) -> io::Result<Option<Free>> {
        if self.boot != boot()? {
            return Ok(None);
        }
        let free = Free::of(self.pid)?;
        // Held by now, the number cannot become another's.
        Ok(free.filter(|_| started(self.pid) == Some(self.started_ticks)))
    }
}

/// The process of an instance that is not this one's child for ever: `unshare`, whose child is the first one of the
/// instance's namespace.
#[derive(Debug)]
pub(crate) struct Free {
    pub(crate) pid: u32,
    process: Process,
}

impl Free {
    /// None where there is no such process.
    pub(crate) fn of(pid: u32) -> io::Result<Option<Self>> {
        let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(None) };
        Ok(Process::of(number)?.map(|process| Self { pid, process }))
    }

    /// Waits for its end. Cancel-safe.
    pub(crate) async fn ended(&self) {
        self.process.ended().await;
    }

    /// Ends it and all that runs in it. The first process of a namespace is gone after all others of it are, and then
    /// `unshare` ends: nothing writes into the directory any more.
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

/// Which start of the system this is.
fn boot() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// When a process was started, in ticks since the start of the system; none where it is not there.
fn started(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // After the name, which may hold anything, the start is the twentieth field.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_record_finds_its_process_and_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let path = path(directory.path(), "i-1");
        let mut child = tokio::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let record = Record::of(child.id().unwrap(), "a key".to_owned()).unwrap();
        record.write(&path).unwrap();
        std::fs::write(directory.path().join("i-2.json"), "no record").unwrap();
        assert_eq!(recorded(directory.path()).unwrap(), [("i-1".to_owned(), record.clone())]);
        let later = Record { started_ticks: record.started_ticks + 1, ..record.clone() };
        assert!(later.process().unwrap().is_none(), "the number is another process's by now");
        let free = record.process().unwrap().unwrap();
        free.end().await;
        child.wait().await.unwrap();
        assert!(record.process().unwrap().is_none());
    }

    #[tokio::test]
    async fn a_directory_has_one_plugin() {
        let directory = tempfile::tempdir().unwrap();
        let held = lock(directory.path()).await.unwrap();
        tokio::time::pause();
        let error = lock(directory.path()).await.unwrap_err();
        assert!(error.contains("another plugin works there"), "{error}");
        drop(held);
        // A process that another test is just starting has a copy of the lock for a moment of real time.
        tokio::time::resume();
        lock(directory.path()).await.unwrap();
    }
}
