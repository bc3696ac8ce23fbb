//! The commit to check out, and the amount of history to fetch.

use muster_job::Variable;
use muster_pipeline::context::RefKind;
use muster_pipeline::layers;
use muster_runner_api::payload::GitInfo;

use crate::handout::Handout;

/// Returns the commit, and the refs that a clone must fetch to get it (docs/spec/runner-api.md, section 2.5.2).
pub(super) fn git_info(handout: &Handout<'_>, variables: &[Variable]) -> GitInfo {
    let depth = depth(handout, variables);
    let tag = handout.context.ref_kind == RefKind::Tag && !handout.is_merge_request();
    GitInfo {
        repo_url: handout.repository_url(),
        repo_object_format: handout.git.object_format.clone(),
        ref_name: handout.context.ref_name.clone(),
        sha: handout.git.sha.clone(),
        before_sha: handout.git.before_sha.clone(),
        ref_type: if tag { "tag" } else { "branch" }.to_owned(),
        refspecs: refspecs(handout, depth, tag),
        depth,
        protected: Some(handout.context.ref_protected),
    }
}

/// Returns `GIT_DEPTH` if it is set, and otherwise the project's setting. 0 or an invalid number means the full history.
fn depth(handout: &Handout<'_>, variables: &[Variable]) -> i64 {
    match layers::value(variables, "GIT_DEPTH") {
        Some(depth) => depth.trim().parse().unwrap_or(0).max(0),
        None => handout.git.depth.max(0),
    }
}

/// Returns the refspecs to fetch.
///
/// The first one is the ref that keeps the pipeline's commit from being deleted. Then follows the branch or tag, or all of them for
/// the full history.
fn refspecs(handout: &Handout<'_>, depth: i64, tag: bool) -> Vec<String> {
    let pipeline = handout.pipeline_id;
    let name = &handout.context.ref_name;
    let mut refspecs = vec![format!("+refs/pipelines/{pipeline}:refs/pipelines/{pipeline}")];
    if depth == 0 {
        refspecs.push("+refs/heads/*:refs/remotes/origin/*".to_owned());
        refspecs.push("+refs/tags/*:refs/tags/*".to_owned());
    } else if tag {
        refspecs.push(format!("+refs/tags/{name}:refs/tags/{name}"));
    } else if !handout.is_merge_request() {
        refspecs.push(format!("+refs/heads/{name}:refs/remotes/origin/{name}"));
    }
    refspecs
}
