//! Checkout, caches and artifacts as steps of the operator, by configuration (R245).

use std::io::Read;
use std::process::Command;

use muster_job::JobStatus;
use muster_runner_api::test_support::Job;
use serde_json::json;

use super::containers::IMAGE;
use super::harness::Harness;

/// Inputs and Python program of the step that replaces the checkout.
const CHECKOUT: (&str, &str) = (
    "url: string, sha: string, refspecs: array",
    r#"
import json, os, subprocess
git = lambda *args: subprocess.run(["git", *args], check=True)
git("init", "-q")
git("fetch", "-q", os.environ["URL"], *json.loads(os.environ["REFSPECS"]))
git("checkout", "-q", os.environ["SHA"])
print("checked out by the operator from", os.environ["URL"])
"#,
);

/// Step that replaces both cache steps. Caches are kept in the directory `store`.
const CACHE: (&str, &str) = (
    "caches: array, store: string, action: string",
    r#"
import json, os, shutil
action = os.environ["ACTION"]
for cache in json.loads(os.environ["CACHES"]):
    kept = os.path.join(os.environ["STORE"], cache["name"])
    for path in cache["paths"]:
        source, target = (kept, path) if action == "restore" else (path, kept)
        if os.path.exists(source):
            shutil.copytree(source, target, dirs_exist_ok=True)
            print(action, cache["name"])
"#,
);

const UPLOAD: (&str, &str) = (
    "artifacts: array, url: string, token: string",
    r#"
import glob, io, json, os, urllib.parse, urllib.request, zipfile
for artifact in json.loads(os.environ["ARTIFACTS"]):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for pattern in artifact["paths"]:
            for path in glob.glob(pattern + "/**", recursive=True) if os.path.isdir(pattern) else glob.glob(pattern):
                archive.write(path)
        archive.writestr("packed-by", "the operator")
    head = '--x\r\nContent-Disposition: form-data; name="file"; filename="%s.zip"\r\n\r\n' % artifact["name"]
    body = head.encode() + content.getvalue() + b"\r\n--x--\r\n"
    query = {"artifact_type": artifact["type"], "artifact_format": artifact["format"], "expire_in": artifact["expire_in"]}
    query = urllib.parse.urlencode({name: value for name, value in query.items() if value})
    headers = {"JOB-TOKEN": os.environ["TOKEN"], "Content-Type": "multipart/form-data; boundary=x"}
    request = urllib.request.Request(os.environ["URL"] + "?" + query, data=body, headers=headers, method="POST")
    print("uploaded with", os.environ["TOKEN"], urllib.request.urlopen(request).status)
"#,
);

const DOWNLOAD: (&str, &str) = (
    "artifacts: array",
    r#"
import io, json, os, urllib.request, zipfile
for artifact in json.loads(os.environ["ARTIFACTS"]):
    request = urllib.request.Request(artifact["url"], headers={"JOB-TOKEN": artifact["token"]})
    zipfile.ZipFile(io.BytesIO(urllib.request.urlopen(request).read())).extractall()
    print("downloaded from", artifact["name"])
"#,
);

/// Returns the text of a step file. The step runs the Python program, which reads each input from the environment
/// variable with the input's name in upper case.
fn python_step((inputs, program): (&str, &str)) -> String {
    let (mut spec, mut env) = (serde_json::Map::new(), serde_json::Map::new());
    for input in inputs.split(", ") {
        let (name, kind) = input.split_once(": ").unwrap();
        spec.insert(name.to_owned(), json!({ "type": kind }));
        env.insert(name.to_uppercase(), json!(format!("${{{{ inputs.{name} }}}}")));
    }
    let (spec, exec) = (json!({ "spec": { "inputs": spec } }), json!({ "command": ["python3", "-c", program] }));
    format!("{spec}\n---\n{}\n", json!({ "env": env, "exec": exec }))
}

/// Writes a step. Returns the configuration that replaces a built-in step with this step.
fn replacement(harness: &Harness, builtin: &str, text: &str, inputs: &str) -> String {
    let dir = harness.home.path(format!("steps/{builtin}"));
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("step.yml"), text).unwrap();
    format!(
        "[[runners.steps.replace]]\nbuiltin = \"{builtin}\"\nstep = \"{}\"\ninputs = {{ {inputs} }}\n",
        dir.display()
    )
}

fn repository(harness: &Harness) -> (String, String) {
    let dir = harness.home.path("repository");
    let commands = "git init -q -b main \"$0\" && cd \"$0\" && echo sources >file && git add file && \
                    git -c user.name=a -c user.email=a@example.com commit -q -m first && git rev-parse HEAD";
    let output = Command::new("sh").args(["-c", commands]).arg(&dir).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    (format!("file://{}", dir.display()), String::from_utf8(output.stdout).unwrap().trim().to_owned())
}

