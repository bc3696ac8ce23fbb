//! `gitlab-runner run-single`: its limits on jobs and waiting time.

use muster_job::{JobId, JobStatus};
use muster_runner_api::test_support::RUNNER_TOKEN;
use rustix::process::Signal;

use super::harness::Harness;

#[tokio::test(flavor = "multi_thread")]
async fn max_builds_limits_the_number_of_jobs() {
    let harness = Harness::start(1).await;
    for id in 1..=3 {
        harness.push(0, id);
        harness.release_job(id);
    }
    let run = harness.run_single(&[&harness.flags(0)[..], &["--name", "single", "--max-builds", "2"]].concat());
    for id in [1, 2] {
        let job = harness.wait_for_end(0, id).await;
        assert_eq!(job.status, JobStatus::Success, "{}", job.text());
        assert!(job.text().contains("on single "), "{}", job.text());
    }
    run.wait_for_log("This runner has received its last job", 1).await;
    assert_eq!(run.wait_for_exit_code().await, 0);
    let third = harness.coordinator(0).job(JobId(3)).unwrap();
    assert_eq!((third.status, third.assignments), (JobStatus::Pending, 0));
    assert_eq!(harness.coordinator(0).runner_tokens(), [RUNNER_TOKEN], "the runner must remain registered");
    assert!(!harness.config_path().exists(), "the configuration file must not be created");
}

#[tokio::test(flavor = "multi_thread")]
async fn manager_exits_if_no_further_job_arrives_within_the_wait_timeout() {
    let harness = Harness::start(1).await;
    harness.push(0, 1);
    let run = harness.run_single(&[&harness.flags(0)[..], &["--wait-timeout", "1"]].concat());
    harness.wait_for_start(0, 1).await;
    harness.release_job(1);
    assert_eq!(harness.wait_for_end(0, 1).await.status, JobStatus::Success);
    run.wait_for_log("This runner has not received a job within its wait timeout", 1).await;
    assert_eq!(run.wait_for_exit_code().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn runner_flag_selects_an_entry_of_the_file() {
    let harness = Harness::start(2).await;
    harness.configure(&format!("concurrent = 4\n{}{}", harness.entry(0), harness.entry(1)));
    harness.push(1, 1);
    harness.release_job(1);
    let run = harness.run_single(&["--runner", "runner-1", "--env", "GREETING=hello", "--max-builds", "1"]);
    let job = harness.wait_for_end(1, 1).await;
    assert_eq!(job.status, JobStatus::Success, "{}", job.text());
    assert!(job.text().contains("on runner-1 "), "{}", job.text());
    assert_eq!(run.wait_for_exit_code().await, 0);
    let run_single = |flags: &[&str]| {
        let config = harness.config_path();
        harness.home.run(&[&["run-single", "--config", config.to_str().unwrap()], flags].concat())
    };
    run_single(&["--runner", "missing"]).check(1, &["has no runner `missing`"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn sigquit_waits_for_the_job_and_sigterm_cancels_it() {
    let harness = Harness::start(1).await;
    harness.push(0, 1);
    let run = harness.run_single(&harness.flags(0));
    harness.wait_for_start(0, 1).await;
    run.signal(Signal::QUIT);
    run.wait_for_log("Starting graceful shutdown", 1).await;
    harness.release_job(1);
    assert_eq!(harness.wait_for_end(0, 1).await.status, JobStatus::Success);
    assert_eq!(run.wait_for_exit_code().await, 0);

    harness.push(0, 2);
    let run = harness.run_single(&[&harness.flags(0)[..], &["--shutdown-timeout", "20"]].concat());
    harness.wait_for_start(0, 2).await;
    run.signal(Signal::TERM);
    run.wait_for_log("1 job is aborted within 20 s", 1).await;
    let job = harness.wait_for_end(0, 2).await;
    assert_eq!(job.updates.last().unwrap().failure_reason.as_deref(), Some("runner_interrupted"), "{}", job.text());
    assert_eq!(run.wait_for_exit_code().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_start_reports_the_reason() {
    let harness = Harness::start(1).await;
    let run_single = |flags: &[&str]| harness.home.run(&[&["run-single"], flags].concat());
    run_single(&[]).check(1, &["Missing URL"]);
    run_single(&["--url", "http://localhost"]).check(1, &["Missing Token"]);
    run_single(&["--url", "http://localhost", "--token", "t"]).check(1, &["Missing Executor"]);
    let known = ["--url", "http://localhost", "--token", "t", "--executor"];
    run_single(&[&known[..], &["nonsense"]].concat()).check(1, &["nonsense", "invalid runner"]);
    // A known executor that is not supported yet.
    run_single(&[&known[..], &["virtualbox"]].concat()).check(1, &["virtualbox", "invalid runner"]);
    run_single(&["--max-builds", "many"]).check(1, &["many"]);
}
