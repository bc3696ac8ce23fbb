//! Secret management and artifact signing as steps of the operator (R228).

use std::process::Command;

use muster_job::JobStatus;
use muster_runner_api::test_support::Job;
use serde_json::{Value, json};

use super::harness::Harness;

/// Secret that only the operator's step can read.
const SECRET: &str = "token-of-the-vault-4711";
/// Multi-line private key. The job gets the key as a file.
const KEY: &str = "-----BEGIN KEY-----\nline-one-of-the-key\nline-two-of-the-key\n-----END KEY-----\n";

/// Step that reads secrets from the directory `store`, and exports them as variables.
const VAULT: &str = r#"spec:
  inputs: {store: {type: string}}
  outputs: {lease: {type: string, sensitive: true}}
---
exec:
  command:
    - sh
    - -c
    - |
      json() { printf '{"name":"%s","value":%s}\n' "$1" "$(python3 -c 'import json,sys; print(json.dumps(sys.stdin.read()))' <"$2")"; }
      json DEPLOY_TOKEN "$1/token" >"$2"
      json DEPLOY_KEY "$1/key" >>"$2"
      echo '{"name":"DEPLOY_URL","value":"https://deploy.example.com"}' >>"$2"
      echo '{"name":"lease","value":"lease-of-the-vault-4711"}' >"$3"
    - vault
    - ${{ inputs.store }}
    - ${{ export_file }}
    - ${{ output_file }}
"#;

/// Step that signs each file that is named in the file `list`, and adds the signatures to the artifacts.
const SIGN: &str = r#"spec:
  inputs: {list: {type: string}, key: {type: string}}
  outputs: {files: {type: array}}
---
exec:
  command:
    - sh
    - -c
    - |
      set -e
      while read -r file; do
        ssh-keygen -q -Y sign -f "$2" -n artifact "$file" 2>/dev/null
        echo "signed $file"
      done <"$1"
      echo '{"name":"files","value":["**/*.sig"]}' >"$3"
    - sign
    - ${{ inputs.list }}
    - ${{ inputs.key }}
    - ${{ output_file }}
"#;

fn write_step(harness: &Harness, name: &str, text: &str) -> String {
    let dir = harness.home.path(format!("steps/{name}"));
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("step.yml"), text).unwrap();
    dir.display().to_string()
}

async fn run_job(harness: &Harness, id: i64, script: &[&str], fields: Value) -> Job {
    let mut payload = json!({
        "id": id, "token": format!("job-secret-{id}"), "job_info": { "name": "test", "project_id": 1 },
        "git_info": { "repo_url": "", "sha": "0123456789abcdef", "ref": "main", "ref_type": "branch" },
        "runner_info": { "timeout": 600 },
        "variables": [{ "key": "GIT_STRATEGY", "value": "empty" }, { "key": "FF_TIMESTAMPS", "value": "false" }],
        "steps": [{ "name": "script", "script": script }],
        "muster": { "trace_interval_ms": 20, "result_tree": true }
    });
    payload.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    harness.coordinator(0).enqueue(serde_json::from_value(payload).unwrap());
    harness.wait_for_end(0, id).await
}

