use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::known_hosts_file::HostKey;
use crate::sys;

/// Known host keys of machines, or their certificates for HTTPS.
///
/// If keys are pinned, only these are accepted. Otherwise, the first connection determines the only accepted key. The
/// exception is [`KnownHosts::any`].
#[derive(Debug, Clone, Default)]
pub struct KnownHosts(Arc<Mutex<Hosts>>);

#[derive(Debug, Default)]
struct Hosts {
    keys: HashMap<String, Keys>,
    /// Whether every key is accepted, and none is learned.
    accepts_any: bool,
    /// Stores the keys of first connections. `None` means that they are only in memory.
    file: Option<HostKeyFile>,
}

#[derive(Debug)]
struct Keys {
    fingerprints: Vec<String>,
    /// Whether the keys were pinned instead of learned at the first connection.
    is_pinned: bool,
    /// Types of the keys, such as `ssh-ed25519`. Empty if unknown, and for learned keys.
    types: Vec<String>,
}

/// A line of the file. A line without fingerprints records that the keys of the machine were removed.
#[derive(Serialize, Deserialize)]
struct Line {
    machine: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    keys: Vec<String>,
}

/// File with the keys of first connections. The last line of each machine counts.
#[derive(Debug)]
struct HostKeyFile {
    path: PathBuf,
    /// `None` means that the file must be rewritten.
    file: Option<File>,
    lines: usize,
}

const MAX_SURPLUS_LINES: usize = 1000;

impl KnownHosts {
    /// Returns a store that accepts every key of every machine, also if the key of a machine changes.
    #[must_use]
    pub fn any() -> Self {
        Self(Arc::new(Mutex::new(Hosts { accepts_any: true, ..Hosts::default() })))
    }

    /// Loads the keys from a file, which also stores the keys of first connections. A missing file is created.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn load(path: &Path) -> std::io::Result<Self> {
        let mut keys = HashMap::new();
        match File::open(path) {
            Ok(file) => {
                for line in BufReader::new(file).split(b'\n') {
                    let Ok(Line { machine, keys: fingerprints }) = serde_json::from_slice(&line?) else { continue };
                    if fingerprints.is_empty() {
                        keys.remove(&machine);
                    } else {
                        keys.insert(machine, Keys { fingerprints, is_pinned: false, types: Vec::new() });
                    }
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let file = Some(HostKeyFile { path: path.to_owned(), file: None, lines: 0 });
        let mut hosts = Hosts { keys, accepts_any: false, file };
        hosts.rewrite()?;
        Ok(Self(Arc::new(Mutex::new(hosts))))
    }

    /// Checks a fingerprint. Returns the known fingerprints if none of them matches. If the machine has no known
    /// fingerprint, accepts this one.
    #[cfg(feature = "winrm")]
    pub(super) fn check(&self, machine: &str, fingerprint: &str) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).check(machine, fingerprint)
    }

    /// Like [`Self::check`], but also stores the fingerprint if the machine has no known fingerprint. The machine must
    /// have proved that it has the key.
    pub(super) fn check_or_learn(&self, machine: &str, fingerprint: &str) -> Option<String> {
        let mut hosts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if hosts.accepts_any || hosts.keys.contains_key(machine) {
            return hosts.check(machine, fingerprint);
        }
        let first = Keys { fingerprints: vec![fingerprint.to_owned()], is_pinned: false, types: Vec::new() };
        hosts.keys.insert(machine.to_owned(), first);
        hosts.store(Line { machine: machine.to_owned(), keys: vec![fingerprint.to_owned()] });
        None
    }

    /// Removes a key that was not pinned. Returns false if no such key exists.
    pub(super) fn forget_first_seen(&self, machine: &str) -> bool {
        let mut hosts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = hosts.keys.get(machine).is_some_and(|keys| !keys.is_pinned);
        if is_first {
            hosts.forget(machine);
        }
        is_first
    }

    /// Pins the fingerprints of a machine, such as `SHA256:...`.
    pub fn pin(&self, machine: &str, fingerprints: &[String]) {
        self.insert_pinned(machine, Keys { fingerprints: fingerprints.to_vec(), is_pinned: true, types: Vec::new() });
    }

    /// Pins the keys of a machine. Connections then prefer keys of these types.
    pub fn pin_keys(&self, machine: &str, keys: &[HostKey]) {
        let fingerprints = keys.iter().map(|key| key.fingerprint.clone()).collect();
        let types = keys.iter().map(|key| key.key_type.clone()).collect();
        self.insert_pinned(machine, Keys { fingerprints, is_pinned: true, types });
    }

