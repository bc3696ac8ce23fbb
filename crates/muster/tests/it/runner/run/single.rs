//! `gitlab-runner run-single`: its limits on jobs and waiting time.

use muster_job::{JobId, JobStatus};
use muster_runner_api::test_support::RUNNER_TOKEN;
use rustix::process::Signal;

use super::bench::Bench;

#[tokio::test(flavor = "multi_thread")]
async fn max_builds_limits_the_number_of_jobs() {
    let bench = Bench::start(1).await;
    for id in 1..=3 {
        bench.push(0, id);
        bench.let_go(id);
    }
    let run = bench.single(&[&bench.flags(0)[..], &["--name", "single", "--max-builds", "2"]].concat());
    for id in [1, 2] {
        let job = bench.ended(0, id).await;
        assert_eq!(job.status, JobStatus::Success, "{}", job.text());
        assert!(job.text().contains("on single "), "{}", job.text());
    }
    run.logged("This runner has taken its last job", 1).await;
    assert_eq!(run.code().await, 0);
    let third = bench.coordinator(0).job(JobId(3)).unwrap();
    assert_eq!((third.status, third.assignments), (JobStatus::Pending, 0));
    assert_eq!(bench.coordinator(0).runner_tokens(), [RUNNER_TOKEN], "the runner stays registered");
    assert!(!bench.config().exists(), "nothing is written");
}

#[tokio::test(flavor = "multi_thread")]
async fn wait_timeout_exits_without_jobs() {
    let bench = Bench::start(1).await;
    bench.push(0, 1);
    let run = bench.single(&[&bench.flags(0)[..], &["--wait-timeout", "1"]].concat());
    bench.begun(0, 1).await;
    bench.let_go(1);
    assert_eq!(bench.ended(0, 1).await.status, JobStatus::Success);
    run.logged("This runner has not received a job in its time to wait", 1).await;
    assert_eq!(run.code().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn flags_override_the_entry_of_a_file() {
    let bench = Bench::start(2).await;
    bench.configure(&format!("concurrent = 4\n{}{}", bench.entry(0), bench.entry(1)));
    bench.push(1, 1);
    bench.let_go(1);
    let run = bench.single(&["--runner", "runner-1", "--env", "GREETING=hello", "--max-builds", "1"]);
    let job = bench.ended(1, 1).await;
    assert_eq!(job.status, JobStatus::Success, "{}", job.text());
    assert!(job.text().contains("on runner-1 "), "{}", job.text());
    assert_eq!(run.code().await, 0);
    let ended = |flags: &[&str]| {
        let config = bench.config();
        bench.home.run(&[&["run-single", "--config", config.to_str().unwrap()], flags].concat())
    };
    ended(&["--runner", "nobody"]).check(1, &["has no runner `nobody`"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn signals_drain_or_cancel_the_job() {
    let bench = Bench::start(1).await;
    bench.push(0, 1);
    let run = bench.single(&bench.flags(0));
    bench.begun(0, 1).await;
    run.signal(Signal::QUIT);
    run.logged("Starting graceful shutdown", 1).await;
    bench.let_go(1);
    assert_eq!(bench.ended(0, 1).await.status, JobStatus::Success);
    assert_eq!(run.code().await, 0);

    bench.push(0, 2);
    let run = bench.single(&[&bench.flags(0)[..], &["--shutdown-timeout", "20"]].concat());
    bench.begun(0, 2).await;
    run.signal(Signal::TERM);
    run.logged("1 job is aborted within 20 s", 1).await;
    let job = bench.ended(0, 2).await;
    assert_eq!(job.updates.last().unwrap().failure_reason.as_deref(), Some("runner_interrupted"), "{}", job.text());
    assert_eq!(run.code().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_start_reports_the_reason() {
    let bench = Bench::start(1).await;
    let ended = |flags: &[&str]| bench.home.run(&[&["run-single"], flags].concat());
    ended(&[]).check(1, &["Missing URL"]);
    ended(&["--url", "http://localhost"]).check(1, &["Missing Token"]);
    ended(&["--url", "http://localhost", "--token", "t"]).check(1, &["Missing Executor"]);
    let known = ["--url", "http://localhost", "--token", "t", "--executor"];
    ended(&[&known[..], &["nonsense"]].concat()).check(1, &["nonsense", "invalid runner"]);
    // A known executor that is not supported yet.
    ended(&[&known[..], &["virtualbox"]].concat()).check(1, &["virtualbox", "invalid runner"]);
    ended(&["--max-builds", "many"]).check(1, &["many"]);
}
