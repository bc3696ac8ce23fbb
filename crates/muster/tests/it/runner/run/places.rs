//! Jobs and the instances that they run on: what one leaves, and what the plugin does around each.

use muster_job::{JobId, JobStatus};
use serde_json::json;

use super::bench::{Bench, Run};

/// A manager whose runner has instances on this machine, each for one job; `plugin` is the end of its `plugin_config`.
async fn start(plugin: &str) -> (Bench, Run) {
    let bench = Bench::start(1).await;
    let entry = bench.entry(0).replace("\"shell\"\nshell", "\"instance\"\nshell");
    bench.configure(&format!(
        "concurrent = 1\ncheck_interval = 1\n{entry}[runners.autoscaler]\nplugin = \"fleeting-plugin-local\"\n\
         max_use_count = 1\nmax_instances = 1\ndelete_instances_on_shutdown = true\n\
         [runners.autoscaler.plugin_config]\ndirectory = {:?}\n{plugin}",
        bench.home.path("machines")
    ));
    let run = bench.run();
    (bench, run)
}

/// Puts a job with this script in the queue. It has no repository.
fn push(bench: &Bench, id: i64, script: &str) {
    let payload = json!({
        "id": id, "token": format!("job-secret-{id}"), "job_info": { "name": "test", "project_id": 1 },
        "git_info": { "repo_url": "", "sha": "0123456789abcdef", "ref": "main", "ref_type": "branch" },
        "runner_info": { "timeout": 600 },
        "variables": [{ "key": "GIT_STRATEGY", "value": "none" }, { "key": "FF_TIMESTAMPS", "value": "false" }],
        "steps": [{ "name": "script", "script": [script] }],
        "features": { "failure_reasons": ["runner_system_failure"] },
        "muster": { "trace_interval_ms": 20 }
    });
    bench.coordinator(0).enqueue(serde_json::from_value(payload).unwrap());
}

/// R220: both jobs are of the same project and the same runner.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_never_sees_the_marker_files_of_the_job_before() {
    let (bench, _run) = start("").await;
    // Where jobs write without being told a place: their directory, the one above it, and their home.
    push(
        &bench,
        1,
        "for place in . .. \"$HOME\"; do echo one >\"$place/marker-of-one\"; done; ls .. | grep marker-of-one",
    );
    let job = bench.ended(0, 1).await;
    assert_eq!(job.status, JobStatus::Success, "{}", job.text());
    push(&bench, 2, "find . .. \"$HOME\" -name 'marker-of-*' | sed 's/^/found /'; echo looked in $HOME");
    let job = bench.ended(0, 2).await;
    let text = job.text();
    assert_eq!(job.status, JobStatus::Success, "{text}");
    assert!(text.contains("\nlooked in /") && !text.contains("\nfound "), "{text}");
}

/// R247: the author sees that it was not the script, and the operator sees why.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_prepare_hook_fails_is_a_system_failure_with_the_words_of_the_hook() {
    let (bench, _run) =
        start("prepare_command = [\"sh\", \"-c\", \"echo the license server is away >&2; exit 3\"]\n").await;
    push(&bench, 1, "echo it ran");
    let job = bench.coordinator(0).wait_for_end(JobId(1)).await;
    let reports: Vec<_> = job.reports().map(|report| (&*report.state, report.failure_reason.as_deref())).collect();
    assert_eq!(reports, [("failed", Some("runner_system_failure"))], "{}", job.text());
    let why = "its plugin failed to prepare it for the job: ";
    let text = job.text();
    assert!(
        text.contains(why) && text.contains("prepare_command failed (exit status: 3): the license server is away"),
        "{text}"
    );
    assert!(!text.contains("it ran"), "{text}");
}
