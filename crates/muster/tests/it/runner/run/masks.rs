//! Jobs that tell the runner, while they run, which values to mask (`::add-mask::`, with `proxy_exec`).

use muster_job::JobStatus;
use serde_json::json;

use super::harness::Harness;

/// Commands that print a value, request its masking, and print it again. They contain the value only in base64, so that
/// the log shows the value only where they print it.
const ADD: &str = "value=$(echo YWRkZWQtdmFsdWU= | base64 -d); echo \"before $value\"; echo \"::add-mask::$value\"; echo \"then $value\"";
const AFTER: &str = "echo \"after $(echo YWRkZWQtdmFsdWU= | base64 -d)\"";

async fn run_job(proxy_exec: bool) -> String {
    let harness = Harness::start(1).await;
    harness.configure(&format!("{}proxy_exec = {proxy_exec}\n", harness.entry(0)));
    let payload = json!({
        "id": 1, "token": "job-secret-1", "job_info": { "name": "test", "project_id": 1 },
        "git_info": { "repo_url": "", "sha": "0123456789abcdef", "ref": "main", "ref_type": "branch" },
        "runner_info": { "timeout": 600 }, "variables": [{ "key": "GIT_STRATEGY", "value": "none" }],
        "steps": [{ "name": "script", "script": [ADD] }, { "name": "after_script", "script": [AFTER], "when": "always" }],
    });
    harness.coordinator(0).enqueue(serde_json::from_value(payload).unwrap());
    let _run = harness.run();
    let job = harness.wait_for_end(0, 1).await;
    assert_eq!(job.status, JobStatus::Success, "{}", job.text());
    job.text()
}

#[tokio::test(flavor = "multi_thread")]
async fn added_value_is_masked_from_then_on_in_all_scripts() {
    let text = run_job(true).await;
    for expected in ["before added-value", "::add-mask::[MASKED]", "then [MASKED]", "after [MASKED]"] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    assert_eq!(text.matches("added-value").count(), 1, "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_value_is_masked_without_proxy_exec() {
    let text = run_job(false).await;
    // The lines with `before`, `::add-mask::`, `then` and `after` all show the value.
    assert_eq!(text.matches("added-value").count(), 4, "{text}");
}
