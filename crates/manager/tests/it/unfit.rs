//! Jobs of which no plan can be made: each is reported, and says no secret while it does.

use muster_runner_api::test_support::Job;
use serde_json::{Value, json};

use crate::bench::{Bench, JOB};

/// How a job with this in its payload ends. It is never started.
async fn ended(more: &Value) -> Job {
    let bench = Bench::start().await;
    bench.push(more);
    let manager = bench.manager().await;
    let job = bench.coordinator.wait_for_end(JOB).await;
    assert_eq!(bench.agent.spool().started, Vec::<String>::new());
    manager.drain().await;
    manager.ended().await.unwrap();
    bench.check_forgotten().await;
    job
}

#[tokio::test]
async fn a_job_whose_description_cannot_be_read_is_reported_as_a_system_failure() {
    let why = "the member `variables[0].value` is not of the kind it is to be";
    let job = ended(&json!({ "muster": { "trace_interval_ms": 5, "unreadable": why } })).await;
    assert!(job.text().contains(&format!("ERROR: Job failed (system failure): {why}")), "{}", job.text());
    assert_eq!(job.reports().next().unwrap().failure_reason.as_deref(), Some("runner_system_failure"));
}

#[tokio::test]
async fn what_the_manager_says_of_a_job_shows_no_masked_value() {
    let token = json!({ "key": "TOK", "value": "supersecretvalue1", "masked": true });
    let whole = json!({ "key": "WHOLE", "value": "key-of-${TOK}", "masked": true });
    let plain = json!({ "key": "PLAIN", "value": "glpat-abcdefgh" });
    let cache = json!([{ "key": "$WHOLE$PLAIN", "policy": "$TOK", "paths": ["p"] }]);
    let job = ended(&json!({ "variables": [token, whole, plain], "cache": cache })).await;
    let text = job.text();
    assert!(text.contains("unknown cache policy [MASKED] for ") && !text.contains("supersecret"), "{text}");
    assert!(!text.contains("glpat-abcdefgh") && !text.contains("key-of-"), "{text}");
    let report = job.reports().next().unwrap();
    assert_eq!(report.output.bytesize, Some(job.trace.len() as u64), "the words' length is that of what is shown");
}
