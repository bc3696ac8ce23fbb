//! Builds the context of a pipeline from the repository and the flags.

use muster_pipeline::context::{Changes, Context, PipelineSource, RefKind};
use muster_source::{MergeBase, Snapshot};

use super::args::{Event, PipelineArgs};
use super::config::{Config, matches};
use super::error::CiError;
use super::git_facts::ProjectIdentity;
use super::gitlab_ci_local;
use super::predefined::predefined;
use super::variables::{inputs, pipeline_variables};

/// Value of `CI_COMMIT_BEFORE_SHA` without a push to a branch, or if the previous commit is unknown.
const ZEROS: &str = "0000000000000000000000000000000000000000";

#[derive(Debug, Clone)]
pub(super) struct EventFacts {
    pub(super) source: PipelineSource,
    /// Name of the branch or tag.
    pub(super) ref_name: String,
    /// Name of the tag, for tag pipelines.
    pub(super) tag: Option<String>,
    pub(super) protected: bool,
    pub(super) before_sha: String,
    pub(super) merge_request: Option<MergeRequest>,
    /// Changes that `rules:changes` checks. `None` means unknown changes, for which `rules:changes` always matches.
    pub(super) changes: Option<Changes>,
}

/// A simulated merge request.
#[derive(Debug, Clone)]
pub(super) struct MergeRequest {
    pub(super) target: String,
    /// Merge base with the target branch. `None` if that branch is unknown locally, or shares no commit with this one.
    pub(super) base: Option<MergeBase>,
}

/// Sources of the predefined variables.
pub(super) struct Facts<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) identity: &'a ProjectIdentity,
    pub(super) event: &'a EventFacts,
    /// URL of the coordinator.
    pub(super) server_url: &'a str,
    pub(super) project_id: i64,
    pub(super) config_path: &'a str,
    /// Number of the run.
    pub(super) iid: u64,
    /// Creation time in RFC 3339.
    pub(super) created_at: &'a str,
    /// Whether a branch or tag is protected.
    pub(super) is_protected: &'a dyn Fn(&str) -> bool,
}

/// Facts that do not come from the repository.
pub(super) struct RunFacts<'a> {
    pub(super) server_url: &'a str,
    pub(super) project_id: i64,
    pub(super) iid: u64,
    pub(super) config_path: &'a str,
}

/// Builds everything that determines a pipeline, except its configuration file.
pub(super) fn context(
    args: &PipelineArgs,
    config: &Config,
    snapshot: &Snapshot,
    identity: &ProjectIdentity,
    run: &RunFacts<'_>,
) -> Result<Context, CiError> {
    let is_protected =
        |name: &str| name == identity.default_branch || config.protected.iter().any(|pattern| matches(pattern, name));
    let event = event_facts(args, snapshot, identity, &is_protected)?;
    let now = time::OffsetDateTime::now_utc().replace_nanosecond(0).unwrap_or(time::OffsetDateTime::UNIX_EPOCH);
    let created_at = now.format(&time::format_description::well_known::Rfc3339).unwrap_or_default();
    let facts = Facts {
        snapshot,
        identity,
        event: &event,
        server_url: run.server_url,
        project_id: run.project_id,
        config_path: run.config_path,
        iid: run.iid,
        created_at: &created_at,
        is_protected: &is_protected,
    };
    let mut project_variables = gitlab_ci_local::variables(&snapshot.worktree, identity)?;
    project_variables.extend(config.variables(&identity.path)?);
    let mut context = Context {
        predefined: predefined(&facts),
        source: event.source,
        ref_kind: if event.tag.is_some() { RefKind::Tag } else { RefKind::Branch },
        ref_name: event.ref_name.clone(),
        ref_protected: event.protected,
        project_variables,
        pipeline_variables: pipeline_variables(args)?,
        inputs: inputs(args)?,
        config_path: run.config_path.to_owned(),
        project_path: identity.path.clone(),
        changed_since: event.changes.as_ref().map(|changes| changes.since.clone()),
        changed_paths: event.changes.map(|changes| changes.paths),
        tracked_paths: std::sync::Arc::clone(&snapshot.tracked_paths),
        ..Context::default()
    };
    let is_unset = |name: &str| args.unset_variable.iter().any(|unset| unset == name);
    context.predefined.retain(|variable| !is_unset(&variable.key));
    context.project_variables.retain(|scoped| !is_unset(&scoped.variable.key));
    context.pipeline_variables.retain(|variable| !is_unset(&variable.key));
    context.unset_variables.clone_from(&args.unset_variable);
    Ok(context)
}

