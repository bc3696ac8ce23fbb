//! Finished pipelines, which are read from the store, and a coordinator that keeps all its data in memory.
//!
//! The harness of all tests keeps no finished pipelines in memory.

#![expect(clippy::expect_used, reason = "a failure in a helper fails its test")]

use std::sync::Arc;
use std::time::Duration;

use muster_coordinator::views::PipelineView;
use muster_coordinator::{Coordinator, CoordinatorError, Options, RunnerSpec};
use muster_job::{FailureReason, JobId, JobStatus, PipelineId};
use muster_pipeline::model::{AllowFailure, Need, When};
use muster_runner_api::service::ServiceError;

use crate::support::{Files, Harness, Manager, NoFiles, job, new_pipeline, pipeline, producer, zip_of};

async fn run_pipeline(harness: &Harness, manager: &Manager) -> (PipelineId, muster_runner_api::payload::JobPayload) {
    let id = harness.create(vec![vec![producer("build")]]).await;
    let build = manager.next_job().await;
    manager.upload(&build, ("archive", "zip", Some("1 day")), zip_of("out", "x")).await.expect("failed to store");
    manager.upload(&build, ("dotenv", "raw", None), b"KEY=value".to_vec()).await.expect("failed to store");
    manager.log(&build, 0, "a log").await.expect("was not accepted");
    manager.succeed(&build).await;
    (id, build)
}

#[tokio::test]
async fn finished_pipelines_are_readable_after_a_restart() {
    let before = Harness::open().await;
    let manager = before.manager().await;
    let (first, build) = run_pipeline(&before, &manager).await;
    let open = before.create(vec![vec![job("a")]]).await;
    for harness in [before.restart_after_kill().await, before] {
        let view = harness.view(first).await;
        assert_eq!((view.summary.status, view.jobs.len()), (JobStatus::Success, 1));
        assert_eq!(harness.coordinator.job(build.id).await.expect("the job does not exist"), view.jobs[0]);
        assert_eq!(view.jobs[0].runner.as_ref().map(|runner| runner.system_id.as_str()), Some("s_000000000001"));
        assert_eq!(view.jobs[0].artifacts.len(), 2);
        assert_eq!(harness.coordinator.read_trace(build.id, 2).await.expect("failed to read"), "log");
        let ids = async |after, limit| {
            let page = harness.coordinator.pipelines(after, limit).await.expect("failed to read");
            page.iter().map(|summary| summary.id).collect::<Vec<_>>()
        };
        assert_eq!((ids(None, 9).await, ids(None, 1).await), (vec![first, open], vec![first]));
        assert_eq!((ids(Some(first), 9).await, ids(Some(open), 9).await), (vec![open], vec![]));
        let missing = harness.coordinator.pipeline(PipelineId(99)).await;
        assert!(matches!(missing, Err(CoordinatorError::NotFound(_))), "{missing:?}");
        assert!(harness.coordinator.job(JobId(99)).await.is_err());
    }
}

#[tokio::test]
async fn late_reports_for_finished_jobs_are_answered() {
    let harness = Harness::open().await;
    let manager = harness.manager().await;
    let (_, build) = run_pipeline(&harness, &manager).await;
    assert_eq!(manager.succeed(&build).await, JobStatus::Success, "the repeated report must get the same answer");
    let rejected = manager.update(&build, "failed", |_| {}).await;
    assert!(matches!(rejected, Err(ServiceError::Forbidden { status: Some(JobStatus::Success) })), "{rejected:?}");
    let rejected = manager.log(&build, 5, "more").await;
    assert!(matches!(rejected, Err(ServiceError::Forbidden { status: Some(JobStatus::Success) })), "{rejected:?}");
    let mut forged = build.clone();
    forged.token = "glcbt-1-1-00".to_owned();
    let rejected = manager.update(&forged, "running", |_| {}).await;
    assert!(matches!(rejected, Err(ServiceError::Forbidden { status: None })), "{rejected:?}");
}

#[tokio::test]
async fn retry_reopens_a_finished_pipeline() {
    let harness = Harness::open().await;
    let manager = harness.manager().await;
    let id = harness.create(vec![vec![job("a")], vec![job("b")]]).await;
    let first = manager.next_job().await;
    manager.fail(&first, "script_failure", None).await;
    assert_eq!(harness.view(id).await.summary.status, JobStatus::Failed);
    let retry = harness.coordinator.retry_job(first.id).await.expect("the job has not ended");
    // The restarted coordinator reads the change from the database.
    let harness = harness.restart_after_kill().await;
    let manager = manager.connected_to(&harness);
    let assigned = manager.next_job().await;
    assert_eq!(assigned.id, retry);
    manager.succeed(&assigned).await;
    manager.succeed(&manager.next_job().await).await;
    let view = harness.view(id).await;
    assert_eq!((view.summary.status, view.jobs.len()), (JobStatus::Success, 3));
    assert!(view.jobs[0].retried);
}

#[tokio::test]
async fn bridge_of_a_finished_pipeline_can_be_retried_with_attached_files() {
    let harness = Harness::open().await;
    let manager = harness.manager().await;
    let files = || Arc::new(Files(vec![("a.yml", "leaf: {script: [x]}")]));
    let yaml = "c: {trigger: {include: a.yml, strategy: depend}}";
    let id = harness.create_with(yaml, files(), &[]).await;
    manager.fail(&manager.next_job().await, "script_failure", None).await;
    let has_status = |status| move |view: &PipelineView| view.job("c").is_some_and(|bridge| bridge.status == status);
    let bridge = harness.wait_until(id, has_status(JobStatus::Failed)).await.jobs[0].id;
    let retry = harness.coordinator.retry_job(bridge).await.expect("was not retried");
    harness.coordinator.attach_sources(id, files()).await.expect("failed to attach");
    manager.succeed(&manager.next_job().await).await;
    harness.wait_until(id, has_status(JobStatus::Success)).await;
    // No files are attached after the second retry.
    harness.coordinator.retry_job(retry).await.expect("was not retried");
    harness.clock.advance(Duration::from_secs(60));
    let view = harness.wait_until(id, has_status(JobStatus::Failed)).await;
    let bridge = view.job("c").expect("no bridge");
    assert_eq!(bridge.failure_reason, Some(FailureReason::DownstreamPipelineCreationFailed));
    assert!(bridge.message.as_ref().is_some_and(|message| message.contains("run a new pipeline")), "{bridge:?}");
}

