//! Finds the repository that contains a directory.

use std::path::{Path, PathBuf};

use crate::SnapshotError;
use crate::git::{Git, path_from_bytes};

/// Arguments of `git rev-parse`. Each one after the first prints one line, except the two that change how later ones are
/// printed: `--path-format` and `--symbolic-full-name`.
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

/// The repository that contains a directory.
pub(super) struct Located {
    pub(super) git_dir: PathBuf,
    pub(super) common_dir: PathBuf,
    pub(super) object_format: String,
    pub(super) worktree: PathBuf,
    pub(super) head: String,
    pub(super) tree: String,
    pub(super) branch: Option<String>,
}

/// Finds the repository that contains `directory`.
///
/// `git rev-parse` stops at the first argument that fails, so the number of lines shows what is missing.
pub(super) fn locate(directory: &Path) -> Result<Located, SnapshotError> {
    let git = Git::discover(directory);
    let output = git.output(&LOCATE)?;
    let lines: Vec<&[u8]> = output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).collect();
    let text = |bytes: &&[u8]| String::from_utf8_lossy(bytes).into_owned();
    let path = directory.to_owned();
    match lines.as_slice() {
        [_, git_dir, common_dir, format, worktree, head, tree, symbolic] if output.status.success() => Ok(Located {
            git_dir: path_from_bytes(git_dir),
            common_dir: path_from_bytes(common_dir),
            object_format: text(format),
            worktree: path_from_bytes(worktree),
            head: text(head),
            tree: text(tree),
            branch: text(symbolic).strip_prefix("refs/heads/").map(str::to_owned),
        }),
        [bare, ..] if bare == b"true" => Err(SnapshotError::Bare { path }),
        [_, _, _, _, worktree, ..] => Err(SnapshotError::NoCommits { path: path_from_bytes(worktree) }),
        // The directory is `.git` itself.
        [_, _, _, _] => Err(SnapshotError::NotARepository { path }),
        _ if String::from_utf8_lossy(&output.stderr).contains("not a git repository") => {
            Err(SnapshotError::NotARepository { path })
        }
        _ => Err(git.failure(&["rev-parse"], &output)),
    }
}
