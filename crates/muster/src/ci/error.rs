//! Errors that end a command of `muster ci`, and its exit statuses.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use muster_coordinator::{CoordinatorError, OpenError};
use muster_source::SnapshotError;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExitStatus {
    /// 0: no job failed, except jobs that are allowed to.
    Passed,
    /// 1: the pipeline failed, or a job named on the command line waits for manual jobs that are not named there.
    Failed,
    /// 2: the configuration, the arguments or this machine have a problem.
    BadConfiguration,
    /// 130: canceled by Ctrl-C or a signal.
    Canceled,
}

impl From<ExitStatus> for ExitCode {
    fn from(status: ExitStatus) -> Self {
        Self::from(match status {
            ExitStatus::Passed => 0,
            ExitStatus::Failed => 1,
            ExitStatus::BadConfiguration => 2,
            ExitStatus::Canceled => 130,
        })
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum CiError {
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    #[error("failed to open the run")]
    Open(#[from] OpenError),
    #[error("request to the coordinator failed")]
    Coordinator(#[from] CoordinatorError),
    #[error(
            "`{}` does not exist; create it, or select another file with `--file`",
        path.display()
    )]
    NoConfiguration { path: PathBuf },
    #[error("failed to read `{}`", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error(
            "failed to write to the state directory at `{}`; free some space or fix its permissions, or set MUSTER_STATE_DIR \
             (or XDG_STATE_HOME) to a writable directory",
        path.display()
    )]
    State {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The problems have been reported.
    #[error(
            "failed to delete {} of the state directory; delete the files of other users (such as files that jobs created with `sudo` or \
             in containers) as these users, then clean again",
            if *directories == 1 { "one entry".to_owned() } else { format!("{directories} entries") }
    )]
    NotDeleted { directories: usize },
    #[error(
            "run stopped because the file system at `{}` is full: {problem}; free some space there (`muster ci clean` deletes past \
             runs), or set MUSTER_STATE_DIR to a directory on another file system. Logs so far are kept",
        mount.display()
    )]
    NoStorage {
        mount: PathBuf,
        /// Message of the process that could not write.
        problem: String,
    },
    /// The pipeline's configuration has errors, which have been printed.
    #[error("the configuration has {} error{}; no pipeline was created", errors, if *errors == 1 { "" } else { "s" })]
    Configuration { errors: usize },
    /// The user's `ci.toml` is invalid.
    #[error("invalid configuration `{}`:\n  {}", path.display(), problems.join("\n  "))]
    UserConfig {
        path: PathBuf,
        /// Each with its line.
        problems: Vec<String>,
    },
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    Failed(String),
    #[error(
            "job `{}` waits for the manual {} `{}`, which {} only if named; use `muster ci run {} --needs` to run all of them",
        named.join("`, `"), if manual.len() == 1 { "job" } else { "jobs" }, manual.join("`, `"),
        if manual.len() == 1 { "runs" } else { "run" }, shell_words(manual.iter().chain(named))
    )]
    NeedsManual { named: Vec<String>, manual: Vec<String> },
    #[error(
        "failed to write to standard output, so the output is incomplete; free some disk space or redirect the output, and run \
             the command again"
    )]
    Output(#[source] &'static std::io::Error),
    #[error("failed to {action}")]
    System {
        /// Such as `start the shell`.
        action: String,
        #[source]
        source: std::io::Error,
    },
}

impl CiError {
    pub(crate) fn exit_status(&self) -> ExitStatus {
        match self {
            Self::NeedsManual { .. } => ExitStatus::Failed,
            _ => ExitStatus::BadConfiguration,
        }
    }

    pub(crate) fn no_storage(directory: &Path, problem: impl Into<String>) -> Self {
        Self::NoStorage { mount: mount_point(directory), problem: problem.into() }
    }

    pub(crate) fn system(action: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let action = action.into();
        move |source| Self::System { action, source }
    }
}

/// Joins names as words of a shell's command line, and quotes them as needed.
pub(super) fn shell_words<'a>(names: impl Iterator<Item = &'a String>) -> String {
    let is_plain = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || "_-./:".contains(c));
    let word = |name: &String| if is_plain(name) { name.clone() } else { format!("'{}'", name.replace('\'', "'\\''")) };
    names.map(word).collect::<Vec<_>>().join(" ")
}

/// Returns the mount point of the file system that contains a directory, or the directory itself if that is unknown.
fn mount_point(directory: &Path) -> PathBuf {
    let device = |path: &Path| path.metadata().ok().map(|meta| meta.dev());
    let file_system = device(directory);
    let same_file_system =
        directory.ancestors().take_while(|path| file_system.is_some() && device(path) == file_system);
    same_file_system.last().unwrap_or(directory).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_system_is_named_by_its_mount_point() {
        assert_eq!(mount_point(Path::new("/proc/self")), Path::new("/proc"));
        assert_eq!(mount_point(Path::new("/missing/directory")), Path::new("/missing/directory"));
    }
}
