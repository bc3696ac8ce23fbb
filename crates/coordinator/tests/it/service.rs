//! The service for runner managers: requests, traces, reports, registration.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use muster_coordinator::RunnerSpec;
use muster_coordinator::clock::SystemClock;
use muster_coordinator::views::{Event, JobView};
use muster_job::invariants::{InvariantMonitor, JobSnapshot, at_most};
use muster_job::{FailureReason, JobStatus, Variable};
use muster_runner_api::service::{RunnerService, ServiceError};
use muster_runner_api::wire::{Output, RegisterRequest, TokenRequest};
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::support::{Harness, Manager, TIMEOUT, forbidden, job, job_with};

#[tokio::test]
async fn job_runs_from_request_to_success() {
    let harness = Harness::open().await;
    let manager = harness.manager().await;
    let pipeline = harness.create(vec![vec![job("build")], vec![job("test")]]).await;

    let build = manager.next_job().await;
    assert_eq!((build.job_info.name.as_str(), build.job_info.pipeline_id), ("build", pipeline.0));
    manager.report_running(&build).await;
    let answer = manager.log(&build, 0, "hello\n").await.expect("was not accepted");
    assert_eq!((answer.accepted, answer.size, answer.status), (true, 6, JobStatus::Running));
    assert_eq!(harness.status(pipeline, "test").await, JobStatus::Created);
    assert_eq!(manager.succeed(&build).await, JobStatus::Success);

    let test = manager.next_job().await;
    assert_eq!(test.job_info.name, "test");
    manager.fail(&test, "script_failure", Some(3)).await;
    let view = harness.view(pipeline).await;
    assert_eq!(view.summary.status, JobStatus::Failed);
    let test = view.job("test").expect("no job `test`");
    assert_eq!((test.exit_code, test.failure_reason), (Some(3), Some(FailureReason::ScriptFailure)));
    assert!(test.queued_at.is_some() && test.started_at.is_some() && test.finished_at.is_some());
    assert_eq!(harness.coordinator.read_trace(build.id, 0).await.expect("failed to read"), "hello\n");
}

#[tokio::test]
async fn recovery_of_a_trace_from_a_full_disk_is_reported_once() {
    let harness = Harness::open().await;
    let manager = harness.manager().await;
    harness.create(vec![vec![job("a")]]).await;
    let assigned = manager.next_job().await;
    let mut events = harness.coordinator.subscribe();
    let trace = harness.dir.path().join("traces").join(format!("{}.log", assigned.id));
    std::os::unix::fs::symlink("/dev/full", &trace).expect("failed to link to a disk that is always full");
    let error = manager.log(&assigned, 0, "hello").await.expect_err("wrote to a full disk");
    assert!(matches!(error, ServiceError::StorageFull(_)), "{error}");
    std::fs::remove_file(&trace).expect("failed to delete the link");
    manager.log(&assigned, 0, "hello").await.expect("was not accepted");
    manager.log(&assigned, 5, " again").await.expect("was not accepted");
    manager.succeed(&assigned).await;
    // The coordinator processes the commands in order, so it has sent all events about the trace before it accepted the
    // success.
    let mut problems = Vec::new();
    while let Ok(event) = events.try_recv() {
        if let Event::StorageProblem(problem) = event {
            problems.push(problem.is_some());
        }
    }
    assert_eq!(problems, [true, false]);
}

#[tokio::test]
async fn held_request_gets_the_next_job() {
    let harness = Harness::open().await;
    let manager = harness.manager().await;
    let waiting = tokio::spawn({
        let manager = manager.clone();
        async move { manager.next_job().await }
    });
    let pipeline = harness.create(vec![vec![job("a")]]).await;
    // The clock stands still, so only the new job can have ended the request.
    let payload = tokio::time::timeout(TIMEOUT, waiting).await.expect("no answer in time").expect("panicked");
    assert_eq!(payload.job_info.pipeline_id, pipeline.0);
}

#[tokio::test]
async fn held_request_ends_after_the_long_poll_time() {
    let harness = Harness::with(|options| options.long_poll = Duration::from_secs(50)).await;
    let manager = harness.manager().await;
    let request = manager.request(None);
    let waiting = tokio::spawn({
        let coordinator = Arc::clone(&harness.coordinator);
        async move { coordinator.request_job(request).await }
    });
    let answer = tokio::time::timeout(TIMEOUT, async {
        let mut waiting = waiting;
        loop {
            // The request may not be held yet when the clock is moved for the first time.
            harness.clock.advance(Duration::from_secs(50));
            harness.handle_commands_and_timers().await;
            tokio::task::yield_now().await;
            if waiting.is_finished() {
                return (&mut waiting).await.expect("panicked");
            }
        }
    })
    .await
    .expect("did not end")
    .expect("the request was rejected");
    assert!(answer.job.is_none() && !answer.last_update.is_empty());
}

