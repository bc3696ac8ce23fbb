use std::path::PathBuf;

/// Reason why a snapshot could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The program `git` could not be started.
    #[error("failed to run `git`; install git, or add it to the PATH")]
    NoGit(#[source] std::io::Error),
    /// The directory does not exist or cannot be entered.
    #[error("failed to enter the directory `{}`", path.display())]
    NoDirectory {
        /// The directory.
        path: PathBuf,
        /// Error of the system.
        #[source]
        source: std::io::Error,
    },
    /// The directory is not in a git repository.
    #[error(
        "`{}` is not in a git repository; a pipeline runs on a commit: run `git init`, `git add .` and `git commit`, \
         or name another directory with `--directory`",
        path.display()
    )]
    NotARepository {
        /// The directory.
        path: PathBuf,
    },
    /// The directory is the git directory of a repository, or is in it.
    #[error(
        "`{}` is in the git directory of a repository, which has no files to run; run in the working tree, or name it with `--directory`",
        path.display()
    )]
    InGitDirectory {
        /// The directory.
        path: PathBuf,
    },
    /// The repository has no working tree.
    #[error(
        "`{}` is a bare repository: it has no working tree to run; clone it and run there",
        path.display()
    )]
    Bare {
        /// The repository.
        path: PathBuf,
    },
    /// The current branch has no commits.
    #[error(
        "the current branch of `{}` has no commits yet; a pipeline runs on a commit: run `git commit` first",
        path.display()
    )]
    NoCommits {
        /// The working tree.
        path: PathBuf,
    },
    /// The commit or branch that is checked out changed in each attempt.
    #[error(
        "the commit or branch that is checked out in `{}` changed while its files were read; \
         wait until other git commands, such as a rebase, have ended, and run again",
        path.display()
    )]
    HeadChanged {
        /// The working tree.
        path: PathBuf,
    },
    /// git refuses to read a repository that another user owns.
    #[error(
        "git does not trust the repository `{}` because another user owns it; if you trust it, run: \
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
        "failed to read some files of the working tree, so jobs would not see them; \
         fix the permissions, or ignore the files in `.gitignore`:\n{details}"
    )]
    Unreadable {
        /// Messages of git about these files.
        details: String,
    },
    /// The snapshot could not be written.
    #[error("failed to write the snapshot to `{}`", path.display())]
    Store {
        /// File or directory that could not be written.
        path: PathBuf,
        /// Error of the system, such as a missing permission or a full disk.
        #[source]
        source: std::io::Error,
    },
    /// Another failure of git.
    #[error("`git {command}` failed in `{}`:\n{details}", path.display())]
    Git {
        /// Command that failed.
        command: String,
        /// Directory in which git ran.
        path: PathBuf,
        /// Error message of git.
        details: String,
    },
}
