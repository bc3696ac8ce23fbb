//! Jobs and their instances: what a job leaves behind, and the plugin's hooks.

use muster_job::{JobId, JobStatus};
use serde_json::json;

use super::harness::{Harness, ManagerProcess};

/// Starts a manager that deletes each instance after one job. `plugin` has additional lines of `plugin_config`.
async fn start(plugin: &str) -> (Harness, ManagerProcess) {
    let harness = Harness::start(1).await;
    let entry = harness.entry(0).replace("\"shell\"\nshell", "\"instance\"\nshell");
    harness.configure(&format!(
        "concurrent = 1\ncheck_interval = 1\n{entry}[runners.autoscaler]\nplugin = \"fleeting-plugin-local\"\n\
         max_use_count = 1\nmax_instances = 1\ndelete_instances_on_shutdown = true\n\
         [runners.autoscaler.plugin_config]\ndirectory = {:?}\n{plugin}",
        harness.home.path("machines")
    ));
    let run = harness.run();
    (harness, run)
}

fn push(harness: &Harness, id: i64, script: &str) {
    let payload = json!({
        "id": id, "token": format!("job-secret-{id}"), "job_info": { "name": "test", "project_id": 1 },
        "git_info": { "repo_url": "", "sha": "0123456789abcdef", "ref": "main", "ref_type": "branch" },
        "runner_info": { "timeout": 600 },
        "variables": [{ "key": "GIT_STRATEGY", "value": "none" }, { "key": "FF_TIMESTAMPS", "value": "false" }],
        "steps": [{ "name": "script", "script": [script] }],
        "features": { "failure_reasons": ["runner_system_failure"] },
        "muster": { "trace_interval_ms": 20 }
    });
    harness.coordinator(0).enqueue(serde_json::from_value(payload).unwrap());
}

/// Requirement R220 (docs/requirements.md).
#[tokio::test(flavor = "multi_thread")]
async fn job_does_not_see_files_of_the_previous_job() {
    let (harness, _run) = start("").await;
    // The directories in which jobs usually write: their working directory, its parent, and their home.
    push(
        &harness,
        1,
        "for directory in . .. \"$HOME\"; do echo one >\"$directory/marker-of-one\"; done; ls .. | grep marker-of-one",
    );
    let job = harness.wait_for_end(0, 1).await;
    assert_eq!(job.status, JobStatus::Success, "{}", job.text());
    push(&harness, 2, "find . .. \"$HOME\" -name 'marker-of-*' | sed 's/^/found /'; echo looked in $HOME");
    let job = harness.wait_for_end(0, 2).await;
    let text = job.text();
    assert_eq!(job.status, JobStatus::Success, "{text}");
    assert!(text.contains("\nlooked in /") && !text.contains("\nfound "), "{text}");
}

/// Requirement R247 (docs/requirements.md): a failed hook is not a failure of the job's script.
#[tokio::test(flavor = "multi_thread")]
async fn failed_prepare_hook_is_a_system_failure_with_its_message() {
    let (harness, _run) =
        start("prepare_command = [\"sh\", \"-c\", \"echo the license server is away >&2; exit 3\"]\n").await;
    push(&harness, 1, "echo it ran");
    let job = harness.coordinator(0).wait_for_end(JobId(1)).await;
    let reports: Vec<_> = job.reports().map(|report| (&*report.state, report.failure_reason.as_deref())).collect();
    assert_eq!(reports, [("failed", Some("runner_system_failure"))], "{}", job.text());
    let reason = "its plugin failed to prepare it for the job: ";
    let text = job.text();
    assert!(
        text.contains(reason) && text.contains("prepare_command failed (exit status: 3): the license server is away"),
        "{text}"
    );
    assert!(!text.contains("it ran"), "{text}");
}