#[tokio::test]
async fn queue_version_changes_only_when_a_job_is_added() {
    let harness = Harness::with(|options| options.long_poll = Duration::ZERO).await;
    let tagged = harness.manager_with(RunnerSpec { tags: vec!["x".to_owned()], ..RunnerSpec::default() }).await;
    let last_update = || async {
        harness.coordinator.request_job(tagged.request(None)).await.expect("the request was rejected").last_update
    };
    let before = last_update().await;
    assert_eq!(last_update().await, before);
    harness.create(vec![vec![job("untagged")]]).await;
    assert_ne!(last_update().await, before);
}

#[tokio::test]
async fn twenty_managers_run_each_of_300_jobs_once() {
    let harness = Harness::with(|options| options.clock = Arc::new(SystemClock::new())).await;
    let manager = harness.manager().await;
    let mut events = harness.coordinator.subscribe();
    let monitoring = tokio::spawn(async move {
        let mut monitor = InvariantMonitor::default();
        let mut assignments = std::collections::HashMap::new();
        while let Ok(event) = events.recv().await {
            if let Event::JobChanged(view) = event {
                let assignment = assignments.entry(view.id).or_insert(0);
                if view.status.is_on_runner() {
                    *assignment = 1;
                }
                monitor
                    .record(view.id, JobSnapshot { status: view.status, assignment: *assignment, is_active: false })
                    .expect("invariant J1 or J2 of ARCHITECTURE.md was violated");
            }
        }
    });
    let stages = (0..3).map(|stage| (0..100).map(|index| job(&format!("{stage}-{index}"))).collect()).collect();
    let pipeline = harness.create(stages).await;
    let stop = CancellationToken::new();
    let mut managers = JoinSet::new();
    for _ in 0..20 {
        let (manager, stop) = (manager.clone(), stop.clone());
        managers.spawn(async move {
            let mut done = Vec::new();
            loop {
                let Some(job) = stop.run_until_cancelled(manager.next_job()).await else { return done };
                manager.report_running(&job).await;
                let text = format!("log of {}\n", job.id);
                manager.log(&job, 0, &text).await.expect("was not accepted");
                assert!(
                    !manager.log(&job, 0, &text).await.expect("no answer").accepted,
                    "the same bytes must be rejected"
                );
                manager.succeed(&job).await;
                assert_eq!(
                    manager.succeed(&job).await,
                    JobStatus::Success,
                    "the repeated report must get the same answer"
                );
                done.push(job.id);
            }
        });
    }
    let view = harness.wait_until(pipeline, |view| view.summary.status == JobStatus::Success).await;
    assert!(view.jobs.iter().all(|job| job.status == JobStatus::Success && job.attempt == 1));
    stop.cancel();
    let done: Vec<_> = managers.join_all().await.into_iter().flatten().collect();
    assert_eq!(done.len(), 300);
    assert_eq!(done.iter().collect::<BTreeSet<_>>().len(), 300);
    for id in done {
        assert_eq!(harness.coordinator.read_trace(id, 0).await.expect("failed to read"), format!("log of {id}\n"));
    }
    harness.coordinator.shutdown().await;
    drop(harness);
    drop(manager);
    tokio::time::timeout(TIMEOUT, monitoring)
        .await
        .expect("the events did not end in time")
        .expect("an invariant was violated");
}

/// The group contains `j0`, `j2`, ...
fn is_grouped(name: &str) -> bool {
    name[1..].parse::<u8>().is_ok_and(|index| index % 2 == 0)
}

