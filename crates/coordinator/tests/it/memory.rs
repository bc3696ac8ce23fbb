//! Finished pipelines are not in memory. All other tests run so, too: here is what only this brings about.

#![expect(clippy::expect_used, reason = "a failure in a helper fails its test")]

use std::sync::Arc;

use muster_coordinator::{Coordinator, CoordinatorError, NewRunner, Options};
use muster_job::{FailureReason, JobId, JobStatus, PipelineId};
use muster_pipeline::model::{AllowFailure, Need, When};
use muster_runner_api::service::ServiceError;

use crate::support::{House, Manager, NoFiles, job, new_pipeline, pipeline, producer, zip_of};

/// A pipeline of one job that has left an archive, a dotenv report and a log.
async fn finished(house: &House, manager: &Manager) -> (PipelineId, muster_runner_api::payload::JobPayload) {
    let id = house.create(vec![vec![producer("build")]]).await;
    let build = manager.take().await;
    manager.upload(&build, ("archive", "zip", Some("1 day")), zip_of("out", "x")).await.expect("kept");
    manager.upload(&build, ("dotenv", "raw", None), b"KEY=value".to_vec()).await.expect("kept");
    manager.log(&build, 0, "a log").await.expect("taken");
    manager.succeed(&build).await;
    (id, build)
}

#[tokio::test]
async fn what_is_finished_can_be_read_also_after_a_restart() {
    let before = House::open().await;
    let manager = before.manager().await;
    let (first, build) = finished(&before, &manager).await;
    let open = before.create(vec![vec![job("a")]]).await;
    for house in [before.as_if_killed().await, before] {
        let view = house.view(first).await;
        assert_eq!((view.summary.status, view.jobs.len()), (JobStatus::Success, 1));
        assert_eq!(house.coordinator.job(build.id).await.expect("known"), view.jobs[0]);
        assert_eq!(view.jobs[0].runner.as_ref().map(|runner| runner.system_id.as_str()), Some("s_000000000001"));
        assert_eq!(view.jobs[0].artifacts.len(), 2);
        assert_eq!(house.coordinator.read_trace(build.id, 2).await.expect("readable"), "log");
        let ids = async |after, limit| {
            let page = house.coordinator.pipelines(after, limit).await.expect("readable");
            page.iter().map(|summary| summary.id).collect::<Vec<_>>()
        };
        assert_eq!((ids(None, 9).await, ids(None, 1).await), (vec![first, open], vec![first]));
        assert_eq!((ids(Some(first), 9).await, ids(Some(open), 9).await), (vec![open], vec![]));
        let missing = house.coordinator.pipeline(PipelineId(99)).await;
        assert!(matches!(missing, Err(CoordinatorError::NotFound(_))), "{missing:?}");
        assert!(house.coordinator.job(JobId(99)).await.is_err());
    }
}

#[tokio::test]
async fn a_late_word_of_a_runner_is_answered_as_if_the_job_were_in_memory() {
    let house = House::open().await;
    let manager = house.manager().await;
    let (_, build) = finished(&house, &manager).await;
    assert_eq!(manager.succeed(&build).await, JobStatus::Success, "said again");
    let refused = manager.update(&build, "failed", |_| {}).await;
    assert!(matches!(refused, Err(ServiceError::Forbidden { status: Some(JobStatus::Success) })), "{refused:?}");
    let refused = manager.log(&build, 5, "more").await;
    assert!(matches!(refused, Err(ServiceError::Forbidden { status: Some(JobStatus::Success) })), "{refused:?}");
    let mut forged = build.clone();
    forged.token = "glcbt-1-1-00".to_owned();
    let refused = manager.update(&forged, "running", |_| {}).await;
    assert!(matches!(refused, Err(ServiceError::Forbidden { status: None })), "{refused:?}");
}

#[tokio::test]
async fn a_retry_opens_a_finished_pipeline_again() {
    let house = House::open().await;
    let manager = house.manager().await;
    let id = house.create(vec![vec![job("a")], vec![job("b")]]).await;
    let (first, _) = (manager.take().await, ());
    manager.fail(&first, "script_failure", None).await;
    assert_eq!(house.view(id).await.summary.status, JobStatus::Failed);
    let again = house.coordinator.retry_job(first.id).await.expect("it has ended");
    // The database says so, too.
    let house = house.as_if_killed().await;
    let manager = manager.at(&house);
    let taken = manager.take().await;
    assert_eq!(taken.id, again);
    manager.succeed(&taken).await;
    manager.succeed(&manager.take().await).await;
    let view = house.view(id).await;
    assert_eq!((view.summary.status, view.jobs.len()), (JobStatus::Success, 3));
    assert!(view.jobs[0].retried);
}