    fn insert_pinned(&self, machine: &str, keys: Keys) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).keys.insert(machine.to_owned(), keys);
    }

    /// Returns the types of pinned keys, or nothing if they are unknown.
    pub(super) fn pinned_types(&self, machine: &str) -> Vec<String> {
        let hosts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        hosts.keys.get(machine).map(|keys| keys.types.clone()).unwrap_or_default()
    }

    /// Removes the keys of a deleted machine, because another machine may get its name.
    pub fn forget(&self, machine: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).forget(machine);
    }

    /// Returns the machines with known keys.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).keys.keys().cloned().collect()
    }

    /// Removes the keys of machines for which `exists` returns false.
    pub fn retain(&self, exists: impl Fn(&str) -> bool) {
        let mut hosts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let deleted: Vec<String> = hosts.keys.keys().filter(|id| !exists(id)).cloned().collect();
        deleted.iter().for_each(|id| hosts.forget(id));
    }
}

impl Hosts {
    fn check(&self, machine: &str, fingerprint: &str) -> Option<String> {
        let known = &self.keys.get(machine).filter(|_| !self.accepts_any)?.fingerprints;
        (!known.iter().any(|known| known == fingerprint)).then(|| known.join(" or "))
    }

    fn forget(&mut self, machine: &str) {
        // Pinned keys are not stored, but the file may contain an earlier key of the machine.
        if self.keys.remove(machine).is_some() {
            self.store(Line { machine: machine.to_owned(), keys: Vec::new() });
        }
    }

    /// Writes a line to the file, if there is one. After a failure, the next change rewrites the file.
    fn store(&mut self, line: Line) {
        if self.file.is_none() {
            return;
        }
        if let Err(error) = self.write(&line) {
            let Some(host_file) = &mut self.file else { return };
            tracing::warn!(
                path = %host_file.path.display(),
                %error,
                "failed to store host keys; after a restart, the next key of a machine without a stored key is trusted"
            );
            host_file.file = None;
        }
    }

    fn write(&mut self, line: &Line) -> std::io::Result<()> {
        let known = self.keys.len();
        match &mut self.file {
            Some(HostKeyFile { file: Some(file), lines, .. }) if *lines <= known + MAX_SURPLUS_LINES => {
                let mut text = serde_json::to_vec(line)?;
                text.push(b'\n');
                *lines += 1;
                file.write_all(&text)
            }
            _ => self.rewrite(),
        }
    }

    fn rewrite(&mut self) -> std::io::Result<()> {
        let Some(host_file) = &mut self.file else { return Ok(()) };
        let mut text = Vec::new();
        for (machine, keys) in self.keys.iter().filter(|(_, keys)| !keys.is_pinned) {
            serde_json::to_writer(&mut text, &Line { machine: machine.to_owned(), keys: keys.fingerprints.clone() })?;
            text.push(b'\n');
        }
        let temporary = host_file.path.with_extension("hosts.new");
        let mut file = sys::create_private(&temporary)?;
        file.write_all(&text)?;
        std::fs::rename(&temporary, &host_file.path)?;
        (host_file.lines, host_file.file) = (self.keys.len(), Some(file));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_key_is_trusted_across_restarts() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("one.hosts");
        let [one, two, three] = ["i-1", "i-2", "i-3"];
        let hosts = KnownHosts::load(&path).unwrap();
        assert_eq!(hosts.check_or_learn(one, "SHA256:a"), None);
        assert_eq!(hosts.check_or_learn(two, "SHA256:b"), None);
        hosts.forget(two);
        hosts.pin(three, &["SHA256:c".to_owned()]);
        drop(hosts);
        File::options().append(true).open(&path).unwrap().write_all(b"{\"machine\":").unwrap();
        let hosts = KnownHosts::load(&path).unwrap();
        assert_eq!(hosts.check_or_learn(one, "SHA256:other"), Some("SHA256:a".to_owned()));
        assert_eq!(hosts.check_or_learn(two, "SHA256:other"), None, "a removed key must stay removed");
        assert_eq!(hosts.check_or_learn(three, "SHA256:other"), None, "pinned keys must not be stored");
        hosts.retain(|id| id == two);
        assert_eq!(hosts.check_or_learn(one, "SHA256:new"), None);
        assert_eq!(hosts.check_or_learn(two, "SHA256:new"), Some("SHA256:other".to_owned()));
    }

    #[test]
    fn forgotten_machine_has_no_stored_key_even_if_other_keys_were_pinned() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("one.hosts");
        let hosts = KnownHosts::load(&path).unwrap();
        assert_eq!(hosts.check_or_learn("i-1", "SHA256:a"), None);
        hosts.pin("i-1", &["SHA256:b".to_owned()]);
        hosts.forget("i-1");
        drop(hosts);
        let hosts = KnownHosts::load(&path).unwrap();
        assert_eq!(hosts.check_or_learn("i-1", "SHA256:new"), None, "another machine may have this name now");
    }

    #[test]
    fn file_size_is_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("one.hosts");
        let hosts = KnownHosts::load(&path).unwrap();
        let one = "i-1";
        for _ in 0..MAX_SURPLUS_LINES * 2 {
            assert_eq!(hosts.check_or_learn(one, "SHA256:a"), None);
            hosts.forget(one);
        }
        let lines = std::fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines <= MAX_SURPLUS_LINES + 2, "{lines} lines for one machine");
    }
}
