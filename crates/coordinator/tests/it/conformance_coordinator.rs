//! Conformance cases of scheduling that need the event loop (docs/spec/pipeline-yaml.md, section 8.7).

#![expect(clippy::expect_used, reason = "a failure in a helper fails its test")]

use std::time::Duration;

use muster_coordinator::RunnerSpec;
use muster_coordinator::views::PipelineView;
use muster_job::{FailureReason, JobStatus, PipelineId, Variable};
use muster_runner_api::payload::JobPayload;

use crate::support::{BlockingFiles, Files, Harness, job, pipeline, producer, zip_of};

fn value<'a>(payload: &'a JobPayload, name: &str) -> Option<&'a str> {
    payload.variables.iter().rfind(|variable| variable.key == name).map(|variable| variable.value.as_str())
}

fn status(view: &PipelineView, name: &str) -> Option<JobStatus> {
    view.job(name).map(|job| job.status)
}

async fn child_of(harness: &Harness, parent: PipelineId, name: &str) -> PipelineId {
    let view =
        harness.wait_until(parent, |view| view.job(name).is_some_and(|bridge| bridge.downstream.is_some())).await;
    view.job(name).and_then(|bridge| bridge.downstream).expect("no child")
}

async fn failure_of(harness: &Harness, parent: PipelineId, name: &str) -> (Option<FailureReason>, String) {
    let view = harness.wait_until(parent, |view| status(view, name) == Some(JobStatus::Failed)).await;
    let bridge = view.job(name).expect("no bridge");
    (bridge.failure_reason, bridge.message.clone().unwrap_or_default())
}

#[tokio::test]
async fn c187_job_that_lists_the_producer_of_an_expired_archive_fails() {
    let harness = Harness::open().await;
    let manager = harness.manager().await;
    let mut wait = job("wait");
    wait.needs = Some(Vec::new());
    let mut lists_build = job("lists_build");
    lists_build.dependencies = Some(vec!["build".to_owned()]);
    let no_list = job("no_list");
    let id = harness.create(vec![vec![producer("build"), wait], vec![lists_build, no_list]]).await;
    let (build, wait) = (manager.next_job().await, manager.next_job().await);
    manager.upload(&build, ("archive", "zip", Some("10 minutes")), zip_of("out", "x")).await.expect("failed to store");
    manager.succeed(&build).await;
    manager.report_running(&wait).await;
    harness.clock.advance(Duration::from_secs(600));
    manager.succeed(&wait).await;
    let assigned = manager.next_job().await;
    assert_eq!(assigned.job_info.name, "no_list", "a job that does not list the producer must still run");
    assert!(assigned.dependencies.is_empty());
    let lists_build = harness.job(id, "lists_build").await;
    assert_eq!(lists_build.failure_reason, Some(FailureReason::MissingDependencyFailure));
    assert_eq!((lists_build.status, lists_build.started_at), (JobStatus::Failed, None));
    assert!(lists_build.message.is_some_and(|message| message.contains("`build`")));
}

#[tokio::test]
async fn c187_deleted_archive_is_treated_as_expired() {
    let harness = Harness::open().await;
    let manager = harness.manager().await;
    let mut lists_build = job("lists_build");
    lists_build.dependencies = Some(vec!["build".to_owned()]);
    let id = harness.create(vec![vec![producer("build")], vec![lists_build]]).await;
    let build = manager.next_job().await;
    manager.upload(&build, ("archive", "zip", None), zip_of("out", "x")).await.expect("failed to store");
    let file = harness.coordinator.artifact_files(build.id).await.expect("the job does not exist").remove(0);
    std::fs::remove_file(harness.path_of(build.id, &file)).expect("failed to delete");
    let waiting = tokio::spawn(async move { (manager.succeed(&build).await, manager.next_job().await) });
    let view = harness.wait_until(id, |view| status(view, "lists_build") == Some(JobStatus::Failed)).await;
    waiting.abort();
    assert_eq!(
        view.job("lists_build").and_then(|job| job.failure_reason),
        Some(FailureReason::MissingDependencyFailure)
    );
}

const WITH_GENERATED_CHILD: &str = "
stages: [build, test]
gen: {stage: build, script: [x], artifacts: {paths: [g.yml]}}
c: {stage: test, trigger: {include: [{artifact: g.yml, job: gen}], strategy: depend}}
";

