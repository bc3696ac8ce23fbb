use crate::SnapshotError;
use crate::git::{Git, line};

/// A commit of the user's repository.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Commit {
    /// Full ID of the commit.
    pub sha: String,
    /// IDs of its parents, first parent first.
    pub parents: Vec<String>,
    /// Author as `Name <email>`.
    pub author: String,
    /// Commit date, ISO 8601 with offset.
    pub committed_at: String,
    /// Complete commit message.
    pub message: String,
    /// Its tags in git's order, annotated or not.
    pub tags: Vec<String>,
}

pub(super) fn read_commit(git: &Git, sha: &str) -> Result<Commit, SnapshotError> {
    let output = git.run(&[
        "log",
        "-1",
        "--no-show-signature",
        "--decorate=full",
        "--decorate-refs=refs/tags/*",
        "--encoding=UTF-8",
        "--format=%H%x00%P%x00%an <%ae>%x00%cI%x00%D%x00%B",
        sha,
    ])?;
    let text = String::from_utf8_lossy(&output).into_owned();
    let mut fields = text.splitn(6, '\0');
    let mut next = || fields.next().unwrap_or_default().to_owned();
    let (sha, parents, author, committed_at, decoration) = (next(), next(), next(), next(), next());
    let message = next().trim_end_matches('\n').to_owned();
    let tags = decoration
        .split(", ")
        .filter_map(|name| name.trim().strip_prefix("tag: refs/tags/"))
        .map(str::to_owned)
        .collect();
    let parents = parents.split_whitespace().map(str::to_owned).collect();
    Ok(Commit { sha, parents, author, committed_at, message, tags })
}

/// Creates the commit of a changed working tree. Both dates are the commit date of `HEAD`, so that equal content has an
/// equal ID.
pub(super) fn commit_tree(git: &Git, tree: &str, head: &Commit) -> Result<String, SnapshotError> {
    let git = git
        .clone()
        .with_variable("GIT_AUTHOR_NAME", "Working tree")
        .with_variable("GIT_AUTHOR_EMAIL", "")
        .with_variable("GIT_AUTHOR_DATE", &head.committed_at)
        .with_variable("GIT_COMMITTER_NAME", "Working tree")
        .with_variable("GIT_COMMITTER_EMAIL", "")
        .with_variable("GIT_COMMITTER_DATE", &head.committed_at);
    let message = format!("{}\n\nWith the changes of the working tree that are not committed yet.\n", head.message);
    let arguments = ["-c", "commit.gpgSign=false", "commit-tree", tree, "-p", &head.sha];
    git.run_with_input(&arguments, message.as_bytes()).map(|output| line(&output))
}