/// Creates the directory with the secrets. Returns the configuration of the step [`VAULT`], which reads this directory.
///
/// `exports` has the variables that the job may get from the step, each with its kind.
fn vault(harness: &Harness, exports: &str) -> String {
    let store = harness.home.path("store");
    std::fs::create_dir_all(&store).unwrap();
    std::fs::write(store.join("token"), SECRET).unwrap();
    std::fs::write(store.join("key"), KEY).unwrap();
    format!(
        "[[runners.steps.before]]\nname = \"vault\"\nstep = \"{}\"\ninputs = {{ store = \"{}\" }}\nexports = {{ {exports} }}\n",
        write_step(harness, "vault", VAULT),
        store.display()
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn secret_of_an_operators_step_reaches_the_script_and_is_masked_everywhere() {
    let harness = Harness::start(1).await;
    let exports = "DEPLOY_TOKEN = \"masked\", DEPLOY_KEY = \"file\", DEPLOY_URL = \"plain\"";
    harness.configure(&format!("{}{}", harness.entry(0), vault(&harness, exports)));
    let _manager = harness.run();
    let copy = harness.home.path("seen");
    let script = [
        "echo \"token $DEPLOY_TOKEN at $DEPLOY_URL\"",
        "cat \"$DEPLOY_KEY\"; echo lease-of-the-vault-4711",
        &format!("printf %s \"$DEPLOY_TOKEN\" >{0}; cat \"$DEPLOY_KEY\" >>{0}", copy.display()),
        "echo DEPLOY_URL=https://of.the.job >>\"$GITLAB_ENV\"",
        "test -z \"$DEPLOY_TOKEN\" || exit 3",
    ];
    let steps = json!([
        { "name": "script", "script": script },
        { "name": "after_script", "script": ["echo \"after: $DEPLOY_TOKEN at $DEPLOY_URL\""], "when": "always" }
    ]);
    let job = run_job(&harness, 1, &[], json!({ "steps": steps })).await;
    let text = job.text();
    // The last command of the script fails, because the token is set.
    assert_eq!(job.status, JobStatus::Failed, "{text}");
    assert_eq!(std::fs::read_to_string(copy).unwrap(), format!("{SECRET}{KEY}"), "the script must get the real values");
    assert!(text.contains("\ntoken [MASKED] at https://deploy.example.com\n"), "{text}");
    assert!(
        text.contains("\nafter: [MASKED] at https://deploy.example.com\n"),
        "the job must not be able to replace DEPLOY_URL: {text}"
    );
    let report = serde_json::to_string(job.updates.last().unwrap()).unwrap();
    assert!(report.contains("\"operator_before_vault\"") && report.contains("/steps/vault\""), "{report}");
    for value in [SECRET, "line-one-of-the-key", "line-two-of-the-key", "lease-of-the-vault-4711"] {
        assert!(!text.contains(value), "{value} is in the log: {text}");
        assert!(!report.contains(value), "{value} is in the result: {report}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_export_is_a_system_failure_of_the_job() {
    let harness = Harness::start(1).await;
    let _manager = {
        harness.configure(&format!("{}{}", harness.entry(0), vault(&harness, "NOT_THERE = \"masked\"")));
        harness.run()
    };
    let job = run_job(&harness, 1, &["echo of the job"], json!({})).await;
    let text = job.text();
    assert_eq!(job.updates.last().unwrap().failure_reason.as_deref(), Some("runner_system_failure"), "{text}");
    assert!(text.contains("it did not export NOT_THERE") && !text.contains("\nof the job\n"), "{text}");
    assert!(!text.contains(SECRET), "{text}");
}

fn extract(harness: &Harness, job: &Job) -> (std::path::PathBuf, Vec<String>) {
    let target = harness.home.path("extracted");
    std::fs::create_dir_all(&target).unwrap();
    let archive = harness.home.path("artifacts.zip");
    std::fs::write(&archive, &job.artifacts["artifacts.zip"]).unwrap();
    let unpack = "import sys, zipfile; z = zipfile.ZipFile(sys.argv[1]); z.extractall(sys.argv[2]); print('\\n'.join(z.namelist()))";
    let output = Command::new("python3").args(["-c", unpack]).arg(&archive).arg(&target).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let names = String::from_utf8(output.stdout).unwrap();
    (target, names.lines().filter(|name| !name.ends_with('/')).map(str::to_owned).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn artifacts_are_signed_by_an_operators_step_before_the_upload() {
    let harness = Harness::start(1).await;
    let key = harness.home.path("signing-key");
    let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key).status().unwrap();
    assert!(made.success());
    let steps = format!(
        "[[runners.steps.before_upload]]\nname = \"sign\"\nstep = \"{}\"\n\
         inputs = {{ list = \"${{{{ vars.MUSTER_ARTIFACT_FILES }}}}\", key = \"{}\" }}\n",
        write_step(&harness, "sign", SIGN),
        key.display()
    );
    harness.configure(&format!("{}{steps}", harness.entry(0)));
    let _manager = harness.run();
    let artifacts = |when: &str| {
        json!({ "artifacts": [{
            "name": "artifacts", "paths": ["out/"], "exclude": ["out/skipped"], "when": when,
            "artifact_type": "archive", "artifact_format": "zip"
        }] })
    };
    let script = ["mkdir out; echo app >out/app; echo lib >out/lib; echo no >out/skipped; ln -s /etc/passwd out/link"];
    let job = run_job(&harness, 1, &script, artifacts("on_success")).await;
    let text = job.text();
    assert_eq!(job.status, JobStatus::Success, "{text}");
    assert!(text.contains("Running the runner's step \"sign\" before the upload of the artifacts"), "{text}");
    let (dir, mut names) = extract(&harness, &job);
    names.sort();
    assert_eq!(names, ["out/app", "out/app.sig", "out/lib", "out/lib.sig", "out/link"]);
    assert!(!text.contains("signed out/link"), "{text}");
    let public = std::fs::read_to_string(key.with_extension("pub")).unwrap();
    std::fs::write(dir.join("signers"), format!("runner {public}")).unwrap();
    let verify = "ssh-keygen -Y verify -f signers -I runner -n artifact -s out/app.sig <out/app";
    assert!(Command::new("sh").args(["-c", verify]).current_dir(&dir).status().unwrap().success());

    // A job without artifacts does not run the step. Artifacts of a failed job are signed like others.
    let job = run_job(&harness, 2, &["echo nothing"], json!({})).await;
    assert!(job.status == JobStatus::Success && !job.text().contains("\"sign\""), "{}", job.text());
    let job = run_job(&harness, 3, &[script[0], "exit 5"], artifacts("always")).await;
    assert!(job.text().contains("\nsigned out/app\n"), "{}", job.text());
    assert_eq!(extract(&harness, &job).1.len(), 5);

    // If signing fails, nothing is uploaded, even by a failed job.
    std::fs::remove_file(&key).unwrap();
    let job = run_job(&harness, 4, &script, artifacts("always")).await;
    let text = job.text();
    assert_eq!(job.updates.last().unwrap().failure_reason.as_deref(), Some("runner_system_failure"), "{text}");
    assert!(
        text.contains("the step `operator_before_upload_sign` that the operator added") && job.uploads.is_empty(),
        "{text}"
    );
    let job = run_job(&harness, 5, &[script[0], "exit 5"], artifacts("always")).await;
    assert_eq!(job.updates.last().unwrap().failure_reason.as_deref(), Some("script_failure"), "{}", job.text());
    assert!(job.uploads.is_empty(), "{}", job.text());
}
