//! `muster manager` with its real agent, and a coordinator in memory.

mod kill;
mod observe;
mod spans;
mod support;

use std::time::Duration;

use muster_job::{JobId, JobStatus};
use muster_runner_api::test_support::{Call, Fault};
use serde_json::json;

use support::Harness;

#[tokio::test(flavor = "multi_thread")]
async fn job_runs_and_its_trace_and_result_arrive() {
    let harness = Harness::start().await;
    harness.push(1, &["echo hello", "echo $GREETING"], json!({ "GREETING": "from a variable" }));
    let _manager = harness.manager(&[]);
    let job = harness.coordinator.wait_for_end(JobId(1)).await;
    let text = job.text();
    assert_eq!(job.status, JobStatus::Success, "{text}");
    for line in ["Running with muster", "$ echo hello", "hello", "from a variable", "Job succeeded"] {
        assert!(text.contains(line), "`{line}` is missing in:\n{text}");
    }
    support::check_report(&job);
    harness.wait_for_empty_spool().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failing_script_reports_its_exit_code() {
    let harness = Harness::start().await;
    harness.push(1, &["exit 3"], json!({}));
    let _manager = harness.manager(&[]);
    let job = harness.coordinator.wait_for_end(JobId(1)).await;
    let last = job.updates.last().unwrap();
    assert_eq!((job.status, last.exit_code), (JobStatus::Failed, Some(3)), "{}", job.text());
    assert_eq!(last.failure_reason.as_deref(), Some("script_failure"));
    support::check_report(&job);
}

#[tokio::test(flavor = "multi_thread")]
async fn powershell_reads_the_script_from_stdin() {
    let harness = Harness::start().await;
    // PowerShell is not installed everywhere, so a fake one prints its input.
    harness.create_program("pwsh", "#!/bin/sh\nprintf 'argument %s\\n' \"$@\"\nsed 's/^/read /'\nexit 6\n");
    harness.push(1, &["Write-Output $env:GREETING"], json!({ "GREETING": "it's $$me" }));
    let _manager = harness.manager(&["--shell", "pwsh"]);
    let job = harness.coordinator.wait_for_end(JobId(1)).await;
    assert_eq!((job.status, job.updates.last().unwrap().exit_code), (JobStatus::Failed, Some(6)), "{}", job.text());
    let text = job.text();
    for line in [
        "Using Shell (pwsh) executor...",
        "argument -EncodedCommand\n",
        "read $ErrorActionPreference = \"Stop\"\n",
        "read ${GREETING}=\"it`'s `$me\"\n",
        "read Write-Output $env:GREETING\n",
    ] {
        assert!(text.contains(line), "`{line}` is missing in:\n{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_jobs_share_the_slots() {
    let harness = Harness::start().await;
    for id in 1..=12 {
        harness.push(id, &["echo $CI_CONCURRENT_ID"], json!({}));
    }
    let _manager = harness.manager(&["--concurrent", "4"]);
    for id in 1..=12 {
        let job = harness.coordinator.wait_for_end(JobId(id)).await;
        assert_eq!((job.status, job.assignments), (JobStatus::Success, 1), "{}", job.text());
        support::check_report(&job);
    }
    assert!(harness.coordinator.max_waiting() <= 4);
    harness.wait_for_empty_spool().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_at_the_coordinator_stops_the_script() {
    let harness = Harness::start().await;
    harness.push(1, &["echo begun", "sleep 600"], json!({}));
    let _manager = harness.manager(&[]);
    harness.coordinator.wait_for(JobId(1), |job| job.text().contains("begun\n")).await;
    // The job logs nothing from now on. Its manager learns about the cancel from a keep-alive.
    harness.coordinator.set_status(JobId(1), JobStatus::Canceling);
    let job = harness.coordinator.wait_for_end(JobId(1)).await;
    assert_eq!(job.status, JobStatus::Canceled, "{}", job.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn manager_recovers_from_coordinator_errors() {
    let harness = Harness::start().await;
    use Fault::{FailAfter, FailBefore};
    harness.coordinator.fail(Call::RequestJob, [FailBefore, FailAfter]);
    harness.coordinator.fail(Call::AppendTrace, [FailBefore, FailAfter, FailAfter]);
    harness.coordinator.fail(Call::UpdateJob, [FailBefore]);
    harness.push(1, &["for i in 1 2 3; do echo line $i; done"], json!({}));
    let _manager = harness.manager(&[]);
    let job = harness.coordinator.wait_for_end(JobId(1)).await;
    assert_eq!((job.status, job.assignments), (JobStatus::Success, 1), "{}", job.text());
    support::check_report(&job);
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_manager_cancels_jobs_and_leaves_nothing() {
    let harness = Harness::start().await;
    harness.push(1, &["echo begun", "sleep 600"], json!({}));
    let mut manager = harness.manager(&["--on-stop", "cancel"]);
    harness.coordinator.wait_for(JobId(1), |job| job.text().contains("begun")).await;
    manager.terminate();
    let job = harness.coordinator.wait_for_end(JobId(1)).await;
    // The manager reports a job that it canceled itself as failed.
    assert_eq!(job.status, JobStatus::Failed);
    assert_eq!(job.updates.last().unwrap().failure_reason.as_deref(), Some("runner_interrupted"));
    assert!(manager.wait_for_exit(Duration::from_secs(20)).await.success());
    harness.wait_for_empty_spool().await;
}
