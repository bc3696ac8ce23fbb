use muster_job::Variable;
use muster_pipeline::context::RefKind;
use muster_pipeline::layers;
use muster_runner_api::payload::GitInfo;

use crate::assignment::JobAssignment;

/// Returns the commit, and the refs that a clone must fetch to get it (docs/spec/runner-api.md, section 2.5.2).
pub(super) fn git_info(assignment: &JobAssignment<'_>, variables: &[Variable]) -> GitInfo {
    let depth = depth(assignment, variables);
    let is_tag = assignment.context.ref_kind == RefKind::Tag && !assignment.is_merge_request();
    GitInfo {
        repo_url: assignment.repository_url(),
        repo_object_format: assignment.git.object_format.clone(),
        ref_name: assignment.context.ref_name.clone(),
        sha: assignment.git.sha.clone(),
        before_sha: assignment.git.before_sha.clone(),
        ref_type: if is_tag { "tag" } else { "branch" }.to_owned(),
        refspecs: refspecs(assignment, depth, is_tag),
        depth,
        protected: Some(assignment.context.ref_protected),
    }
}

/// Returns `GIT_DEPTH` if it is set, and otherwise the project's setting. 0 or an invalid number means the full history.
fn depth(assignment: &JobAssignment<'_>, variables: &[Variable]) -> i64 {
    match layers::value(variables, "GIT_DEPTH") {
        Some(depth) => depth.trim().parse().unwrap_or(0).max(0),
        None => assignment.git.depth.max(0),
    }
}

/// Returns the refspecs that a clone fetches. The first one is the pipeline's own ref, which protects the commit from
/// deletion.
///
/// If `depth` is 0 (full history), the others are all branches and tags. If not, the second one is the pipeline's
/// branch or tag; a merge request has no second one.
fn refspecs(assignment: &JobAssignment<'_>, depth: i64, is_tag: bool) -> Vec<String> {
    let pipeline = assignment.pipeline_id;
    let name = &assignment.context.ref_name;
    let mut refspecs = vec![format!("+refs/pipelines/{pipeline}:refs/pipelines/{pipeline}")];
    if depth == 0 {
        refspecs.push("+refs/heads/*:refs/remotes/origin/*".to_owned());
        refspecs.push("+refs/tags/*:refs/tags/*".to_owned());
    } else if is_tag {
        refspecs.push(format!("+refs/tags/{name}:refs/tags/{name}"));
    } else if !assignment.is_merge_request() {
        refspecs.push(format!("+refs/heads/{name}:refs/remotes/origin/{name}"));
    }
    refspecs
}