async fn create_with_generated_child(harness: &Harness, child_yaml: &str) -> PipelineId {
    let manager = harness.manager().await;
    let id = harness.create_from(WITH_GENERATED_CHILD, Files(Vec::new()), &[]).await;
    let gen_job = manager.next_job().await;
    manager.upload(&gen_job, ("archive", "zip", None), zip_of("g.yml", child_yaml)).await.expect("failed to store");
    manager.succeed(&gen_job).await;
    id
}

#[tokio::test]
async fn c191_child_configuration_comes_from_a_job_archive() {
    let harness = Harness::open().await;
    let id = create_with_generated_child(&harness, "x: {script: [y]}").await;
    let child = child_of(&harness, id, "c").await;
    let manager = harness.manager().await;
    let x = manager.next_job().await;
    assert_eq!((x.job_info.name.as_str(), x.job_info.pipeline_id), ("x", child.0));
    assert_eq!(harness.status(id, "c").await, JobStatus::Running);
    manager.succeed(&x).await;
    assert_eq!(harness.view(child).await.summary.status, JobStatus::Success);
    assert_eq!(harness.view(id).await.summary.status, JobStatus::Success);
    let parent = harness.view(child).await.summary.parent.expect("no parent");
    assert_eq!((parent.pipeline, parent.bridge), (id, harness.job(id, "c").await.id));
}

#[tokio::test]
async fn c191_invalid_generated_configuration_fails_the_bridge() {
    let harness = Harness::open().await;
    let id = create_with_generated_child(&harness, "x: {script: [y], rules: [{when: never}]}").await;
    let (reason, message) = failure_of(&harness, id, "c").await;
    assert_eq!(reason, Some(FailureReason::DownstreamPipelineCreationFailed));
    assert!(message.contains("rules"), "{message}");

    let id = create_with_generated_child(&harness, "x: {script: [y], colour: red}").await;
    let (_, message) = failure_of(&harness, id, "c").await;
    assert!(message.contains("g.yml") && message.contains(":1:") && message.contains("colour"), "{message}");

    // The job succeeds without an archive.
    let manager = harness.manager().await;
    let id = harness.create_from(WITH_GENERATED_CHILD, Files(Vec::new()), &[]).await;
    manager.succeed(&manager.next_job().await).await;
    let (_, message) = failure_of(&harness, id, "c").await;
    assert!(message.contains("`gen`") && message.contains("g.yml"), "{message}");
}

const FORWARDING: &str = "
variables: {V: '1'}
plain: {trigger: {include: a.yml}}
closed: {trigger: {include: a.yml, forward: {yaml_variables: false}}}
open: {trigger: {include: a.yml, forward: {pipeline_variables: true}}}
";

#[tokio::test]
async fn c193_bridge_forwards_the_configured_variables() {
    let harness = Harness::open().await;
    let manager = harness.manager().await;
    let child_yaml = "print: {script: [x]}\ndeeper: {trigger: {include: b.yml}}";
    let files = Files(vec![("a.yml", child_yaml), ("b.yml", "leaf: {script: [x]}")]);
    let id = harness.create_from(FORWARDING, files, &[("R", "run")]).await;
    let mut children = Vec::new();
    for name in ["plain", "closed", "open"] {
        children.push(child_of(&harness, id, name).await);
    }
    let grandchild = child_of(&harness, children[2], "deeper").await;
    let mut seen = Vec::new();
    // The three children and the three grandchildren have one script job each.
    for _ in 0..6 {
        let assigned = manager.next_job().await;
        let variable = |name| value(&assigned, name).map(ToOwned::to_owned);
        seen.push((PipelineId(assigned.job_info.pipeline_id), variable("V"), variable("R")));
        manager.succeed(&assigned).await;
    }
    let values_in = |pipeline| {
        let (_, v, r) = seen.iter().find(|(id, ..)| *id == pipeline).expect("did not run");
        (v.as_deref(), r.as_deref())
    };
    assert_eq!(values_in(children[0]), (Some("1"), None));
    assert_eq!(values_in(children[1]), (None, None));
    assert_eq!(values_in(children[2]), (Some("1"), Some("run")));
    assert_eq!(values_in(grandchild).1, None, "pipeline variables must only be forwarded to direct children");
}

