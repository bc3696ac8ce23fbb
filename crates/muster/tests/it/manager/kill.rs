//! `kill -9` of the manager at random points of a job. The job must end with the right result, each byte of its log
//! must arrive once, and its script must start once.

use muster_job::{JobId, JobStatus};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

use super::support::{self, Harness, ManagerProcess};
use crate::process::until;

const LINES: usize = 60;

/// Script that records its start, and then prints lines for about a second.
const SCRIPT: &str = r#"echo started >> "$HOME_OF_TEST/started"
i=0; while [ $i -lt 60 ]; do i=$((i + 1)); printf 'line %d %0*d\n' $i $((i * 7 % 90 + 1)) 0; sleep 0.015; done
exit 7"#;

/// Returns the seed of `MUSTER_TEST_SEED`, or a random one. Prints the seed, so that a failure can be repeated.
fn seed() -> u64 {
    let seed = std::env::var("MUSTER_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    println!("MUSTER_TEST_SEED={seed}");
    seed
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_manager_loses_no_job_and_no_byte() {
    let mut rng = StdRng::seed_from_u64(seed());
    let harness = Harness::start().await;
    harness.push(1, &[SCRIPT], json!({}));
    let mut manager = harness.manager(&[]);
    // Kill the manager before its first request, or while it requests a job, starts the job or sends the log.
    for _ in 0..6 {
        let events = rng.random_range(0..8);
        println!("after {events} events at the coordinator");
        tokio::select! {
            () = harness.coordinator.wait_for_events(events) => {}
            _ = harness.coordinator.wait_for_end(JobId(1)) => {}
        }
        manager = kill_and_restart(&harness, manager).await;
    }
    let job = harness.coordinator.wait_for_end(JobId(1)).await;
    check(&harness, &job);
    harness.wait_for_empty_spool().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_manager_resumes_at_the_acknowledged_byte() {
    let mut rng = StdRng::seed_from_u64(seed());
    let harness = Harness::start().await;
    harness.push(1, &[SCRIPT], json!({}));
    let mut manager = harness.manager(&[]);
    let mut lines_received = 0;
    while lines_received < LINES {
        let next_line = format!("line {} ", (lines_received + rng.random_range(1..20)).min(LINES));
        let job = harness.coordinator.wait_for(JobId(1), |job| job.text().contains(&next_line)).await;
        lines_received = job.text().matches("line ").count();
        manager = kill_and_restart(&harness, manager).await;
    }
    let job = harness.coordinator.wait_for_end(JobId(1)).await;
    check(&harness, &job);
}

#[tokio::test(flavor = "multi_thread")]
async fn job_that_ends_without_manager_is_reported_later() {
    let harness = Harness::start().await;
    harness.push(1, &[&format!("{SCRIPT}; touch \"$HOME_OF_TEST/never\"")], json!({}));
    let manager = harness.manager(&[]);
    harness.coordinator.wait_for(JobId(1), |job| job.text().contains("line 3 ")).await;
    manager.kill().await;
    // The agent continues: wait for its result in the spool.
    until(async || match harness.spool_text() {
        text if text.contains("Job failed") => Ok(()),
        text => Err(format!("the agent did not finish the job: {text}")),
    })
    .await;
    let _manager = harness.manager(&[]);
    let job = harness.coordinator.wait_for_end(JobId(1)).await;
    check(&harness, &job);
}

async fn kill_and_restart(harness: &Harness, manager: ManagerProcess) -> ManagerProcess {
    manager.kill().await;
    harness.manager(&[])
}

fn check(harness: &Harness, job: &muster_runner_api::test_support::Job) {
    let text = job.text();
    assert_eq!((job.status, job.assignments), (JobStatus::Failed, 1), "{text}");
    let last = job.updates.last().unwrap();
    assert_eq!((last.failure_reason.as_deref(), last.exit_code), (Some("script_failure"), Some(7)), "{text}");
    support::check_report(job);
    for number in 1..=LINES {
        let line = format!("line {number} {}\n", "0".repeat(number * 7 % 90 + 1));
        assert_eq!(text.matches(&line).count(), 1, "`{line}` in:\n{text}");
    }
    assert_eq!(
        std::fs::read_to_string(harness.path("started")).unwrap(),
        "started\n",
        "the script must start exactly once"
    );
}
