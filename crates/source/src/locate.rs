use std::path::{Path, PathBuf};

use crate::SnapshotError;
use crate::git::{Git, path_from_bytes};

/// Each argument after `rev-parse` prints one line, except `--path-format` and `--symbolic-full-name`, which change how
/// later arguments are printed.
const LOCATE: [&str; 11] = [
    "rev-parse",
    "--is-bare-repository",
    "--absolute-git-dir",
    "--path-format=absolute",
    "--git-common-dir",
    "--show-object-format",
    "--show-toplevel",
    "HEAD",
    "HEAD^{tree}",
    "--symbolic-full-name",
    "HEAD",
];

#[derive(PartialEq, Eq)]
pub(super) struct FoundRepository {
    pub(super) git_dir: PathBuf,
    /// Git directory that all worktrees of the repository share.
    pub(super) common_dir: PathBuf,
    /// `sha1` or `sha256`.
    pub(super) object_format: String,
    pub(super) worktree: PathBuf,
    pub(super) head: String,
    pub(super) tree: String,
    /// Current branch. `None` for a detached `HEAD`.
    pub(super) branch: Option<String>,
}

/// Finds the repository of `directory`. `git rev-parse` stops at the first argument that fails, so the number of lines
/// shows what is missing.
pub(super) fn locate(directory: &Path) -> Result<FoundRepository, SnapshotError> {
    let git = Git::discover(directory);
    let output = git.output(&LOCATE)?;
    let lines: Vec<&[u8]> = output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).collect();
    let text = |bytes: &&[u8]| String::from_utf8_lossy(bytes).into_owned();
    let path = directory.to_owned();
    match lines.as_slice() {
        [_, git_dir, common_dir, format, worktree, head, tree, symbolic] if output.status.success() => {
            Ok(FoundRepository {
                git_dir: path_from_bytes(git_dir),
                common_dir: path_from_bytes(common_dir),
                object_format: text(format),
                worktree: path_from_bytes(worktree),
                head: text(head),
                tree: text(tree),
                branch: text(symbolic).strip_prefix("refs/heads/").map(str::to_owned),
            })
        }
        [bare, ..] if bare == b"true" => Err(SnapshotError::Bare { path }),
        [_, _, _, _, worktree, ..] => Err(SnapshotError::NoCommits { path: path_from_bytes(worktree) }),
        [_, _, _, _] => Err(SnapshotError::InGitDirectory { path }),
        _ if String::from_utf8_lossy(&output.stderr).contains("not a git repository") => {
            Err(SnapshotError::NotARepository { path })
        }
        _ => Err(git.failure(&["rev-parse"], &output)),
    }
}