#[tokio::test]
async fn jobs_of_a_resource_group_run_one_at_a_time() {
    let harness = Harness::with(|options| options.clock = Arc::new(SystemClock::new())).await;
    let manager = harness.manager().await;
    let jobs = (0..12).map(|index| {
        let mut job = job(&format!("j{index}"));
        job.resource_group = is_grouped(&job.name).then(|| "one".to_owned());
        job
    });
    let pipeline = harness.create(vec![jobs.collect()]).await;
    let mut workers = JoinSet::new();
    // The first job of the group and the six jobs outside the group wait for each other, so they must run in parallel.
    let barrier = Arc::new(Barrier::new(7));
    for _ in 0..12 {
        let (manager, barrier) = (manager.clone(), barrier.clone());
        workers.spawn(async move {
            let job = manager.next_job().await;
            manager.report_running(&job).await;
            if is_grouped(&job.job_info.name) == (job.job_info.name == "j0") {
                barrier.wait().await;
            }
            manager.succeed(&job).await;
        });
    }
    tokio::time::timeout(TIMEOUT, workers.join_all())
        .await
        .expect("a job of the group and the six jobs outside the group must run in parallel");
    let view = harness.view(pipeline).await;
    let (grouped, ungrouped): (Vec<_>, Vec<_>) = view.jobs.iter().partition(|job| is_grouped(&job.name));
    let times = |jobs: Vec<&JobView>| {
        jobs.into_iter().map(|job| (job.started_at.expect("did not run"), job.finished_at)).collect::<Vec<_>>()
    };
    let grouped = times(grouped);
    at_most(1, grouped).expect("jobs of the resource group must run one at a time");
    at_most(1, times(ungrouped)).expect_err("jobs outside the group must run in parallel");
}

#[tokio::test]
async fn trace_accepts_each_byte_once() {
    let harness = Harness::open().await;
    let manager = harness.manager().await;
    harness.create(vec![vec![job("a")]]).await;
    let job = manager.next_job().await;
    assert_eq!(manager.log(&job, 0, "one ").await.expect("was not accepted").size, 4);
    let repeated = manager.log(&job, 0, "one ").await.expect("no answer");
    assert_eq!((repeated.accepted, repeated.size), (false, 4));
    let gap = manager.log(&job, 9, "x").await.expect("no answer");
    assert_eq!((gap.accepted, gap.size), (false, 4));
    assert_eq!(manager.log(&job, 4, "two").await.expect("was not accepted").size, 7);
    // A wrong checksum is only logged. The report of the runner is accepted.
    let output = Output { checksum: Some("crc32:00000000".to_owned()), bytesize: Some(7) };
    let ended = manager.update(&job, "success", |request| request.output = output).await.expect("was not accepted");
    assert_eq!(ended.status, JobStatus::Success);
    assert_eq!(harness.coordinator.read_trace(job.id, 0).await.expect("failed to read"), "one two");
}

#[tokio::test]
async fn too_large_trace_fails_the_job() {
    let harness = Harness::with(|options| options.limits.trace_bytes = 10).await;
    let manager = harness.manager().await;
    let pipeline = harness.create(vec![vec![job("a")]]).await;
    let assigned = manager.next_job().await;
    manager.log(&assigned, 0, "0123456789").await.expect("was not accepted");
    assert_eq!(forbidden(manager.log(&assigned, 10, "x").await), Some(JobStatus::Failed));
    assert_eq!(harness.job(pipeline, "a").await.failure_reason, Some(FailureReason::TraceSizeExceeded));
}

#[tokio::test]
async fn repeated_final_report_changes_nothing() {
    let harness = Harness::open().await;
    let manager = harness.manager().await;
    harness.create(vec![vec![job("a")]]).await;
    let assigned = manager.next_job().await;
    manager.fail(&assigned, "from_the_future", None).await;
    assert_eq!(manager.fail(&assigned, "from_the_future", None).await, JobStatus::Failed);
    assert_eq!(forbidden(manager.update(&assigned, "success", |_| {}).await), Some(JobStatus::Failed));
    assert_eq!(forbidden(manager.log(&assigned, 0, "late").await), Some(JobStatus::Failed));
    let view = harness.coordinator.job(assigned.id).await.expect("no job");
    assert_eq!(view.failure_reason, Some(FailureReason::UnknownFailure));
}

#[tokio::test]
async fn job_that_succeeds_while_canceling_is_canceled() {
    let harness = Harness::open().await;
    let manager = harness.manager().await;
    let pipeline = harness.create(vec![vec![job("a")], vec![job("b")]]).await;
    let assigned = manager.next_job().await;
    manager.report_running(&assigned).await;
    harness.coordinator.cancel_pipeline(pipeline).await.expect("was not canceled");
    let answer = manager.log(&assigned, 0, "cleaning up").await.expect("was not accepted");
    assert_eq!((answer.accepted, answer.status), (true, JobStatus::Canceling));
    assert_eq!(manager.succeed(&assigned).await, JobStatus::Canceled);
    assert_eq!(manager.succeed(&assigned).await, JobStatus::Canceled);
    assert_eq!(harness.view(pipeline).await.summary.status, JobStatus::Canceled);
}