#[tokio::test]
async fn c194_child_has_variables_about_its_upstream() {
    let harness = Harness::open().await;
    let manager = harness.manager().await;
    let child = "
as_child: {script: [x], rules: [{if: '$CI_PIPELINE_SOURCE == \"parent_pipeline\"'}]}
as_push: {script: [x], rules: [{if: '$CI_PIPELINE_SOURCE == \"push\"'}]}
";
    let id = harness.create_from("c: {trigger: {include: a.yml}}", Files(vec![("a.yml", child)]), &[]).await;
    let child = child_of(&harness, id, "c").await;
    let names: Vec<_> = harness.view(child).await.jobs.into_iter().map(|job| job.name).collect();
    assert_eq!(names, ["as_child"]);
    let assigned = manager.next_job().await;
    assert_eq!(value(&assigned, "CI_PIPELINE_SOURCE"), Some("parent_pipeline"));
    assert_eq!(value(&assigned, "CI_UPSTREAM_PIPELINE_ID"), Some(id.to_string().as_str()));
    assert_eq!(value(&assigned, "CI_PIPELINE_ID"), Some(child.to_string().as_str()));
}

#[tokio::test]
async fn c195_third_level_of_child_pipelines_is_rejected() {
    let harness = Harness::open().await;
    let files = Files(vec![
        ("a.yml", "one: {trigger: {include: b.yml}}"),
        ("b.yml", "two: {trigger: {include: c.yml}}"),
        ("c.yml", "leaf: {script: [x]}"),
    ]);
    let id = harness.create_from("zero: {trigger: {include: a.yml}}", files, &[]).await;
    let first = child_of(&harness, id, "zero").await;
    let second = child_of(&harness, first, "one").await;
    let (reason, _) = failure_of(&harness, second, "two").await;
    assert_eq!(reason, Some(FailureReason::ReachedMaxDescendantPipelinesDepth));
}

#[tokio::test]
async fn trigger_of_another_project_fails_with_a_message() {
    let harness = Harness::open().await;
    let id = harness.create_from("c: {trigger: group/other}", Files(Vec::new()), &[]).await;
    let (reason, message) = failure_of(&harness, id, "c").await;
    assert_eq!(reason, Some(FailureReason::DownstreamBridgeProjectNotFound));
    assert!(message.contains("`group/other`"), "{message}");
}

#[tokio::test]
async fn child_pipeline_of_a_waiting_bridge_is_created_after_a_restart() {
    let before = Harness::open().await;
    let manager = before.manager().await;
    let files = || Files(vec![("a.yml", "leaf: {script: [x]}")]);
    let yaml = "stages: [build, test]\nb: {stage: build, script: [x]}\nc: {stage: test, trigger: {include: a.yml}}";
    let id = before.create_from(yaml, files(), &[]).await;
    let after = before.restart_after_kill().await;
    after.coordinator.attach_sources(id, std::sync::Arc::new(files())).await.expect("failed to attach");
    let manager = manager.connected_to(&after);
    manager.succeed(&manager.next_job().await).await;
    child_of(&after, id, "c").await;
    assert_eq!(manager.next_job().await.job_info.name, "leaf");
}

#[tokio::test]
async fn bridge_waits_for_sources_after_a_restart() {
    let before = Harness::open().await;
    let (unblock, blocked) = std::sync::mpsc::channel();
    let stuck = std::sync::Arc::new(BlockingFiles(std::sync::Mutex::new(blocked)));
    let id = before.create_with("c: {trigger: {include: a.yml}}", stuck, &[]).await;
    let [with_sources, without_sources] = [before.restart_after_kill().await, before.restart_after_kill().await];
    drop(unblock);

    assert_eq!(with_sources.status(id, "c").await, JobStatus::Pending);
    let files = Files(vec![("a.yml", "leaf: {script: [x]}")]);
    with_sources.coordinator.attach_sources(id, std::sync::Arc::new(files)).await.expect("failed to attach");
    child_of(&with_sources, id, "c").await;

    assert_eq!(without_sources.status(id, "c").await, JobStatus::Pending);
    without_sources.clock.advance(Duration::from_secs(60));
    let (_, message) = failure_of(&without_sources, id, "c").await;
    assert!(message.contains("attached"), "{message}");
}

#[tokio::test]
async fn c197_job_that_times_out_fails_with_the_timeout_reason() {
    let harness = Harness::open().await;
    let manager = harness.manager_with(RunnerSpec {
        run_untagged: true,
        maximum_timeout: Some(Duration::from_secs(600)),
        ..RunnerSpec::default()
    });
    let manager = manager.await;
    let yaml = "t: {timeout: 2 seconds, script: [sleep 60]}\nu: {script: [x]}";
    let id = harness.create_from(yaml, Files(Vec::new()), &[]).await;
    let (t, u) = (manager.next_job().await, manager.next_job().await);
    assert_eq!(
        (t.runner_info.timeout, u.runner_info.timeout),
        (2, 600),
        "the timeout must be that of the job or project, but at most the runner's maximum"
    );
    manager.fail(&t, "job_execution_timeout", None).await;
    let view = harness.job(id, "t").await;
    assert_eq!((view.status, view.failure_reason), (JobStatus::Failed, Some(FailureReason::JobExecutionTimeout)));
}

