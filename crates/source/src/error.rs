//! Errors of taking a snapshot of a directory.

use std::path::PathBuf;

/// Why there is no snapshot.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The program `git` could not be started.
    #[error("cannot run `git`, which muster reads the repository with; install git, or put it on the PATH")]
    NoGit(#[source] std::io::Error),
    /// The folder does not exist or cannot be entered.
    #[error("cannot enter the directory `{}`", path.display())]
    NoDirectory {
        /// The folder.
        path: PathBuf,
        /// Error of the system.
        #[source]
        source: std::io::Error,
    },
    /// The folder is in no git repository.
    #[error(
        "`{}` is not in a git repository; a pipeline runs on a commit: run `git init`, `git add .` and `git commit`, \
         or name another directory with `--directory`",
        path.display()
    )]
    NotARepository {
        /// The folder.
        path: PathBuf,
    },
    /// The repository has no working tree.
    #[error(
        "`{}` is a bare repository: it has no working tree to run; clone it and run there",
        path.display()
    )]
    Bare {
        /// The folder.
        path: PathBuf,
    },
    /// The branch has no commit yet.
    #[error(
        "the repository `{}` has no commits yet; a pipeline runs on a commit: run `git commit` first",
        path.display()
    )]
    NoCommits {
        /// The folder.
        path: PathBuf,
    },
    /// git refuses to read a repository of another user.
    #[error(
        "git does not trust the repository `{}` because another user owns it; if you do, run: \
         git config --global --add safe.directory '{}'",
        path.display(),
        path.display()
    )]
    Untrusted {
        /// The repository.
        path: PathBuf,
    },
    /// Files of the working tree could not be read.
    #[error(
        "cannot read every file of the working tree, so the jobs would not see what you see; \
         fix the permissions, or ignore the files in `.gitignore`:\n{details}"
    )]
    Unreadable {
        /// What git says of them.
        details: String,
    },
    /// The snapshot could not be written.
    #[error("cannot write the snapshot to `{}`", path.display())]
    Store {
        /// The file or folder.
        path: PathBuf,
        /// Why: no permission, no space.
        #[source]
        source: std::io::Error,
    },
    /// Any other failure of git.
    #[error("`git {command}` failed in `{}`:\n{details}", path.display())]
    Git {
        /// The command.
        command: String,
        /// Directory in which git ran.
        path: PathBuf,
        /// What git says.
        details: String,
    },
}
