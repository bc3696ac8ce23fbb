//! Jobs that suspend their environment: the instance is suspended, and resumed for a later job that requests it.

use std::time::Duration;

use muster_job::{JobId, JobStatus};
use muster_runner_api::test_support::RUNNER_TOKEN;
use muster_tests::harness::Harness;
use muster_tests::machines::ProcessKind;
use muster_tests::process::{plugin_local, wait_until};
use muster_tests::proxy::{ApiCall, Fault};
use serde_json::{Value, json};

const PROJECT: i64 = 5;

/// Starts a manager whose runner allows suspended environments. `suspendable` sets whether the plugin supports them.
async fn start_harness(suspendable: bool) -> Harness {
    let config = |harness: &Harness| {
        let (url, executable, machines) = (&harness.proxy.url, plugin_local(), harness.path("machines"));
        format!(
            "concurrent = 3\ncheck_interval = 1\n[[runners]]\n  name = \"ours\"\n  id = 7\n  url = {url:?}\n  \
             token = \"{RUNNER_TOKEN}\"\n  executor = \"instance\"\n  shell = \"bash\"\n  \
             [runners.feature_flags]\n    FF_SUSPENDABLE_ENVIRONMENTS = true\n  \
             [runners.autoscaler]\n    plugin = {executable:?}\n    capacity_per_instance = 1\n    max_use_count = 1\n    \
             max_instances = 3\n    update_interval = \"1s\"\n    update_interval_when_expecting = \"200ms\"\n    \
             [runners.autoscaler.plugin_config]\n      directory = {machines:?}\n      persistent_instances = true\n      \
             suspendable = {suspendable}\n"
        )
    };
    Harness::with_config(3, config).await
}

fn push(harness: &Harness, id: i64, project: i64, script: &[&str], options: &Value) {
    harness.push(id, script, &job_payload(id, project, options));
}

fn job_payload(id: i64, project: i64, options: &Value) -> Value {
    json!({
        "job_info": { "name": format!("job-{id}"), "project_id": project, "project_name": "p" },
        "git_info": { "repo_url": "http://example.org/group/p.git", "sha": "0123456789abcdef", "ref": "main",
            "ref_type": "branch", "protected": true },
        "suspend_options": options,
    })
}

/// Runs job 1, which suspends its environment. Returns the key of the environment.
async fn run_suspending_job(harness: &Harness) -> String {
    push(harness, 1, PROJECT, &["echo of the first job > data"], &json!({ "suspend_on_success": true }));
    let job = harness.coordinator.wait_for_end(JobId(1)).await;
    let text = job.text();
    assert_eq!(job.status, JobStatus::Success, "{text}\n{}", harness.log());
    let last = job.reports().last().unwrap();
    let key = last.runtime_environment_key.clone().unwrap_or_else(|| panic!("{text}\n{}", harness.log()));
    assert!(text.ends_with(&format!("Job environment suspended: {key}\n")), "{text}");
    assert_eq!(last.output.bytesize, Some(text.len() as u64));
    assert!(key.starts_with("7/") && key.contains("/acquisition-key=job-1-"), "{key}");
    wait_until_suspended(harness).await;
    key
}

