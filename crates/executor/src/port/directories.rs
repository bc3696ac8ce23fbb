//! Directories of jobs.

use std::path::{Component, Path, PathBuf};

/// Directories of an execution environment, as absolute paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directories {
    /// Directory below which jobs are checked out.
    pub builds: PathBuf,
    /// Directory below which caches are stored.
    pub cache: PathBuf,
    /// Whether jobs of different projects share the environment (`docs/spec/job-execution.md`, section 2.9).
    pub shared: bool,
}

impl Directories {
    /// Replaces the default directories by those that a runner configures.
    ///
    /// `None` keeps the default. A relative path is resolved against the parent of the default directory.
    #[must_use]
    pub fn with(self, builds: Option<&Path>, cache: Option<&Path>) -> Self {
        let configured_or = |default: PathBuf, configured: Option<&Path>| match configured {
            None => default,
            Some(path) => resolve(&default.parent().unwrap_or(Path::new("/")).join(path)),
        };
        Self {
            builds: configured_or(self.builds, builds),
            cache: configured_or(self.cache, cache),
            shared: self.shared,
        }
    }
}

/// Resolves `.` and `..` without reading the file system.
fn resolve(path: &Path) -> PathBuf {
    let mut resolved = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => drop(resolved.pop()),
            other => resolved.push(other),
        }
    }
    resolved
}
