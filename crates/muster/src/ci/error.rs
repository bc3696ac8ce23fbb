//! What ends `muster ci` early, and the exit statuses.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use muster_coordinator::{CoordinatorError, OpenError};
use muster_source::SnapshotError;

/// The documented exit statuses of `muster ci`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExitStatus {
    /// 0: no job failed that may not fail.
    Passed,
    /// 1: the pipeline failed.
    Failed,
    /// 2: the configuration, the call or this machine is at fault; no pipeline was run to its end.
    BadConfiguration,
    /// 130: cancelled by Ctrl-C or a signal.
    Cancelled,
}

impl From<ExitStatus> for ExitCode {
    fn from(status: ExitStatus) -> Self {
        Self::from(match status {
            ExitStatus::Passed => 0,
            ExitStatus::Failed => 1,
            ExitStatus::BadConfiguration => 2,
            ExitStatus::Cancelled => 130,
        })
    }
}

/// Why a command could not do its work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CiError {
    /// No snapshot of the working tree.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The coordinator could not be opened.
    #[error("cannot open the run")]
    Open(#[from] OpenError),
    /// The coordinator refused.
    #[error("the coordinator failed")]
    Coordinator(#[from] CoordinatorError),
    /// The file that the pipeline is written in is not there.
    #[error(
        "there is no `{}`; write the pipeline there, or name its file with `--file`",
        path.display()
    )]
    NoConfiguration {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// A file cannot be read.
    #[error("cannot read `{}`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The state folder cannot be written.
    #[error(
        "cannot write to the state directory, at `{}`; free some space or mend its permissions, or set MUSTER_STATE_DIR \
         (or XDG_STATE_HOME) to a directory that you may write to",
        path.display()
    )]
    State {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Past runs, caches or files in them could not be deleted; each has been told.
    #[error(
        "{} of the state directory could not be deleted; what belongs to another user (a job with `sudo` or containers makes such \
         files) its owner has to delete, else change its permissions; then clean again",
        if *places == 1 { "one place".to_owned() } else { format!("{places} places") }
    )]
    NotDeleted {
        /// How many.
        places: usize,
    },
    /// The disk of the state folder stayed full.
    #[error(
        "the run was ended, because the file system at `{}` is full: {problem}. Free some space there (`muster ci clean` deletes past \
         runs), or set MUSTER_STATE_DIR to a directory on another one; what was logged so far is kept",
        mount.display()
    )]
    NoStorage {
        /// Where the file system is mounted.
        mount: PathBuf,
        /// Who noticed it, and how.
        problem: String,
    },
    /// The configuration has errors, which have been shown.
    #[error("the configuration has {} error{}; no pipeline was created", errors, if *errors == 1 { "" } else { "s" })]
    Configuration {
        /// How many.
        errors: usize,
    },
    /// The call does not make sense; the text says what to do.
    #[error("{0}")]
    Usage(String),
    /// A named job would wait for manual jobs that are not named.
    #[error(
        "`{}` would wait for the manual {} `{}`, which {} only when named; `muster ci run {} --needs` runs all of them",
        named.join("`, `"), if manual.len() == 1 { "job" } else { "jobs" }, manual.join("`, `"),
        if manual.len() == 1 { "runs" } else { "run" }, in_shell(manual.iter().chain(named))
    )]
    NeedsManual {
        /// The jobs that were named.
        named: Vec<String>,
        /// The manual jobs.
        manual: Vec<String>,
    },
    /// Standard output could not be written.
    #[error(
        "what standard output got is not complete, because it cannot be written; free some space there, or send the output elsewhere, \
         and repeat the command"
    )]
    Output(#[source] &'static std::io::Error),
    /// Something of this machine failed; the text says what.
    #[error("{what}")]
    System {
        /// What was tried.
        what: String,
        /// Why it failed.
        #[source]
        source: std::io::Error,
    },
}

impl CiError {
    /// What the process ends with.
    pub(crate) fn exit_status(&self) -> ExitStatus {
        match self {
            Self::NeedsManual { .. } => ExitStatus::Failed,
            _ => ExitStatus::BadConfiguration,
        }
    }

    /// The file system of `folder` is full.
    pub(crate) fn no_storage(folder: &Path, problem: impl Into<String>) -> Self {
        Self::NoStorage { mount: mount_point(folder), problem: problem.into() }
    }

    /// `cannot <what>`, with the reason.
    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::System { what, source }
    }
}

/// Names as words of a shell's command line.
fn in_shell<'a>(names: impl Iterator<Item = &'a String>) -> String {
    let is_plain = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || "_-./:".contains(c));
    let word = |name: &String| if is_plain(name) { name.clone() } else { format!("'{}'", name.replace('\'', "'\\''")) };
    names.map(word).collect::<Vec<_>>().join(" ")
}

/// Where the file system of a folder is mounted; the folder itself where that cannot be found out.
fn mount_point(folder: &Path) -> PathBuf {
    let device = |path: &Path| path.metadata().ok().map(|meta| meta.dev());
    let own = device(folder);
    let above = folder.ancestors().take_while(|path| own.is_some() && device(path) == own);
    above.last().unwrap_or(folder).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_is_named_by_where_it_is_mounted() {
        assert_eq!(mount_point(Path::new("/proc/self")), Path::new("/proc"));
        assert_eq!(mount_point(Path::new("/not/there")), Path::new("/not/there"));
    }
}
