//! Refs and locks of mirrors, in the memory of an agent.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::RwLock;

/// Maximum size of all lists of refs in bytes.
const MAX_BYTES: usize = 16 * 1024 * 1024;
/// Maximum number of lists.
const MAX_LISTS: usize = 1000;

/// Refs at a server, as pairs of hash and name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Refs(pub(crate) Vec<(String, String)>);

impl Refs {
    fn bytes(&self) -> usize {
        self.0.iter().map(|(hash, name)| hash.len() + name.len() + 2 * size_of::<String>()).sum()
    }
}

/// Request of a job, to which a list of refs belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) mirror: PathBuf,
    pub(crate) sha: String,
    /// Refs at the server.
    pub(crate) sources: Vec<String>,
}

/// Refs of mirrors, as the servers reported them, and locks.
///
/// The refs are not on disk, because a job that runs as the agent's user could replace them there.
#[derive(Debug, Default)]
pub(crate) struct Mirrors {
    lists: Mutex<VecDeque<(Key, Arc<Refs>)>>,
    /// Locks of jobs of this agent, by directory. Lock files exclude other agents.
    locks: Mutex<HashMap<PathBuf, Arc<RwLock<()>>>>,
}

impl Mirrors {
    /// Returns the refs of an earlier equal request.
    pub(crate) fn refs(&self, key: &Key) -> Option<Arc<Refs>> {
        self.lists.lock().iter().find(|(known, _)| known == key).map(|(_, refs)| Arc::clone(refs))
    }

    /// Stores refs for later jobs. Drops the oldest lists first.
    pub(crate) fn remember(&self, key: Key, refs: &Arc<Refs>) {
        let mut lists = self.lists.lock();
        lists.retain(|(known, _)| *known != key);
        lists.push_back((key, Arc::clone(refs)));
        let mut bytes: usize = lists.iter().map(|(_, refs)| refs.bytes()).sum();
        while bytes > MAX_BYTES || lists.len() > MAX_LISTS {
            let Some((_, oldest)) = lists.pop_front() else { break };
            bytes -= oldest.bytes();
        }
    }

    pub(crate) fn forget(&self, mirror: &Path) {
        self.lists.lock().retain(|(known, _)| known.mirror != mirror);
    }

    /// Returns the lock for a mirror, without taking it.
    pub(crate) fn lock_of(&self, mirror: &Path) -> Arc<RwLock<()>> {
        let mut locks = self.locks.lock();
        locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        Arc::clone(locks.entry(mirror.to_owned()).or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(sha: &str) -> Key {
        Key { mirror: "/m".into(), sha: sha.to_owned(), sources: vec!["refs/heads/main".to_owned()] }
    }

    #[test]
    fn oldest_lists_are_forgotten_first() {
        let mirrors = Mirrors::default();
        let large = Arc::new(Refs(vec![("a".repeat(40), "b".repeat(MAX_BYTES / 3))]));
        for sha in ["1", "2", "3"] {
            mirrors.remember(key(sha), &large);
        }
        let found = ["1", "2", "3"].map(|sha| mirrors.refs(&key(sha)).is_some());
        assert_eq!(found, [false, true, true]);
        mirrors.forget(Path::new("/m"));
        assert_eq!(mirrors.refs(&key("3")), None);
        assert_eq!(mirrors.refs(&Key { sources: Vec::new(), ..key("3") }), None);
    }
}
