//! Steps of the operator around each job, and the step policy of a runner, from `config.toml` to the report.

use muster_job::{JobId, JobStatus};
use muster_runner_api::test_support::Job;
use serde_json::{Value, json};

use super::harness::Harness;

async fn run_job(harness: &Harness, id: i64, fields: Value) -> Job {
    enqueue(harness, id, fields);
    harness.wait_for_end(0, id).await
}

fn enqueue(harness: &Harness, id: i64, fields: Value) {
    let mut payload = json!({
        "id": id, "token": format!("job-secret-{id}"), "job_info": { "name": "test", "project_id": 1 },
        "git_info": { "repo_url": "", "sha": "0123456789abcdef", "ref": "main", "ref_type": "branch" },
        "runner_info": { "timeout": 600 },
        "variables": [{ "key": "GIT_STRATEGY", "value": "none" }, { "key": "FF_TIMESTAMPS", "value": "false" }],
        "features": { "trace_sections": true, "failure_reasons": ["runner_configuration_error"] },
        "muster": { "trace_interval_ms": 20 }
    });
    payload.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    harness.coordinator(0).enqueue(serde_json::from_value(payload).unwrap());
}

fn script(line: &str) -> Value {
    json!({ "steps": [{ "name": "script", "script": [line] }] })
}

fn reason(job: &Job) -> Option<&str> {
    job.updates.last().unwrap().failure_reason.as_deref()
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_of_the_operator_surround_the_job() {
    let harness = Harness::start(1).await;
    let step = harness.home.path("steps/report");
    std::fs::create_dir_all(&step).unwrap();
    let file = "spec:\n  inputs:\n    status: {type: string}\n---\nexec:\n  command: [echo, 'reported ${{ inputs.status }}']\n";
    std::fs::write(step.join("step.yml"), file).unwrap();
    let steps = format!(
        "[[runners.steps.before]]\nname = \"audit\"\nscript = [\"echo audit $GIT_STRATEGY $LEVEL\", \"test ! -e {0}/broken\"]\n\
         env = {{ LEVEL = \"two words\" }}\n\
         [[runners.steps.after]]\nname = \"report\"\nstep = \"{1}\"\ninputs = {{ status = \"${{{{ vars.CI_JOB_STATUS }}}}\" }}\n",
        harness.home.path("").display(),
        step.display()
    );
    harness.configure(&format!("{}{steps}", harness.entry(0)));
    let _manager = harness.run();
    let job = run_job(&harness, 1, script("echo of the job")).await;
    let text = job.text();
    assert_eq!(job.status, JobStatus::Success, "{text}");
    let positions = ["\naudit none two words\n", "\nof the job\n", "\nreported success\n", "Job succeeded"]
        .map(|part| text.find(part));
    assert!(positions.is_sorted() && positions[0].is_some(), "{positions:?} {text}");
    assert!(text.contains("Running the runner's step \"audit\" before the job"), "{text}");

    std::fs::write(harness.home.path("broken"), "").unwrap();
    let job = run_job(&harness, 2, script("echo of the job")).await;
    let text = job.text();
    assert_eq!((job.status, reason(&job)), (JobStatus::Failed, Some("runner_system_failure")), "{text}");
    assert!(!text.contains("\nof the job\n") && text.contains("\nreported failed\n"), "{text}");
    assert!(text.contains("the step `operator_before_audit` that the operator added to each job"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn forbidden_step_is_refused_before_the_job_starts() {
    let harness = Harness::start(1).await;
    let policy = harness.home.path("policy.toml");
    let text = "default = \"deny\"\n\n[[rules]]\ndeny = \"git:github.com/**\"\nreason = \"use the mirror\"\n\n\
                [[rules]]\nallow = \"script\"\n\n[[before]]\nname = \"required\"\nscript = \"echo required step\"\n";
    std::fs::write(&policy, text).unwrap();
    harness.configure(&format!("{}[runners.steps]\npolicy = \"{}\"\n", harness.entry(0), policy.display()));
    let _manager = harness.run();
    let run = |list: Value| json!({ "run": list.to_string(), "steps": [] });
    let allowed = run_job(&harness, 1, run(json!([{ "name": "hello", "script": "echo hello" }]))).await;
    let text = allowed.text();
    assert_eq!(allowed.status, JobStatus::Success, "{text}");
    assert!(text.contains("\nrequired step\n") && text.contains("\nhello\n"), "{text}");
    for (id, step, rule) in [
        (2, json!("github.com/some/step@v1"), "`deny = \"git:github.com/**\"` at"),
        (3, json!({ "git": { "url": "https://github.com/some/step", "rev": "v1" } }), "policy.toml:4 (use the mirror)"),
        (4, json!("registry.example.com/step:1"), "no rule matches, and `default"),
    ] {
        let job = run_job(
            &harness,
            id,
            run(json!([{ "name": "hello", "script": "echo hello" }, { "name": "far", "step": step }])),
        )
        .await;
        let text = job.text();
        assert_eq!((job.status, reason(&job)), (JobStatus::Failed, Some("runner_configuration_error")), "{text}");
        assert!(
            text.contains("step \"far\": the step policy of the runner does not allow") && text.contains(rule),
            "{text}"
        );
        assert!(!text.contains("\nhello\n") && !text.contains("\nrequired step\n"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn runner_with_an_invalid_policy_requests_no_jobs_until_it_is_fixed() {
    let harness = Harness::start(1).await;
    let policy = harness.home.path("policy.toml");
    std::fs::write(&policy, "default = \"perhaps\"\n").unwrap();
    harness.configure(&format!("{}[runners.steps]\npolicy = \"{}\"\n", harness.entry(0), policy.display()));
    enqueue(&harness, 1, script("echo hello"));
    let manager = harness.run();
    manager.wait_for_log("the runner requests no jobs", 1).await;
    manager.wait_for_log("policy.toml:1: \"perhaps\" is not a valid default", 1).await;
    assert_eq!(harness.coordinator(0).job(JobId(1)).unwrap().status, JobStatus::Pending);
    std::fs::write(&policy, "default = \"allow\"\n").unwrap();
    let job = harness.wait_for_end(0, 1).await;
    assert_eq!(job.status, JobStatus::Success, "{}", job.text());
}
