//! Jobs that cannot be lowered or stored: each is reported, and the report contains no secret.

use std::sync::atomic::Ordering;
use std::time::Duration;

use muster_agent_api::result::Outcome;
use muster_job::{JobId, JobStatus};
use muster_manager::ManagerError;
use muster_runner_api::test_support::Job;
use serde_json::{Value, json};

use crate::harness::{Harness, JOB, RUN, RunningManager};

/// Runs a manager until it has reported a job whose payload has the fields of `extra`. Asserts that the job was not
/// started.
async fn run_until_reported(extra: &Value) -> Job {
    let harness = Harness::start().await;
    harness.push(extra);
    let manager = harness.manager().await;
    let job = harness.coordinator.wait_for_end(JOB).await;
    assert_eq!(harness.agent.spool().started, Vec::<String>::new());
    manager.drain().await;
    manager.ended().await.unwrap();
    harness.assert_no_jobs_stored().await;
    job
}

#[tokio::test]
async fn unreadable_payload_is_system_failure() {
    let reason = "the member `variables[0].value` has the wrong type";
    let job = run_until_reported(&json!({ "muster": { "trace_interval_ms": 5, "decode_error": reason } })).await;
    assert!(job.text().contains(&format!("ERROR: Job failed (system failure): {reason}")), "{}", job.text());
    assert_eq!(job.reports().next().unwrap().failure_reason.as_deref(), Some("runner_system_failure"));
}

#[tokio::test]
async fn manager_messages_mask_secrets() {
    let token = json!({ "key": "TOK", "value": "supersecretvalue1", "masked": true });
    let whole = json!({ "key": "WHOLE", "value": "key-of-${TOK}", "masked": true });
    let plain = json!({ "key": "PLAIN", "value": "glpat-abcdefgh" });
    let cache = json!([{ "key": "$WHOLE$PLAIN", "policy": "$TOK", "paths": ["p"] }]);
    let job = run_until_reported(&json!({ "variables": [token, whole, plain], "cache": cache })).await;
    let text = job.text();
    assert!(text.contains("unknown cache policy [MASKED] for ") && !text.contains("supersecret"), "{text}");
    assert!(!text.contains("glpat-abcdefgh") && !text.contains("key-of-"), "{text}");
    let report = job.reports().next().unwrap();
    assert_eq!(report.output.bytesize, Some(job.trace.len() as u64), "the reported size is that of the masked trace");
}

/// Starts a manager that can no longer store its state once two requests are in flight. Also returns the previous size
/// limit.
async fn manager_with_full_disk(harness: &Harness) -> (RunningManager, u64) {
    let settings = harness.settings(|runner| {
        runner.request_concurrency = 2;
        runner.feature_flags.insert("FF_USE_ADAPTIVE_REQUEST_CONCURRENCY".to_owned(), false);
    });
    let manager = harness.manager_with_settings(settings).await;
    manager.wait_for(|_| harness.coordinator.requests() == 2).await;
    let limit = manager.state_limit.swap(0, Ordering::Relaxed);
    (manager, limit)
}

#[tokio::test]
async fn job_is_held_until_it_can_be_stored() {
    let harness = Harness::start().await;
    let (manager, limit) = manager_with_full_disk(&harness).await;
    harness.push(&json!({}));
    harness.coordinator.wait_for(JOB, |job| job.assignments == 1).await;
    // The first attempt to store the job takes less time than this timeout.
    let started = harness.agent.wait_for(|spool| !spool.started.is_empty());
    assert!(tokio::time::timeout(Duration::from_millis(300), started).await.is_err());
    assert_eq!(harness.coordinator.requests(), 2, "no more jobs are requested meanwhile");
    manager.state_limit.store(limit, Ordering::Relaxed);
    harness.agent.wait_for(|spool| !spool.started.is_empty()).await;
    harness.agent.finish(RUN, Outcome::Success);
    let job = harness.coordinator.wait_for_end(JOB).await;
    assert_eq!((job.status, job.assignments), (JobStatus::Success, 1));
    manager.drain().await;
    manager.ended().await.unwrap();
    harness.assert_no_jobs_stored().await;
}

#[tokio::test]
async fn unstorable_jobs_are_reported_before_exit() {
    let harness = Harness::start().await;
    let (manager, _) = manager_with_full_disk(&harness).await;
    let other = JobId(8);
    harness.push(&json!({}));
    harness.push(&json!({ "id": other.0 }));
    let error = manager.ended().await.unwrap_err();
    assert!(matches!(error, ManagerError::Store(_)), "{error}");
    let message = muster_job::error_chain(&error);
    for id in [JOB, other] {
        let job = harness.coordinator.job(id).unwrap();
        let text = job.text();
        assert_eq!(job.status, JobStatus::Failed, "{text}");
        assert!(text.contains(&format!("(system failure): failed to store the job: {message}")), "{text}");
        assert!(text.contains("/state.log: "), "{text}");
        let report = job.reports().next().unwrap();
        assert_eq!(report.failure_reason.as_deref(), Some("runner_system_failure"));
        assert_eq!(report.output.bytesize, Some(job.trace.len() as u64));
    }
    assert_eq!(harness.coordinator.requests(), 2, "no more jobs were requested");
    assert!(harness.agent.spool().started.is_empty());
}