#[tokio::test]
async fn cancel_is_immediate_without_graceful_support() {
    let harness = Harness::open().await;
    let mut manager = harness.manager().await;
    manager.info.features.remove("cancel_gracefully");
    let pipeline = harness.create(vec![vec![job("a")]]).await;
    let assigned = manager.next_job().await;
    manager.report_running(&assigned).await;
    harness.coordinator.cancel_pipeline(pipeline).await.expect("was not canceled");
    assert_eq!(forbidden(manager.log(&assigned, 0, "x").await), Some(JobStatus::Canceled));
}

#[tokio::test]
async fn job_tokens_are_valid_for_one_job() {
    let harness = Harness::open().await;
    let manager = harness.manager().await;
    harness.create(vec![vec![job("a"), job("b")]]).await;
    let (first, mut second) = (manager.next_job().await, manager.next_job().await);
    second.token = first.token.clone();
    assert_eq!(forbidden(manager.log(&second, 0, "x").await), None);
    second.id = muster_job::JobId(999);
    assert_eq!(forbidden(manager.log(&second, 0, "x").await), None);
    second.token = "glcbt-invented".to_owned();
    assert_eq!(forbidden(manager.update(&second, "success", |_| {}).await), None);
    let bad = manager.update(&first, "invalid", |_| {}).await.expect_err("an invalid state must be rejected");
    assert!(matches!(bad, ServiceError::BadRequest(_)), "{bad}");
}

#[tokio::test]
async fn job_fails_if_the_runner_lacks_a_feature() {
    let harness = Harness::open().await;
    let mut manager = harness.manager().await;
    manager.info.features.remove("return_exit_code");
    let demanding = muster_pipeline::model::Job {
        allow_failure: muster_pipeline::model::AllowFailure::ExitCodes(vec![1]),
        ..job("demanding")
    };
    let pipeline = harness.create(vec![vec![demanding, job("plain")]]).await;
    assert_eq!(manager.next_job().await.job_info.name, "plain");
    assert_eq!(harness.job(pipeline, "demanding").await.failure_reason, Some(FailureReason::RunnerUnsupported));
}

#[tokio::test]
async fn report_sets_coverage_and_environment_url() {
    let harness = Harness::open().await;
    let manager = harness.manager().await;
    let mut covered = job_with("a", |work| work.coverage = Some(r"total: (\d+)%".to_owned()));
    covered.variables = vec![Variable::public("HOST", "example.org")];
    covered.environment = Some(muster_pipeline::model::Environment {
        name: "review".to_owned(),
        url: Some("https://$NAME.$HOST".to_owned()),
        action: "start".to_owned(),
        ..Default::default()
    });
    let pipeline = harness.create(vec![vec![covered]]).await;
    let assigned = manager.next_job().await;
    manager.log(&assigned, 0, "total: 81%\n").await.expect("was not accepted");
    manager.upload(&assigned, ("dotenv", "raw", None), b"NAME=app".to_vec()).await.expect("failed to store");
    let tree = serde_json::json!({"steps": []});
    manager
        .update(&assigned, "success", |request| request.result_tree = Some(tree.clone()))
        .await
        .expect("was not accepted");
    let view = harness.job(pipeline, "a").await;
    assert_eq!((view.coverage, view.result_tree), (Some(81.0), Some(tree.into())));
    assert_eq!(view.environment.and_then(|environment| environment.url).as_deref(), Some("https://app.example.org"));
}

