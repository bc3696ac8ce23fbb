//! Metrics and logs of a running manager.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use muster_job::{JobId, JobStatus};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::support::Harness;
use crate::process::until;

/// Script that logs `begun`, and ends when the test creates a file.
pub(crate) const WAITING_SCRIPT: &str = "echo begun; while [ ! -e \"$HOME_OF_TEST/go\" ]; do sleep 0.02; done";

/// Queues a job as GitLab would: with sections, facts about its queue, and a repository.
pub(crate) fn push(harness: &Harness, id: i64, script: &str, features: &Value) {
    push_with(harness, id, script, features, &json!({}));
}

/// Queues a job as [`push`] does, with more members of the payload.
pub(crate) fn push_with(harness: &Harness, id: i64, script: &str, features: &Value, more: &Value) {
    let mut all = json!({ "trace_sections": true, "failure_reasons": ["job_canceled"] });
    all.as_object_mut().unwrap().extend(features.as_object().unwrap().clone());
    let mut payload = json!({
        "id": id, "token": format!("glcbt-secret-of-job-{id}"),
        "job_info": { "name": "test", "project_id": 5, "pipeline_id": 9, "project_full_path": "group/project",
            "time_in_queue_seconds": 2.5, "project_jobs_running_on_instance_runners_count": "0",
            "queue_size": 4, "queue_depth": 1 },
        "git_info": { "repo_url": format!("https://gitlab-ci-token:glcbt-secret-of-job-{id}@gitlab.example/group/project.git"),
            "sha": "0123456789abcdef", "ref": "main", "ref_type": "branch" },
        "runner_info": { "timeout": 600 },
        "variables": [
            { "key": "GIT_STRATEGY", "value": "none" },
            { "key": "CI_PIPELINE_SOURCE", "value": "push" },
            { "key": "GITLAB_USER_ID", "value": "11" },
            { "key": "HOME_OF_TEST", "value": harness.path("") }
        ],
        "steps": [{ "name": "script", "script": [script] }],
        "features": all,
        "muster": { "trace_interval_ms": 20 }
    });
    payload.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    harness.coordinator.enqueue(serde_json::from_value(payload).unwrap());
}

pub(crate) async fn wait_for_log(log: &Path, expected: &str) -> String {
    until(async || {
        let text = std::fs::read_to_string(log).unwrap();
        if text.contains(expected) { Ok(text) } else { Err(format!("`{expected}` is missing in:\n{text}")) }
    })
    .await
}

pub(crate) async fn metrics_address(log: &Path) -> String {
    let text = wait_for_log(log, "Metrics server listening").await;
    let line = text.lines().find(|line| line.contains("Metrics server listening")).unwrap();
    let address = line.split_once("address=").unwrap().1;
    address.trim_matches('"').split(['"', ' ']).next().unwrap().to_owned()
}

async fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    body.to_owned()
}

pub(crate) async fn scrape_until(address: &str, series: &str, value: &str) -> String {
    until(async || {
        let text = get(address, "/metrics").await;
        let is_match = text.lines().any(|line| line.starts_with(series) && line.ends_with(&format!(" {value}")));
        if is_match { Ok(text) } else { Err(format!("`{series}` is not {value} in:\n{text}")) }
    })
    .await
}