async fn run_job(harness: &Harness, id: i64, (url, sha): &(String, String), script: &[&str]) -> Job {
    let producer = json!({ "id": id - 1, "token": format!("job-secret-{}", id - 1), "name": "producer",
        "artifacts_file": { "filename": "result.zip", "size": 1 } });
    let payload = json!({
        "id": id, "token": format!("job-secret-{id}"), "job_info": { "name": "test", "project_id": 1 },
        "git_info": { "repo_url": url, "sha": sha, "ref": "main", "ref_type": "branch",
            "refspecs": ["+refs/heads/main:refs/remotes/origin/main"], "depth": 0 },
        "runner_info": { "timeout": 600 },
        "variables": [{ "key": "FF_TIMESTAMPS", "value": "false" }, { "key": "NAME", "value": "result" }],
        "steps": [{ "name": "script", "script": script }],
        "cache": [{ "key": "deps", "paths": ["vendor"], "policy": "pull-push", "when": "on_success" }],
        "artifacts": [{ "name": "$NAME", "paths": ["out"], "when": "on_success", "artifact_type": "archive",
            "artifact_format": "zip" }],
        "dependencies": if id > 1 { json!([producer]) } else { json!([]) },
        "muster": { "trace_interval_ms": 20, "result_tree": true }
    });
    harness.coordinator(0).enqueue(serde_json::from_value(payload).unwrap());
    harness.wait_for_end(0, id).await
}

#[tokio::test(flavor = "multi_thread")]
async fn checkout_cache_and_artifacts_are_replaced_by_configuration() {
    let harness = Harness::start(1).await;
    let store = format!("store = \"{}\"", harness.home.path("store").display());
    let steps = [
        replacement(&harness, "checkout", &python_step(CHECKOUT), ""),
        replacement(&harness, "cache/restore", &python_step(CACHE), &format!("{store}, action = \"restore\"")),
        replacement(&harness, "cache/save", &python_step(CACHE), &format!("{store}, action = \"save\"")),
        replacement(&harness, "artifacts/upload", &python_step(UPLOAD), ""),
        replacement(&harness, "artifacts/download", &python_step(DOWNLOAD), ""),
    ];
    harness.configure(&format!("{}{}", harness.entry(0), steps.concat()));
    let _manager = harness.run();
    let sources = repository(&harness);
    let create = "cat file; mkdir -p vendor out; echo cached >vendor/lib; echo made >out/made";
    let first = run_job(&harness, 1, &sources, &[create]).await;
    let text = first.text();
    assert_eq!(first.status, JobStatus::Success, "{text}");
    let lines =
        ["\nchecked out by the operator from ", "\nsources\n", "\nsave deps\n", "\nuploaded with [MASKED] 201\n"];
    let positions = lines.map(|line| text.find(line));
    assert!(positions.is_sorted() && positions[0].is_some(), "{positions:?} {text}");
    for absent in ["Fetching changes", "Creating cache", "Uploading artifacts...", "job-secret-1"] {
        assert!(!text.contains(absent), "{absent} in {text}");
    }
    let archive = first.artifacts["result.zip"].clone();
    let mut archive = zip::ZipArchive::new(std::io::Cursor::new(archive)).unwrap();
    let mut content = String::new();
    archive.by_name("out/made").unwrap().read_to_string(&mut content).unwrap();
    assert_eq!(content, "made\n");
    let report = serde_json::to_value(first.updates.last().unwrap()).unwrap();
    let tree = report["result_tree"].to_string();
    assert!(tree.contains("/steps/checkout\"") && !tree.contains("job-secret-1"), "{tree}");

    // The checkout is deleted, so the second job can get its files only through the operator's steps.
    let clear = Command::new("sh").args(["-c", "rm -rf \"$0\"/builds"]).arg(harness.home.path("")).status().unwrap();
    assert!(clear.success());
    let second = run_job(&harness, 2, &sources, &["cat file vendor/lib out/made packed-by"]).await;
    let text = second.text();
    assert_eq!(second.status, JobStatus::Success, "{text}");
    for line in ["\nrestore deps\n", "\ndownloaded from producer\n", "\nsources\ncached\nmade\nthe operator"] {
        assert!(text.contains(line), "{line:?} in {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn runner_with_an_unknown_replacement_requests_no_jobs() {
    let harness = Harness::start(1).await;
    let unknown = replacement(&harness, "checkout", &python_step(CHECKOUT), "").replace("\"checkout\"", "\"chekout\"");
    harness.configure(&format!("{}{unknown}", harness.entry(0)));
    let manager = harness.run();
    manager.wait_for_log("`chekout` is not a built-in step that can be replaced", 1).await;
    manager.wait_for_log("the runner requests no jobs", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn step_that_replaces_a_builtin_step_runs_in_the_container_of_the_job() {
    let harness = Harness::start(1).await;
    let text = "spec: {inputs: {ref: {type: string}}}\n---\nenv: {REF: '${{ inputs.ref }}'}\n\
                exec: {command: [sh, -c, 'echo \"$REF on $(hostname)\" >sources']}\n";
    let replace = replacement(&harness, "checkout", text, "");
    let dir = harness.home.path("steps/checkout");
    let (step, inside) = (format!("step = \"{}\"", dir.display()), "step = \"/operator\"");
    let settings = format!("volumes = [\"{}:/operator:ro\"]\n{}", dir.display(), replace.replace(&step, inside));
    let Some(_) = harness.configure_docker(&settings) else { return };
    let _manager = harness.run();
    let variables = json!([{ "key": "FF_TIMESTAMPS", "value": "false", "public": true }]);
    let more = json!({ "image": { "name": IMAGE }, "variables": variables });
    harness.push_container_job(8, &["cat sources; echo \"script on $(hostname)\""], &more);
    let job = harness.wait_for_end(0, 8).await;
    let text = job.text();
    assert_eq!(job.status, JobStatus::Success, "{text}");
    let on = |start: &str| text.lines().find_map(|line| line.strip_prefix(start)).unwrap_or_else(|| panic!("{text}"));
    assert_eq!(on("main on "), on("script on "));
}