#[tokio::test]
async fn manual_job_of_a_finished_pipeline_can_be_played() {
    let harness = Harness::open().await;
    let manager = harness.manager().await;
    let mut optional = job("deploy");
    (optional.when, optional.allow_failure) = (When::Manual, AllowFailure::Yes);
    let id = harness.create(vec![vec![job("a"), optional]]).await;
    manager.succeed(&manager.next_job().await).await;
    let view = harness.view(id).await;
    assert_eq!(view.summary.status, JobStatus::Success);
    let deploy = view.job("deploy").expect("no job").id;
    harness.coordinator.play_job(deploy, Vec::new()).await.expect("the job is not manual");
    let assigned = manager.next_job().await;
    assert_eq!(assigned.id, deploy);
    manager.succeed(&assigned).await;
    assert_eq!(harness.status(id, "deploy").await, JobStatus::Success);
}

#[tokio::test]
async fn job_gets_artifacts_of_a_finished_pipeline() {
    let harness = Harness::open().await;
    let manager = harness.manager().await;
    let (first, build) = run_pipeline(&harness, &manager).await;
    let mut consumer = job("use");
    let need =
        |pipeline: &str| Need::Pipeline { pipeline: pipeline.to_owned(), job: "build".to_owned(), artifacts: true };
    consumer.needs = Some(vec![need(&first.to_string())]);
    let mut without_producer = job("without_producer");
    without_producer.needs = Some(vec![need("99")]);
    let id = harness.create(vec![vec![consumer, without_producer]]).await;
    let assigned = manager.next_job_with_key(Some("key")).await;
    assert_eq!((assigned.job_info.name.as_str(), assigned.dependencies.len()), ("use", 1));
    assert!(assigned.variables.iter().any(|variable| variable.key == "KEY" && variable.value == "value"));
    let repeated = manager.next_job_with_key(Some("key")).await;
    assert_eq!((repeated.id, repeated.dependencies.len()), (assigned.id, 1), "the answer must be repeated");
    assert_eq!(
        manager.download(build.id, &assigned.token).await.expect("failed to download the archive"),
        zip_of("out", "x")
    );
    manager.succeed(&assigned).await;
    let waiting = tokio::spawn({
        let manager = manager.clone();
        async move { manager.next_job().await }
    });
    let has_ended = |view: &PipelineView| view.job("without_producer").is_some_and(|job| job.status.is_complete());
    let view = harness.wait_until(id, has_ended).await;
    waiting.abort();
    let reason = view.job("without_producer").and_then(|job| job.failure_reason);
    assert_eq!(reason, Some(FailureReason::MissingDependencyFailure));
}

#[tokio::test]
async fn artifacts_of_finished_pipelines_expire() {
    let before = Harness::open().await;
    let manager = before.manager().await;
    let (_, build) = run_pipeline(&before, &manager).await;
    let after = before.restart_after_kill().await;
    for harness in [&before, &after] {
        assert!(harness.artifact_presence(build.id).await.contains(&("archive".to_owned(), true)));
    }
    before.clock.advance(std::time::Duration::from_secs(24 * 3600));
    for harness in [&before, &after] {
        let deleted = async {
            while harness.artifact_presence(build.id).await.contains(&("archive".to_owned(), true)) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(crate::support::TIMEOUT, deleted).await.expect("was not deleted in time");
    }
}

#[tokio::test]
async fn in_memory_coordinator_writes_no_files() {
    let dir = tempfile::tempdir().expect("failed to create a directory");
    let coordinator = Coordinator::in_memory(Options { write_job_events: true, ..Options::new(dir.path()) })
        .await
        .expect("failed to start a coordinator");
    let runner = RunnerSpec { run_untagged: true, ..RunnerSpec::default() };
    let token = coordinator.create_runner(runner).await.expect("failed to create a runner").token;
    let manager = Manager::new(Arc::clone(&coordinator), token);
    let compiled = pipeline(vec![vec![producer("build")], vec![job("test")]]);
    let id = coordinator
        .create_pipeline(new_pipeline(compiled, Arc::new(NoFiles)))
        .await
        .expect("failed to create a pipeline");
    let build = manager.next_job().await;
    manager.upload(&build, ("archive", "zip", None), zip_of("out", "x")).await.expect("failed to store");
    manager.log(&build, 0, "a log").await.expect("was not accepted");
    manager.succeed(&build).await;
    let test = manager.next_job().await;
    assert_eq!(
        manager.download(build.id, &test.token).await.expect("failed to download the archive"),
        zip_of("out", "x")
    );
    manager.succeed(&test).await;
    assert_eq!(coordinator.pipeline(id).await.expect("the pipeline does not exist").summary.status, JobStatus::Success);
    assert_eq!(coordinator.read_trace(build.id, 0).await.expect("failed to read"), "a log");
    assert!(!coordinator.events_after(0, 1).await.expect("failed to read").is_empty());
    coordinator.shutdown().await;
    assert_eq!(std::fs::read_dir(dir.path()).expect("failed to read the directory").count(), 0);
}