#[tokio::test]
async fn runners_register_verify_reset_and_unregister() {
    let harness = Harness::with(|options| {
        options.registration_token = Some("GR1348941abc".to_owned());
        options.personal_token = Some("glpat-abc".to_owned());
    })
    .await;
    let service: &dyn RunnerService = &*harness.coordinator;
    let wrong = RegisterRequest { token: "other".to_owned(), ..RegisterRequest::default() };
    assert_eq!(forbidden(service.register(wrong).await), None);
    let request = RegisterRequest {
        token: "GR1348941abc".to_owned(),
        tag_list: Some("linux, docker".to_owned()),
        ..RegisterRequest::default()
    };
    let runner = service.register(request).await.expect("was not registered");
    assert!(runner.id > 0 && runner.token_expires_at.is_none());
    let as_manager = |token: &str, system_id: &str| TokenRequest {
        token: token.to_owned(),
        system_id: system_id.to_owned(),
        info: None,
    };
    assert_eq!(
        service.verify(as_manager(&runner.token, "s_1")).await.expect("the runner does not exist").id,
        runner.id
    );
    assert_eq!(forbidden(service.verify(as_manager("unknown", "s_1")).await), None);
    let missing = service
        .unregister_manager(as_manager(&runner.token, "s_2"))
        .await
        .expect_err("a manager that does not exist cannot be deleted");
    assert!(matches!(missing, ServiceError::NotFound(_)), "{missing}");
    service.unregister_manager(as_manager(&runner.token, "s_1")).await.expect("failed to delete");
    let renewed = service.reset_token(runner.token.clone()).await.expect("failed to reset the token");
    assert_eq!(renewed.id, runner.id);
    assert_eq!(forbidden(service.verify(as_manager(&runner.token, "s_1")).await), None);
    let reset_with_pat = async |id: i64, token: &str| service.reset_token_with_pat(id, token.to_owned()).await;
    assert_eq!(forbidden(reset_with_pat(runner.id, "glpat-other").await), None);
    assert!(matches!(reset_with_pat(99, "glpat-abc").await, Err(ServiceError::NotFound(_))));
    let last = reset_with_pat(runner.id, "glpat-abc").await.expect("failed to reset the token");
    assert_eq!(forbidden(service.verify(as_manager(&renewed.token, "s_1")).await), None);
    service.unregister(last.token.clone()).await.expect("failed to delete");
    assert_eq!(forbidden(service.verify(as_manager(&last.token, "s_1")).await), None);
    let next = harness.coordinator.create_runner(RunnerSpec::default()).await.expect("failed to create a runner");
    assert!(next.id > runner.id, "IDs of deleted runners must not be reused");
    let database =
        std::fs::read(harness.dir.path().join("coordinator.db-wal")).expect("failed to read the write-ahead log");
    for token in [&runner.token, &renewed.token, &last.token] {
        assert!(
            !database.windows(token.len()).any(|window| window == token.as_bytes()),
            "stored tokens must be hashed"
        );
    }
}

#[tokio::test]
async fn expired_runner_tokens_are_rejected() {
    let day = Duration::from_secs(24 * 3600);
    let harness = Harness::with(|options| {
        options.registration_token = Some("GR1348941abc".to_owned());
        options.runner_token_lifetime = Some(day);
    })
    .await;
    let service: &dyn RunnerService = &*harness.coordinator;
    let request = RegisterRequest { token: "GR1348941abc".to_owned(), ..RegisterRequest::default() };
    let runner = service.register(request).await.expect("was not registered");
    let first = runner.token_expires_at.clone().expect("no expiry time");
    let verify = |token: &str| service.verify(TokenRequest { token: token.to_owned(), ..TokenRequest::default() });
    assert_eq!(
        verify(&runner.token).await.expect("the runner does not exist").token_expires_at.as_deref(),
        Some(&*first)
    );
    harness.clock.advance(day * 3 / 4);
    let renewed = service.reset_token(runner.token).await.expect("failed to reset the token");
    assert!(renewed.token_expires_at.clone().expect("no expiry time") > first);
    harness.clock.advance(day / 2);
    verify(&renewed.token).await.expect("the renewed token was rejected");
    let harness = harness.restart_after_kill().await;
    harness.clock.advance(day / 2);
    let verify = harness.coordinator.verify(TokenRequest { token: renewed.token, ..TokenRequest::default() });
    assert_eq!(forbidden(verify.await), None, "the expiry time must be stored");
}

#[tokio::test]
async fn registration_and_token_resets_can_be_disabled() {
    let harness = Harness::open().await;
    let rejected =
        harness.coordinator.register(RegisterRequest::default()).await.expect_err("registration must be disabled");
    assert!(matches!(rejected, ServiceError::Gone(_)), "{rejected}");
    let known = harness.coordinator.create_runner(RunnerSpec::default()).await.expect("failed to create a runner");
    assert_eq!(forbidden(harness.coordinator.reset_token_with_pat(known.id, String::new()).await), None);
}

#[tokio::test]
async fn paused_and_unknown_runners_get_no_jobs() {
    let harness = Harness::open().await;
    harness.create(vec![vec![job("a")]]).await;
    let paused = harness.manager_with(RunnerSpec { paused: true, run_untagged: true, ..RunnerSpec::default() }).await;
    let answer = harness.coordinator.request_job(paused.request(None)).await.expect("the request was rejected");
    assert!(answer.job.is_none());
    let unknown = Manager::new(Arc::clone(&harness.coordinator), "glrt-unknown".to_owned());
    assert_eq!(forbidden(harness.coordinator.request_job(unknown.request(None)).await), None);
}
