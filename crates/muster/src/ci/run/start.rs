//! Prepares the pipeline, its commit, and the options of the manager.

use std::sync::Arc;

use muster_coordinator::{Coordinator, GitFacts, NewPipeline, ProjectFacts, RunnerSpec};
use muster_job::{PipelineId, ProjectId};
use muster_pipeline::context::{Context, PipelineSource, RefKind};
use muster_pipeline::layers;
use muster_pipeline::model::Pipeline;

use super::super::args::{OutputMode, RunArgs};
use super::super::error::{CiError, shell_words};
use super::super::prepare::Prepared;
use super::super::record::write_private_bytes;
use super::super::state::{ProjectState, Run};
use super::super::ui;
use super::ReadyPipeline;
use super::supervisor::ManagerOptions;
use crate::unpack::UnpackArgs;

/// Minimum of the default number of simultaneous jobs, even with fewer CPUs, because jobs wait more than they compute.
const MIN_DEFAULT_CONCURRENCY: usize = 8;

/// Number of commits that a job fetches. GitLab's default.
const FETCH_DEPTH: i64 = 20;

pub(super) fn new_pipeline(
    args: &RunArgs,
    ready: &ReadyPipeline,
    id: PipelineId,
    url: &str,
) -> Result<NewPipeline, CiError> {
    let Prepared { snapshot, context, identity, config, .. } = &ready.prepared;
    let mut project = ProjectFacts::new(ProjectId(ready.prepared.project.project_id), &identity.path);
    if let Some(timeout) = args.timeout {
        project.job_timeout = timeout;
    }
    let full_ref = full_ref(context);
    snapshot.pin(id.0, full_ref.as_deref())?;
    let git = GitFacts {
        sha: snapshot.sha.clone(),
        before_sha: layers::value(&context.predefined, "CI_COMMIT_BEFORE_SHA").unwrap_or_default().to_owned(),
        object_format: snapshot.object_format.clone(),
        repo_url: format!("{url}/{}.git", identity.path),
        repo_path: Some(snapshot.repository.clone()),
        depth: FETCH_DEPTH,
    };
    let sources = Arc::clone(&ready.prepared.sources);
    let mut new = NewPipeline::new(project, context.clone(), ready.pipeline.clone(), git, sources);
    new.play.clone_from(&ready.play);
    new.secrets = config.secrets(&identity.path);
    Ok(new)
}

/// Returns `None` for a merge request.
fn full_ref(context: &Context) -> Option<String> {
    match (context.ref_kind, context.source) {
        (_, PipelineSource::MergeRequestEvent) => None,
        (RefKind::Tag, _) => Some(format!("refs/tags/{}", context.ref_name)),
        (RefKind::Branch, _) => Some(format!("refs/heads/{}", context.ref_name)),
    }
}

pub(super) fn print_registration(output: OutputMode, url: &str, token: &str, pipeline: &Pipeline) {
    let tags = pipeline.jobs.iter().flat_map(|job| job.tags.iter().map(String::as_str)).collect();
    let command = registration_command(url, token, tags);
    let text = format!("waiting for a runner at {url}; register one and start it:\n  {command}\n  gitlab-runner run");
    match output {
        OutputMode::Human | OutputMode::Junit => ui::note(&text),
        OutputMode::Json => ui::outln(
            &serde_json::json!({ "event": "waiting_for_runner", "url": url, "registration_token": token }).to_string(),
        ),
    }
}

fn registration_command(url: &str, token: &str, mut tags: Vec<&str>) -> String {
    tags.sort_unstable();
    tags.dedup();
    let tags = tags.join(",");
    let tags = if tags.is_empty() { tags } else { format!(" --tag-list {}", shell_words(std::iter::once(&tags))) };
    let command = format!(
        "gitlab-runner register --non-interactive --url {url} --registration-token {token} --executor shell \
         --run-untagged{tags}"
    );
    ui::plain(&command)
}

pub(super) async fn manager_options(
    args: &RunArgs,
    run: &Run,
    coordinator: &Coordinator,
    project: &ProjectState,
    url: &str,
    unpack: UnpackArgs,
) -> Result<ManagerOptions, CiError> {
    // This run has only one machine, so its runner accepts all tags.
    let new =
        RunnerSpec { description: "muster ci".to_owned(), any_tags: true, run_untagged: true, ..RunnerSpec::default() };
    let credentials = coordinator.create_runner(new).await?;
    let state_dir = run.directory.join("manager");
    let token_file = state_dir.join("token");
    let write = || {
        std::fs::create_dir_all(&state_dir)?;
        write_private_bytes(&token_file, credentials.token.as_bytes())
    };
    write().map_err(|source| CiError::State { path: token_file.clone(), source })?;
    let default_concurrency = std::thread::available_parallelism().map_or(1, usize::from).max(MIN_DEFAULT_CONCURRENCY);
    let program = std::env::current_exe().map_err(CiError::system("determine the path of this executable"))?;
    Ok(ManagerOptions {
        program,
        url: url.to_owned(),
        // The coordinator in this process opens files and connections for all jobs. Jobs keep the previous limit, which
        // `raise` returns.
        open_files: crate::open_files::raise(),
        token_file,
        state_dir,
        builds_dir: run.directory.join("builds"),
        cache_dir: project.cache(),
        concurrent: args.concurrent.map_or(default_concurrency, usize::from),
        unpack,
        containers: None,
        log: run.directory.join("manager.log"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_cannot_add_commands_to_the_printed_command() {
        let command = |tags: &[&str]| registration_command("http://a:1", "t", tags.to_vec());
        assert!(command(&[]).ends_with(" --run-untagged"));
        assert!(command(&["linux"]).ends_with(" --tag-list linux"));
        assert!(command(&["b", "a", "b"]).ends_with(" --tag-list 'a,b'"));
        assert!(command(&["it's", "x; rm -r ~\n\u{1b}"]).ends_with(r"--tag-list 'it'\''s,x; rm -r ~��'"));
    }
}