#[tokio::test]
async fn c198_job_without_matching_runner_is_reported_as_stuck() {
    let harness = Harness::open().await;
    let mut gpu = job("train");
    gpu.tags = vec!["gpu".to_owned()];
    let id = harness.create(vec![vec![gpu, job("plain")]]).await;
    let stuck = harness.coordinator.stuck_jobs().await.expect("the coordinator is not running");
    assert!(stuck.iter().all(|job| job.reason == "no runner exists"), "{stuck:?}");
    let manager = harness.manager().await;
    let stuck = harness.coordinator.stuck_jobs().await.expect("the coordinator is not running");
    assert_eq!(stuck.len(), 1);
    assert_eq!((stuck[0].name.as_str(), stuck[0].reason.as_str()), ("train", "no runner has the tag `gpu`"));
    let plain = manager.next_job().await;
    assert_eq!(plain.job_info.name, "plain");
    manager.succeed(&plain).await;
    assert_eq!(harness.status(id, "train").await, JobStatus::Pending);
    // After an hour without a matching runner, the job fails (docs/spec/pipeline-yaml.md, section 5.10).
    harness.clock.advance(Duration::from_secs(3600));
    let view = harness.wait_until(id, |view| status(view, "train") == Some(JobStatus::Failed)).await;
    let reason = view.job("train").and_then(|job| job.failure_reason);
    assert_eq!(reason, Some(FailureReason::StuckPendingNoMatchingRunners));
}

#[tokio::test]
async fn new_runner_gets_the_stuck_job() {
    let harness = Harness::open().await;
    let mut gpu = job("train");
    gpu.tags = vec!["gpu".to_owned()];
    harness.create(vec![vec![gpu]]).await;
    let settings = RunnerSpec { tags: vec!["gpu".to_owned(), "linux".to_owned()], ..RunnerSpec::default() };
    assert_eq!(harness.manager_with(settings).await.next_job().await.job_info.name, "train");
}

#[tokio::test]
async fn played_job_gets_the_entered_variables_and_retry_adds_an_attempt() {
    let harness = Harness::open().await;
    let manager = harness.manager().await;
    let yaml = "m: {script: [x], when: manual}\nb: {script: [y]}";
    let id = harness.create_from(yaml, Files(Vec::new()), &[]).await;
    manager.fail(&manager.next_job().await, "script_failure", Some(1)).await;
    let manual = harness.job(id, "m").await;
    assert_eq!(manual.status, JobStatus::Manual);
    harness.coordinator.play_job(manual.id, vec![Variable::public("TYPED", "yes")]).await.expect("was not started");
    let m = manager.next_job().await;
    assert_eq!(value(&m, "TYPED"), Some("yes"));
    manager.succeed(&m).await;
    assert!(harness.coordinator.play_job(manual.id, Vec::new()).await.is_err(), "an ended job must not start");
    let failed = harness.job(id, "b").await;
    let retry = harness.coordinator.retry_job(failed.id).await.expect("was not retried");
    assert_ne!(retry, failed.id);
    let b = manager.next_job().await;
    assert_eq!(b.id, retry);
    manager.succeed(&b).await;
    let view = harness.view(id).await;
    assert_eq!(view.summary.status, JobStatus::Success);
    let records: Vec<_> =
        view.jobs.iter().filter(|job| job.name == "b").map(|job| (job.attempt, job.retried)).collect();
    assert_eq!(records, [(1, true), (2, false)]);
}

#[tokio::test]
async fn pipeline_with_a_cycle_of_needs_is_rejected() {
    let harness = Harness::open().await;
    let mut cycle = job("a");
    let need =
        |name: &str| muster_pipeline::model::Need::Job { name: name.to_owned(), artifacts: true, optional: false };
    cycle.needs = Some(vec![need("a")]);
    let new = crate::support::new_pipeline(pipeline(vec![vec![cycle]]), std::sync::Arc::new(Files(Vec::new())));
    let error = harness.coordinator.create_pipeline(new).await.expect_err("a cycle must be rejected");
    assert!(error.to_string().contains("`a`"), "{error}");
    assert!(harness.coordinator.pipelines(None, 10).await.expect("the coordinator is not running").is_empty());
}
