//! Tests that inspect the state of the actor.

use muster_job::ProjectId;
use muster_pipeline::context::Context;
use muster_runner_api::wire::JobRequest;
use tokio::sync::oneshot;

use super::*;
use crate::blobs::memory::MemoryBlobs;
use crate::command::FinalReport;
use crate::facts::{GitFacts, NewPipeline, NoFiles, ProjectFacts, RunnerSpec};
use crate::keys;
use crate::store::memory::MemoryStore;
use crate::store::{Contents, LastIds};

fn actor() -> Actor {
    let mut options = Options::new("unused");
    options.limits.finished_in_memory = 0;
    let first_ids = (PipelineId(1), JobId(1));
    let restored = CoordinatorState::restore(Contents::default(), LastIds::default(), first_ids, true, 0);
    let blobs: Arc<dyn Blobs> = Arc::new(MemoryBlobs::default());
    Actor::new(
        options,
        Arc::new(MemoryStore::new()),
        restored.expect("an empty state"),
        (Keys::random(), keys::random_signer().expect("random bytes")),
        (blobs, ArtifactLocks::default()),
        broadcast::channel(16).0,
    )
}

async fn call<T, E: std::fmt::Debug>(
    actor: &mut Actor,
    command: impl FnOnce(oneshot::Sender<Result<T, E>>) -> Command,
) -> T {
    let (reply, answer) = oneshot::channel();
    let (_, mut no_commands) = mpsc::channel(1);
    actor.ingest(Some(command(reply)), &mut no_commands).await;
    actor.commit().await;
    answer.await.expect("no answer").expect("the command failed")
}

async fn run_pipeline(actor: &mut Actor, token: &str) {
    let compiled = muster_pipeline::compile(b"test: {script: [x]}", &Context::default(), &NoFiles).pipeline;
    let project = ProjectFacts::new(ProjectId(1), "group/app");
    let compiled = compiled.expect("no pipeline");
    let new = NewPipeline::new(project, Context::default(), compiled, GitFacts::default(), Arc::new(NoFiles));
    call(actor, |reply| Command::CreatePipeline { new: Box::new(new), reply }).await;
    let (token, key) = (token.to_owned(), Some("key".to_owned()));
    let request = JobRequest { token, idempotency_key: key, ..JobRequest::default() };
    let answer = call(actor, |reply| Command::RequestJob { request: Box::new(request), reply }).await;
    let payload = answer.job.expect("no job");
    let (job, token) = (payload.id, payload.token.clone());
    let report = FinalReport { success: true, reason: None, exit_code: None, coverage: None, result_tree: None };
    call(actor, |reply| Command::Finish { job, token, report: Box::new(report), reply }).await;
}

#[tokio::test]
async fn finished_pipelines_leave_nothing_in_memory() {
    let mut actor = actor();
    let settings = RunnerSpec { run_untagged: true, ..RunnerSpec::default() };
    let token = call(&mut actor, |reply| Command::CreateRunner { new: settings, reply }).await.token;
    for _ in 0..3000 {
        run_pipeline(&mut actor, &token).await;
    }
    assert_eq!((actor.state.pipeline_entries(), actor.queue.len()), (0, 0));
    // `Timers::prune` keeps at most 8 * 512 timers if no job is in memory. The last pipeline may have added a few more.
    assert!(actor.timers.len() <= 8 * 512 + 8, "stale timers must be pruned: {}", actor.timers.len());
}
