//! The agents that can be placed: one for each kind of machine.
//!
//! Instances of the manager's own kind get `muster-agent`, or this very executable. Those of another kind get
//! `muster-agent-<os>-<arch>`, where it lies beside the manager's executable; what kind they are of, their own kernel says.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use muster_fleeting::model::{ConnectorConfig, Platform};
use parking_lot::Mutex;

use super::executable::{Executable, SMALL};

/// The executables that are agents.
#[derive(Debug)]
pub(super) struct Agents {
    own: Arc<Executable>,
    /// Those of other kinds that were needed, and what their files were then.
    others: Mutex<BTreeMap<Platform, (Stamp, Arc<Executable>)>>,
    /// Where those of other kinds are.
    beside: PathBuf,
}

impl Agents {
    /// One for machines of the manager's kind, and those beside it for others.
    pub(super) fn new(own: Arc<Executable>) -> Self {
        let beside = own.path().with_file_name("");
        Self { own, others: Mutex::default(), beside }
    }

    /// The agent for machines of this kind.
    ///
    /// # Errors
    /// There is none, with the remedy.
    pub(super) fn fitting(&self, platform: &Platform) -> Result<Arc<Executable>, String> {
        if *platform == Platform::this() {
            return Ok(Arc::clone(&self.own));
        }
        if platform.os != "linux" {
            return Err("the agent is for Linux only: use Linux machines".to_owned());
        }
        let path = self.beside.join(format!("{SMALL}-{}-{}", platform.os, platform.arch));
        let wrong = |error: io::Error| {
            let (path, version) = (path.display(), env!("CARGO_PKG_VERSION"));
            format!("its agent is {path} of version {version}, which cannot be read: {error}; put it there")
        };
        let (mut others, stamp) = (self.others.lock(), stamp(&path).map_err(wrong)?);
        // One of another version may have been put there since.
        if let Some((_, known)) = others.get(platform).filter(|(then, _)| *then == stamp) {
            return Ok(Arc::clone(known));
        }
        let opened = Arc::new(Executable::held(&path).map_err(wrong)?);
        others.insert(platform.clone(), (stamp, Arc::clone(&opened)));
        Ok(opened)
    }

    /// Before an instance is reached: whether there is an agent for what the configuration or the plugin says that it is.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn check(&self, id: &str, connector: &ConnectorConfig) -> Result<(), String> {
        let own = Platform::this();
        let or = |told: &str, own: String| if told.is_empty() { own } else { told.to_owned() };
        let told = Platform { os: or(&connector.os, own.os), arch: or(&connector.arch, own.arch) };
        let fitting = self.fitting(&told).map(drop);
        fitting.map_err(|why| format!("instance {id} is {told}: {why}, or correct os and arch in connector_config"))
    }
}

/// By what a file is told from one that takes its place: device, inode, bytes and the last changes.
type Stamp = (u64, u64, u64, [(i64, i64); 2]);

fn stamp(path: &Path) -> io::Result<Stamp> {
    let file = std::fs::metadata(path)?;
    let changes = [(file.mtime(), file.mtime_nsec()), (file.ctime(), file.ctime_nsec())];
    Ok((file.dev(), file.ino(), file.len(), changes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connector(os: &str, arch: &str) -> ConnectorConfig {
        ConnectorConfig { os: os.to_owned(), arch: arch.to_owned(), ..ConnectorConfig::default() }
    }

    #[test]
    fn a_machine_of_another_kind_is_told_before_anything_is_sent() {
        let place = tempfile::tempdir().unwrap();
        let agents = Agents::new(Arc::new(Executable::new(place.path().join("muster"))));
        agents.check("i-1", &connector("", "")).unwrap();
        agents.check("i-1", &connector("linux", "")).unwrap();
        let error = agents.check("i-1", &connector("windows", "")).unwrap_err();
        assert!(error.contains("instance i-1 is windows/") && error.contains("connector_config"), "{error}");
        let error = agents.check("i-1", &connector("linux", "s390x")).unwrap_err();
        assert!(
            error.contains("instance i-1 is linux/s390x: its agent is") && error.contains("put it there"),
            "{error}"
        );

        // It may be put there while the manager runs.
        std::fs::write(place.path().join("muster-agent-linux-s390x"), "its agent").unwrap();
        agents.check("i-1", &connector("linux", "s390x")).unwrap();
        let s390x = Platform { os: "linux".to_owned(), arch: "s390x".to_owned() };
        let first = agents.fitting(&s390x).unwrap();
        assert!(Arc::ptr_eq(&first, &agents.fitting(&s390x).unwrap()));
        std::fs::write(place.path().join("muster-agent-linux-s390x"), "the next version").unwrap();
        assert!(!Arc::ptr_eq(&first, &agents.fitting(&s390x).unwrap()), "it was replaced");
    }
}