fn source_of(event: Event) -> PipelineSource {
    match event {
        Event::Push | Event::Tag => PipelineSource::Push,
        Event::MergeRequest => PipelineSource::MergeRequestEvent,
        Event::Schedule => PipelineSource::Schedule,
        Event::Web => PipelineSource::Web,
        Event::Api => PipelineSource::Api,
        Event::Trigger => PipelineSource::Trigger,
        Event::Pipeline => PipelineSource::Pipeline,
        Event::Chat => PipelineSource::Chat,
        Event::External => PipelineSource::External,
        Event::ExternalPullRequest => PipelineSource::ExternalPullRequestEvent,
        Event::Webide => PipelineSource::WebIde,
    }
}

fn event_facts(
    args: &PipelineArgs,
    snapshot: &Snapshot,
    identity: &ProjectIdentity,
    is_protected: &dyn Fn(&str) -> bool,
) -> Result<EventFacts, CiError> {
    let event = match (args.event, &args.mr_target) {
        (Event::Push, Some(_)) => Event::MergeRequest,
        (Event::MergeRequest, _) | (_, None) => args.event,
        _ => {
            return Err(usage(
                "`--mr-target` works only with `--event merge_request_event`; omit `--event` or `--mr-target`",
            ));
        }
    };
    let tag = match (&args.tag, event) {
        (Some(_), Event::MergeRequest) => {
            return Err(usage("a merge request pipeline has no tag; omit `--tag`, or the merge request flags"));
        }
        (Some(tag), _) => Some(tag.clone()),
        (None, Event::Tag) => Some(tag_of_head(snapshot)?),
        (None, _) => None,
    };
    let branch = args.branch.clone().or_else(|| snapshot.branch.clone()).unwrap_or_else(|| "HEAD".to_owned());
    let ref_name = tag.clone().unwrap_or(branch);
    let (merge_request, compared) = match event {
        Event::MergeRequest => {
            let request = merge_request(args, snapshot, identity)?;
            let compared = request.base.as_ref().map(|base| (base.commit.clone(), base.to_string()));
            (Some(request), compared)
        }
        Event::Push if tag.is_none() => (None, pushed_from(snapshot)),
        _ => (None, None),
    };
    let before_sha = match &merge_request {
        None => compared.as_ref().map_or_else(|| ZEROS.to_owned(), |(commit, _)| commit.clone()),
        Some(_) => ZEROS.to_owned(),
    };
    let changes = match &args.changed_since {
        Some(base) => {
            let found = snapshot.changed_since(base).ok_or_else(|| {
                usage(&format!("`--changed-since {base}`: the repository has no such branch, tag or commit"))
            })?;
            Some(Changes { paths: found.paths, since: found.since })
        }
        None => compared.and_then(|(base, since)| {
            let paths = snapshot.changed_between(&base, &snapshot.sha)?;
            Some(Changes { paths, since })
        }),
    };
    let protected = merge_request.is_none() && is_protected(&ref_name);
    Ok(EventFacts { source: source_of(event), ref_name, tag, protected, before_sha, merge_request, changes })
}

fn tag_of_head(snapshot: &Snapshot) -> Result<String, CiError> {
    match snapshot.head.tags.as_slice() {
        [tag] => Ok(tag.clone()),
        [] => Err(usage("the current commit has no tag; set one with `--tag NAME` (it need not exist)")),
        tags => Err(usage(&format!(
            "the current commit has {} tags ({}); select one with `--tag NAME`",
            tags.len(),
            tags.join(", ")
        ))),
    }
}

fn merge_request(
    args: &PipelineArgs,
    snapshot: &Snapshot,
    identity: &ProjectIdentity,
) -> Result<MergeRequest, CiError> {
    let target = args.mr_target.clone().unwrap_or_else(|| identity.default_branch.clone());
    let base = snapshot.merge_base(&target);
    if base.is_none() && args.mr_target.is_some() {
        let text = format!(
            "`--mr-target {target}`: the repository has no such branch, or that branch shares no commit with this one"
        );
        return Err(usage(&text));
    }
    Ok(MergeRequest { target, base })
}

/// Returns the commit with which a push is compared, and its description.
///
/// This is the upstream branch as last fetched, or the previous commit if there is nothing to push.
fn pushed_from(snapshot: &Snapshot) -> Option<(String, String)> {
    let upstream = snapshot.upstream()?;
    let nothing_to_push = upstream == snapshot.head.sha && !snapshot.dirty;
    let (commit, description) = match nothing_to_push {
        true => (snapshot.head.parents.first()?.clone(), "the previous commit"),
        false => (upstream, "the upstream branch as last fetched"),
    };
    let short = commit.get(..8).unwrap_or(&commit);
    Some((commit.clone(), format!("{short}, {description}")))
}

fn usage(text: &str) -> CiError {
    CiError::Usage(text.to_owned())
}

#[cfg(test)]
mod tests;