/// Waits until the SSH server of the only instance is stopped (SIGSTOP).
async fn wait_until_suspended(harness: &Harness) {
    let is_stopped = |pid: i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
    };
    let all_stopped = || {
        let servers = harness.machines.processes(ProcessKind::SshServer);
        !servers.is_empty() && servers.into_iter().all(is_stopped)
    };
    assert!(wait_until(all_stopped).await, "the instance was not suspended:\n{}", harness.log());
    assert_eq!(harness.machines.names().len(), 1, "{}", harness.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn suspended_environment_is_resumed_after_manager_restart() {
    let mut harness = start_harness(true).await;
    let key = run_suspending_job(&harness).await;
    let machines = harness.machines.names();
    harness.kill_manager();
    harness.start_manager();
    // While the environment is suspended, another job gets another instance.
    push(&harness, 2, PROJECT, &["test ! -e data"], &json!({}));
    let other = harness.coordinator.wait_for_end(JobId(2)).await;
    assert_eq!(other.status, JobStatus::Success, "{}\n{}", other.text(), harness.log());

    push(&harness, 3, PROJECT, &["cat data"], &json!({ "runtime_environment_key": key }));
    let job = harness.coordinator.wait_for_end(JobId(3)).await;
    let text = job.text();
    assert_eq!(job.status, JobStatus::Success, "{text}\n{}", harness.log());
    assert!(text.contains("\nof the first job\n"), "{text}");
    assert!(text.contains(&format!("Job environment resumed: {key}")), "{text}");
    assert!(text.contains(&format!("Instance {} connected", machines[0])), "{text}");
    assert!(!text.contains("Getting source from Git repository"), "{text}");
    assert_eq!(job.reports().last().unwrap().runtime_environment_key, None);
    assert!(wait_until(|| harness.machines.names().is_empty()).await, "{}", harness.log());
    let script = ["echo ran >> \"$MARKS/started-$CI_JOB_ID\""];
    push(&harness, 4, PROJECT, &script, &json!({ "runtime_environment_key": key }));
    check_rejected(&harness, 4, "no such environment").await;
}

/// Checks that the job failed because its environment cannot be resumed.
async fn check_rejected(harness: &Harness, id: i64, reason: &str) {
    let job = harness.coordinator.wait_for_end(JobId(id)).await;
    let text = job.text();
    assert_eq!(job.reports().last().unwrap().failure_reason.as_deref(), Some("runner_system_failure"), "{text}");
    assert!(text.contains("failed to resume the job environment: ") && text.contains(reason), "{text}");
    assert_eq!(harness.start_count(JobId(id)), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_environment_key_fails_the_job_with_reason() {
    let harness = start_harness(true).await;
    let key = run_suspending_job(&harness).await;
    let script = ["echo ran >> \"$MARKS/started-$CI_JOB_ID\"; cat data"];
    let cases = [
        (PROJECT + 1, key.clone(), "belongs to another project"),
        (PROJECT, key.replacen("7/", "8/", 1), "its key is from another runner"),
        (PROJECT, format!("{key}-more"), "no such environment"),
        (PROJECT, "7".to_owned(), "its key is from another runner"),
    ];
    for (id, (project, key, reason)) in (2..).zip(cases) {
        push(&harness, id, project, &script, &json!({ "runtime_environment_key": key }));
        check_rejected(&harness, id, reason).await;
    }
    wait_until_suspended(&harness).await;
    // A job with the right key fails, and its environment is suspended again, as the job requested.
    let options = json!({ "runtime_environment_key": key, "suspend_on_failure": true });
    push(&harness, 9, PROJECT, &["cat data", "exit 3"], &options);
    let job = harness.coordinator.wait_for_end(JobId(9)).await;
    let (text, last) = (job.text(), job.reports().last().unwrap());
    assert_eq!((last.failure_reason.as_deref(), last.exit_code), (Some("script_failure"), Some(3)), "{text}");
    let new_key = last.runtime_environment_key.clone().unwrap();
    assert!(new_key != key && text.contains("\nof the first job\n"), "{text}");
    push(&harness, 10, PROJECT, &["cat data"], &json!({ "runtime_environment_key": new_key }));
    let job = harness.coordinator.wait_for_end(JobId(10)).await;
    assert_eq!(job.status, JobStatus::Success, "{}\n{}", job.text(), harness.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn resumed_environment_lost_before_first_command_fails_job_with_reason() {
    let harness = start_harness(true).await;
    let key = run_suspending_job(&harness).await;
    let machine = harness.machines.names().remove(0);
    // The download of artifacts is delayed for an hour, so job 2 is still in preparation.
    harness
        .proxy
        .select_faults(Box::new(|kind| (kind == ApiCall::Download).then_some(Fault::Delay(Duration::from_secs(3600)))));
    let mut payload = job_payload(2, PROJECT, &json!({ "runtime_environment_key": key }));
    let file = json!({ "filename": "artifacts.zip", "size": 1 });
    payload["dependencies"] =
        json!([{ "id": 1, "token": "jobtoken1jobtoken", "name": "job-1", "artifacts_file": file }]);
    harness.push(2, &["echo ran >> \"$MARKS/started-2\""], &payload);
    harness.coordinator.wait_for(JobId(2), |job| job.text().contains("Downloading artifacts")).await;
    assert_eq!(harness.machines.kill(ProcessKind::PersistentInstance), 1);
    let ended = harness.coordinator.wait_for_end(JobId(2)).await;
    let (text, last) = (ended.text(), ended.reports().last().unwrap());
    assert_eq!(last.failure_reason.as_deref(), Some("runner_system_failure"), "{text}");
    let line = text.lines().find(|line| line.contains("was also lost; retry the job that created it"));
    assert!(line.is_some_and(|line| line.contains(&machine)), "{text}");
    assert!(!text.contains("no such environment") && !text.contains("was rescheduled to another instance"), "{text}");
    assert_eq!(harness.start_count(JobId(2)), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn plugin_without_suspend_support_only_causes_a_warning() {
    let harness = start_harness(false).await;
    push(&harness, 1, PROJECT, &["echo done"], &json!({ "suspend_on_success": true }));
    let job = harness.coordinator.wait_for_end(JobId(1)).await;
    let text = job.text();
    assert_eq!(job.status, JobStatus::Success, "{text}\n{}", harness.log());
    assert!(
        text.contains("the job environment will not be suspended: the plugin of its group cannot suspend"),
        "{text}"
    );
    assert_eq!(job.reports().last().unwrap().runtime_environment_key, None);
    assert!(wait_until(|| harness.machines.names().is_empty()).await, "{}", harness.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_manager_reports_key_of_suspended_environment() {
    let mut harness = start_harness(true).await;
    let script = [
        "echo of the first job > data; echo $$ >> \"$MARKS/started-1\"",
        "until test -e \"$MARKS/go\"; do sleep 0.02; done",
    ];
    push(&harness, 1, PROJECT, &script, &json!({ "suspend_on_success": true }));
    assert!(wait_until(|| harness.start_count(JobId(1)) == 1).await, "{}", harness.log());
    harness.proxy.select_faults(Box::new(|kind| (kind == ApiCall::Update).then_some(Fault::DropBefore)));
    std::fs::write(harness.path("go"), "").unwrap();
    harness.coordinator.wait_for(JobId(1), |job| job.text().contains("Job environment suspended: ")).await;
    harness.kill_manager();
    harness.proxy.select_faults(Box::new(|_| None));
    harness.start_manager();
    let job = harness.coordinator.wait_for_end(JobId(1)).await;
    let (text, last) = (job.text(), job.reports().last().unwrap());
    assert_eq!((job.status, harness.start_count(JobId(1))), (JobStatus::Success, 1), "{text}\n{}", harness.log());
    let key = last.runtime_environment_key.clone().unwrap_or_else(|| panic!("{text}\n{}", harness.log()));
    assert_eq!(text.matches(&format!("Job environment suspended: {key}\n")).count(), 1, "{text}");
    push(&harness, 2, PROJECT, &["cat data"], &json!({ "runtime_environment_key": key }));
    let next = harness.coordinator.wait_for_end(JobId(2)).await;
    assert_eq!(next.status, JobStatus::Success, "{}\n{}", next.text(), harness.log());
}