fn value(text: &str, series: &str) -> f64 {
    let line = text
        .lines()
        .find(|line| line.starts_with(series))
        .unwrap_or_else(|| panic!("`{series}` is missing in:\n{text}"));
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_count_running_and_finished_jobs() {
    let harness = Harness::start().await;
    let (_manager, log) = harness.manager_logged(&["--listen-address", "127.0.0.1:0", "--concurrent", "3"], &[]);
    let address = metrics_address(&log).await;
    // The operator decides which metrics are exported. A job's variable must not change that.
    let variables = json!([
        { "key": "FF_EXPORT_HIGH_CARDINALITY_METRICS", "value": "true" },
        { "key": "GIT_STRATEGY", "value": "none" },
        { "key": "CI_PIPELINE_SOURCE", "value": "push" },
        { "key": "HOME_OF_TEST", "value": harness.path("") },
    ]);
    push_with(&harness, 1, WAITING_SCRIPT, &json!({}), &json!({ "variables": variables }));
    harness.coordinator.wait_for(JobId(1), |job| job.text().contains("begun\n")).await;
    let running_metrics = scrape_until(&address, "gitlab_runner_jobs{executor_stage=\"prepare\"", "1").await;
    assert_eq!(value(&running_metrics, "gitlab_runner_concurrent"), 3.0);
    assert!(
        value(&running_metrics, "gitlab_runner_request_concurrency{") >= 1.0,
        "the manager must request the next job:\n{running_metrics}"
    );
    let list = get(&address, "/debug/jobs/list").await;
    let job =
        "url=https://gitlab.example/group/project/-/jobs/1 state=running stage=step_script executor_stage=prepare";
    assert!(list.starts_with(job), "{list}");
    assert_eq!(get(&address, "/debug/process/state").await, "running");
    std::fs::write(harness.path("go"), "").unwrap();
    push(&harness, 2, "exit 3", &json!({}));
    let traces = harness.coordinator.wait_for_end(JobId(1)).await.trace.len()
        + harness.coordinator.wait_for_end(JobId(2)).await.trace.len();
    let after = scrape_until(&address, "gitlab_runner_job_duration_seconds_count{", "2").await;
    for (series, expected) in [
        ("gitlab_runner_jobs_total", 2.0),
        ("gitlab_runner_failed_jobs_total{failure_reason=\"script_failure\",mode=\"traditional\"", 1.0),
        ("gitlab_runner_worker_processing_failures_total{failure_type=\"job_failure\"", 1.0),
        ("gitlab_runner_job_queue_duration_seconds_bucket{project_jobs_running=\"0\"", 0.0),
        ("gitlab_runner_job_queue_duration_seconds_count{project_jobs_running=\"0\"", 2.0),
        ("gitlab_runner_job_queue_size", 4.0),
        ("gitlab_runner_job_execution_mode_total{executor=\"shell\",mode=\"traditional\"}", 2.0),
        ("muster_job_dispatch_seconds_count", 2.0),
        ("muster_job_stage_seconds_count{stage=\"retrieval\"}", 2.0),
        ("muster_job_stage_seconds_count{stage=\"pre_checks\"}", 2.0),
        ("muster_job_stage_seconds_count{stage=\"prepare_executor\"}", 2.0),
        ("muster_job_stage_seconds_count{stage=\"get_sources\"}", 2.0),
        ("muster_job_stage_seconds_count{stage=\"step_script\"}", 2.0),
        ("muster_job_stage_seconds_count{stage=\"health\"}", 2.0),
        ("muster_job_stage_seconds_count{stage=\"report\"}", 2.0),
        ("muster_job_stage_seconds_count{stage=\"cleanup\"}", 2.0),
        ("muster_job_cpu_seconds_count", 2.0),
        ("muster_job_memory_bytes_count", 2.0),
        ("muster_unreported_jobs", 0.0),
        ("muster_trace_pending_bytes", 0.0),
        ("muster_trace_bytes_total", traces as f64),
    ] {
        assert_eq!(value(&after, series), expected, "{series} in:\n{after}");
    }
    assert!(!after.contains("gitlab_runner_job_stage_duration_seconds_count"), "{after}");
    for (endpoint, method, status) in
        [("request_job", "post", "201"), ("patch_trace", "patch", "202"), ("update_job", "put", "200")]
    {
        let series = format!("gitlab_runner_api_request_statuses_total{{endpoint=\"{endpoint}\",method=\"{method}\"");
        let of_status = |line: &&str| line.starts_with(&series) && line.contains(&format!("status=\"{status}\""));
        assert!(after.lines().any(|line| of_status(&line)), "`{series}` with status {status} is missing in:\n{after}");
    }
    let age = value(&after, "muster_last_contact_age_seconds{");
    assert!((0.0..60.0).contains(&age), "the last contact must be recent: {age}");
    check_with_promtool(&after);
    let output = format!("{running_metrics}{after}{list}{}", std::fs::read_to_string(&log).unwrap());
    for secret in ["glcbt-secret", muster_runner_api::test_support::RUNNER_TOKEN] {
        assert!(!output.contains(secret), "{secret} in:\n{output}");
    }
}

fn check_with_promtool(text: &str) {
    let promtool =
        Command::new("promtool").args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let Ok(mut promtool) = promtool else {
        return muster_test_prerequisites::missing("promtool is not installed (Debian: prometheus)");
    };
    std::io::Write::write_all(&mut promtool.stdin.take().unwrap(), text.as_bytes()).unwrap();
    let checked = promtool.wait_with_output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
}

#[tokio::test(flavor = "multi_thread")]
async fn log_has_job_fields_at_start_and_end() {
    let harness = Harness::start().await;
    let (_manager, log) = harness.manager_logged(&[], &[]);
    push(&harness, 7, "exit 3", &json!({}));
    let text = wait_for_log(&log, "Removed job from processing list").await;
    let record = |message: &str| text.lines().find(|line| line.contains(message)).unwrap().to_owned();
    let added = record("Added job to processing list");
    for field in [
        "level=info",
        " builds=1",
        " gitlab_user_id=11",
        " job=7",
        " max_builds=1",
        " namespace_id=0",
        " pipeline_id=9",
        " project=5",
        " project_full_path=group/project",
        " queue_depth=1",
        " queue_size=4",
        " repo_url=\"https://gitlab.example/group/project.git\"",
        " root_namespace_id=0",
        " runner=",
        " runner_name=muster",
        " time_in_queue_seconds=2.5",
    ] {
        assert!(added.contains(field), "`{field}` is missing in: {added}");
    }
    let removed = record("Removed job from processing list");
    for field in [
        " duration_s=",
        " exit_code=3",
        " failure_reason=script_failure",
        " job=7",
        " job-status=failed",
        " cpu_s=",
        " memory_bytes=",
    ] {
        assert!(removed.contains(field), "`{field}` is missing in: {removed}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn manager_does_not_start_if_its_metrics_address_is_taken() {
    let harness = Harness::start().await;
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (mut manager, log) = harness.manager_logged(&["--listen-address", &address], &[]);
    assert!(!manager.wait_for_exit(Duration::from_secs(20)).await.success());
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(
        text.contains(&format!("failed to listen on {address} for metrics; if another process uses the port")),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn recovered_job_is_counted_with_its_whole_duration() {
    let harness = Harness::start().await;
    push(&harness, 1, WAITING_SCRIPT, &json!({}));
    let manager = harness.manager(&[]);
    harness.coordinator.wait_for(JobId(1), |job| job.text().contains("begun\n")).await;
    let started_at = std::time::Instant::now();
    manager.kill().await;
    let (_manager, log) = harness.manager_logged(&["--listen-address", "127.0.0.1:0"], &[]);
    let address = metrics_address(&log).await;
    let text = scrape_until(&address, "muster_recovered_jobs_total{", "1").await;
    assert_eq!(
        value(&text, "muster_job_dispatch_seconds_count{"),
        0.0,
        "the dispatch of a recovered job must not be measured"
    );
    let elapsed = started_at.elapsed();
    std::fs::write(harness.path("go"), "").unwrap();
    assert_eq!(harness.coordinator.wait_for_end(JobId(1)).await.status, JobStatus::Success);
    let text = wait_for_log(&log, "Removed job from processing list").await;
    let (_, after) = text.split_once("duration_s=").expect("the log has no duration");
    let seconds: f64 = after.split_whitespace().next().unwrap().parse().unwrap();
    // Wall-clock times are stored with a precision of milliseconds.
    assert!(
        seconds + 0.002 >= elapsed.as_secs_f64(),
        "the log has a duration of {seconds} s, but {elapsed:?} have passed"
    );
}
