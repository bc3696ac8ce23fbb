//! Executables of the agent, one for each platform.
//!
//! Machines of the manager's platform get `muster-agent` or the manager's own executable. Other machines get the file
//! `muster-agent-<os>-<arch>` from the directory of the manager's executable.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use muster_fleeting::model::Platform;
use parking_lot::Mutex;

use super::error::NoAgentError;
use super::executable::{AGENT_ONLY, Executable};

/// Executables of the agent, by platform.
#[derive(Debug)]
pub struct Agents {
    own: Arc<Executable>,
    /// Executables with the stamps that their files had when they were opened.
    others: Mutex<BTreeMap<Platform, (FileStamp, Arc<Executable>)>>,
    /// Directory of the executables for other platforms.
    directory: PathBuf,
}

impl Agents {
    /// Returns the agents: `own` for the manager's platform, and the files in its directory for other platforms.
    #[must_use]
    pub fn new(own: Arc<Executable>) -> Self {
        let directory = own.path().with_file_name("");
        Self { own, others: Mutex::default(), directory }
    }

    /// Returns the executable of the agent for a platform.
    ///
    /// # Errors
    /// [`NoAgentError`] if there is no agent for the platform, or if the executable cannot be read.
    pub fn executable_for(&self, platform: &Platform) -> Result<Arc<Executable>, NoAgentError> {
        if *platform == Platform::this() {
            return Ok(Arc::clone(&self.own));
        }
        if platform.os != "linux" {
            return Err(NoAgentError::NotLinux);
        }
        let path = self.directory.join(format!("{AGENT_ONLY}-{}-{}", platform.os, platform.arch));
        let missing = |source| NoAgentError::Missing { path: path.clone(), version: env!("CARGO_PKG_VERSION"), source };
        let (mut others, stamp) = (self.others.lock(), stamp(&path).map_err(missing)?);
        // A changed file is opened again, because another version may have been installed meanwhile.
        if let Some((_, known)) = others.get(platform).filter(|(opened_stamp, _)| *opened_stamp == stamp) {
            return Ok(Arc::clone(known));
        }
        let opened = Arc::new(Executable::open(&path).map_err(missing)?);
        others.insert(platform.clone(), (stamp, Arc::clone(&opened)));
        Ok(opened)
    }
}

/// Device, inode, size, and times of the last changes. A file that replaces another file has a different stamp.
type FileStamp = (u64, u64, u64, [(i64, i64); 2]);

fn stamp(path: &Path) -> io::Result<FileStamp> {
    let file = std::fs::metadata(path)?;
    let changes = [(file.mtime(), file.mtime_nsec()), (file.ctime(), file.ctime_nsec())];
    Ok((file.dev(), file.ino(), file.len(), changes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_for_another_platform_is_beside_the_executable() {
        let dir = tempfile::tempdir().unwrap();
        let agents = Agents::new(Arc::new(Executable::new(dir.path().join("muster"))));
        let platform = |os: &str, arch: &str| Platform { os: os.to_owned(), arch: arch.to_owned() };
        agents.executable_for(&Platform::this()).unwrap();
        let error = agents.executable_for(&platform("windows", "amd64")).unwrap_err().to_string();
        assert!(error.contains("for Linux only"), "{error}");
        let error = agents.executable_for(&platform("linux", "s390x")).unwrap_err().to_string();
        assert!(error.contains("agent's executable /") && error.contains("install version"), "{error}");

        // The executable can be installed while the manager runs.
        std::fs::write(dir.path().join("muster-agent-linux-s390x"), "an agent").unwrap();
        let s390x = platform("linux", "s390x");
        let first = agents.executable_for(&s390x).unwrap();
        assert!(Arc::ptr_eq(&first, &agents.executable_for(&s390x).unwrap()));
        std::fs::write(dir.path().join("muster-agent-linux-s390x"), "the next version").unwrap();
        assert!(
            !Arc::ptr_eq(&first, &agents.executable_for(&s390x).unwrap()),
            "the replaced file must be opened again"
        );
    }
}