#[tokio::test]
async fn a_manual_job_of_a_finished_pipeline_can_be_played() {
    let house = House::open().await;
    let manager = house.manager().await;
    let mut optional = job("deploy");
    (optional.when, optional.allow_failure) = (When::Manual, AllowFailure::Yes);
    let id = house.create(vec![vec![job("a"), optional]]).await;
    manager.succeed(&manager.take().await).await;
    let view = house.view(id).await;
    assert_eq!(view.summary.status, JobStatus::Success);
    let deploy = view.job("deploy").expect("a job").id;
    house.coordinator.play_job(deploy, Vec::new()).await.expect("it waits for that");
    let taken = manager.take().await;
    assert_eq!(taken.id, deploy);
    manager.succeed(&taken).await;
    assert_eq!(house.status(id, "deploy").await, JobStatus::Success);
}

#[tokio::test]
async fn artifacts_of_a_finished_pipeline_reach_a_job_that_needs_them() {
    let house = House::open().await;
    let manager = house.manager().await;
    let (first, build) = finished(&house, &manager).await;
    let mut user = job("use");
    let need =
        |pipeline: &str| Need::Pipeline { pipeline: pipeline.to_owned(), job: "build".to_owned(), artifacts: true };
    user.needs = Some(vec![need(&first.to_string())]);
    let mut lost = job("lost");
    lost.needs = Some(vec![need("99")]);
    let id = house.create(vec![vec![user, lost]]).await;
    let taken = manager.take_with(Some("key")).await;
    assert_eq!((taken.job_info.name.as_str(), taken.dependencies.len()), ("use", 1));
    assert!(taken.variables.iter().any(|variable| variable.key == "KEY" && variable.value == "value"));
    let again = manager.take_with(Some("key")).await;
    assert_eq!((again.id, again.dependencies.len()), (taken.id, 1), "the answer is repeated");
    assert_eq!(manager.download(build.id, &taken.token).await.expect("the archive"), zip_of("out", "x"));
    manager.succeed(&taken).await;
    let waiting = tokio::spawn({
        let manager = manager.clone();
        async move { manager.take().await }
    });
    let view = house.until(id, |view| view.job("lost").is_some_and(|job| job.status.is_complete())).await;
    waiting.abort();
    let reason = view.job("lost").and_then(|job| job.failure_reason);
    assert_eq!(reason, Some(FailureReason::MissingDependencyFailure));
}

#[tokio::test]
async fn artifacts_of_finished_pipelines_expire() {
    let before = House::open().await;
    let manager = before.manager().await;
    let (_, build) = finished(&before, &manager).await;
    let after = before.as_if_killed().await;
    for house in [&before, &after] {
        assert!(house.files_there(build.id).await.contains(&("archive".to_owned(), true)));
    }
    before.clock.advance(std::time::Duration::from_secs(24 * 3600));
    for house in [&before, &after] {
        let deleted = async {
            while house.files_there(build.id).await.contains(&("archive".to_owned(), true)) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(crate::support::SOON, deleted).await.expect("deleted soon");
    }
}

#[tokio::test]
async fn a_coordinator_in_memory_does_the_same_and_leaves_nothing() {
    let dir = tempfile::tempdir().expect("a folder");
    let coordinator = Coordinator::in_memory(Options::new(dir.path())).await.expect("a coordinator");
    let runner = NewRunner { run_untagged: true, ..NewRunner::default() };
    let token = coordinator.create_runner(runner).await.expect("a runner").token;
    let manager = Manager::new(Arc::clone(&coordinator), token);
    let compiled = pipeline(vec![vec![producer("build")], vec![job("test")]]);
    let id = coordinator.create_pipeline(new_pipeline(compiled, Arc::new(NoFiles))).await.expect("a pipeline");
    let build = manager.take().await;
    manager.upload(&build, ("archive", "zip", None), zip_of("out", "x")).await.expect("kept");
    manager.log(&build, 0, "a log").await.expect("taken");
    manager.succeed(&build).await;
    let test = manager.take().await;
    assert_eq!(manager.download(build.id, &test.token).await.expect("the archive"), zip_of("out", "x"));
    manager.succeed(&test).await;
    assert_eq!(coordinator.pipeline(id).await.expect("known").summary.status, JobStatus::Success);
    assert_eq!(coordinator.read_trace(build.id, 0).await.expect("readable"), "a log");
    assert!(!coordinator.events_after(0, 1).await.expect("readable").is_empty());
    coordinator.shutdown().await;
    assert_eq!(std::fs::read_dir(dir.path()).expect("a folder").count(), 0);
}
