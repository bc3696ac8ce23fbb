//! Directories of jobs.

use std::path::{Component, Path, PathBuf};

/// The directories of an environment. Absolute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directories {
    /// Below it jobs are checked out.
    pub builds: PathBuf,
    /// Below it caches are kept.
    pub cache: PathBuf,
    /// Jobs of different projects share the environment: `CI_SHARED_ENVIRONMENT`, and the layout of job-execution 2.9.
    pub shared: bool,
}

impl Directories {
    /// With those that a runner's configuration names instead. A relative one starts where the environment's own are.
    #[must_use]
    pub fn with(self, builds: Option<&Path>, cache: Option<&Path>) -> Self {
        let instead = |own: PathBuf, named: Option<&Path>| match named {
            None => own,
            Some(named) => resolved(&own.parent().unwrap_or(Path::new("/")).join(named)),
        };
        Self { builds: instead(self.builds, builds), cache: instead(self.cache, cache), shared: self.shared }
    }
}

/// The path without `.` and `..`.
fn resolved(path: &Path) -> PathBuf {
    let mut whole = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => drop(whole.pop()),
            other => whole.push(other),
        }
    }
    whole
}
