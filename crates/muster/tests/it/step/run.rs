//! `muster step run` and `muster step results`.

use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::Project;
use crate::process::{CommandResult, until};

#[test]
fn step_runs_with_inputs_environment_and_its_exit_code() {
    let project = Project::new();
    // `1.10` is text, because the step declares a string.
    let result = project.step(&["run", "greet", "--input", "name=1.10", "--input", "times=2", "--env", "WHO=me, you"]);
    assert_eq!(result.check(0, &[]).stdout, "Running step name=greet\nHello 1.10 2 me, you\n");
    project.write("bad/step.yml", "spec: {}\n---\nexec: {command: [sh, -c, 'echo before; exit 42']}\n");
    project.step(&["run", "bad/step.yml"]).check(42, &["before", "error: step \"bad\": exec: exit status 42"]);
    assert_eq!(std::fs::read_dir(project.tmp()).unwrap().count(), 0, "temporary files must be removed");
}

#[tokio::test]
async fn interrupt_cancels_the_step_and_its_processes() {
    let project = Project::new();
    let step = "spec: {}\n---\nexec: {command: [sh, -c, 'echo $$ >new && mv new pid; exec sleep 1000']}\n";
    project.write("hang/step.yml", step);
    let mut command = project.command(&["run", "hang"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = until(async || std::fs::read_to_string(project.path("pid")).map_err(|error| error.to_string())).await;
    kill_process(Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap(), Signal::INT).unwrap();
    CommandResult::of_report(child.wait_with_output().unwrap()).check(1, &["error: "]);
    assert!(!std::path::Path::new("/proc").join(pid.trim()).exists());
    assert_eq!(std::fs::read_dir(project.tmp()).unwrap().count(), 0, "temporary files must be removed");
}

#[test]
fn invalid_arguments_are_rejected_with_a_remedy() {
    let project = Project::new();
    project.write("other.txt", "");
    project.write("broken/step.yml", "spec: {inputs: {a: {type: bool}}}\n---\n");
    for (arguments, code, text) in [
        (&["run"][..], 2, "STEP"),
        (&["run", "greet", "--input", "name"], 2, "is not of the form NAME=VALUE"),
        (&["run", "other.txt"], 1, "neither a directory with a step nor a step file"),
        (&["run", "broken"], 1, "one of string, number, boolean, struct and array"),
        (&["run", "greet", "--input", "nope=1"], 1, "does not accept input with name"),
        (&["run", "--job", "other.txt"], 1, "other.txt is not a valid job payload"),
        (&["run", "--job", "none.json"], 1, "failed to read none.json"),
    ] {
        project.step(arguments).check(code, &[text]);
    }
}

#[test]
fn results_have_inputs_environment_outputs_and_times() {
    let project = Project::new();
    let arguments = ["run", "greet", "--input", "name=you", "--input", "token=s3cret-value", "--env", "WHO=me"];
    project.step(&[&arguments[..], &["--results", "r.json"]].concat()).check(0, &[]);
    let tree: Value = serde_json::from_str(&project.read("r.json")).unwrap();
    let node = &tree["steps"][0]["steps"][0];
    assert_eq!((&node["name"], &node["status"]), (&json!("greet"), &json!("success")));
    let call = &node["call"];
    assert_eq!(call["inputs"], json!({"name": "you", "token": "[MASKED]", "times": 1}));
    assert_eq!(call["outputs"], json!({"text": "you"}));
    assert_eq!((&call["env"]["WHO"], &call["env"]["GREETING"]), (&json!("me"), &json!("Hello")));
    assert!(call["env"].get("PATH").is_none(), "{call}");
    let shown = project.step(&["results", "r.json"]);
    shown.check(
        0,
        &["success job", "success greet", "name = you", "GREETING = Hello", "text = you", "token = [MASKED]"],
    );
    project.write("other.json", "{}");
    project.step(&["results", "other.json"]).check(1, &["other.json is not a valid result tree"]);
}

#[test]
fn saved_job_runs_its_scripts_in_the_current_directory() {
    let project = Project::new();
    project.write("source.txt", "content");
    let payload = json!({
        "id": 7, "token": "job-token-of-the-server",
        "job_info": {"name": "build", "stage": "test", "project_id": 1},
        "git_info": {"repo_url": "https://gitlab.invalid/group/project.git", "sha": "abc"},
        "image": {"name": "alpine"},
        "variables": [
            {"key": "CI_JOB_NAME", "value": "build", "public": true},
            {"key": "KEY", "value": "masked-value", "masked": true},
        ],
        "cache": [{"key": "k", "paths": ["c"], "policy": "pull-push"}],
        "steps": [
            {"name": "script", "script": ["cat source.txt", "echo $CI_JOB_NAME $KEY", "exit 3"], "timeout": 60},
            {"name": "after_script", "script": ["echo after"], "timeout": 60, "when": "always"},
        ],
    });
    project.write("job.json", &payload.to_string());
    let result = project.step(&["run", "--job", "job.json"]).check(3, &["content", "build [MASKED]", "after"]);
    assert!(!result.stdout.contains("masked-value"));
    assert_eq!(project.read("source.txt"), "content");
}

#[test]
fn run_list_of_a_saved_job_is_executed() {
    let project = Project::new();
    let run = json!([{"name": "first", "step": "./greet", "inputs": {"name": "${{ vars.CI_NAME }}"}}]).to_string();
    let payload = json!({"id": 7, "token": "t0ken-of-job", "run": run,
        "variables": [{"key": "CI_NAME", "value": "saved", "public": true}]});
    project.write("job.json", &payload.to_string());
    project.step(&["run", "--job", "job.json"]).check(0, &["Hello saved 1"]);
}

#[test]
fn nondeterministic_file_is_reported_with_its_first_different_byte() {
    let project = Project::new();
    project.write(
        "stamp/step.yml",
        concat!(
            "spec: {outputs: {id: {type: string}}}\n---\n",
            "exec: {command: [sh, -c, 'mkdir -p out; echo same >out/a; printf \"at %s\" $$ >out/b; ",
            "echo \"{\\\"name\\\":\\\"id\\\",\\\"value\\\":\\\"$$\\\"}\" >\"$1\"', x, '${{ output_file }}']}\n",
        ),
    );
    let result = project.step(&["run", "stamp", "--verify-deterministic", "out"]);
    let result =
        result.check(1, &["out/b differs at byte ", "output \"id\" of step ", "not deterministic: 2 differences"]);
    assert!(!result.stdout.contains("out/a"), "{result:?}");
    assert!(!project.path("out").exists(), "the step must run only in copies of the directory");
    // Both runs see the same path of the working directory.
    project.write("fixed/step.yml", "spec: {}\n---\nexec: {command: [sh, -c, 'mkdir out; pwd >out/a']}\n");
    project.step(&["run", "fixed", "--verify-deterministic", "out"]).check(0, &[]);
    project.step(&["run", "fixed", "--verify-deterministic", "none"]).check(1, &["failed to copy or compare none"]);
    let outside = project.tmp().display().to_string();
    for path in ["../tmp", "greet/../../tmp", &outside] {
        let result = project.step(&["run", "fixed", "--verify-deterministic", path]);
        result.check(1, &[&format!("{path} is not in the current directory")]);
    }
    let once = format!("mkdir {} && mkdir out", project.path("has-run").display());
    project.write("once/step.yml", &format!("spec: {{}}\n---\nexec: {{command: [sh, -c, '{once}']}}\n"));
    let result = project.step(&["run", "once", "--verify-deterministic", "out"]);
    let result =
        result.check(1, &["the first run succeeded, and the second one failed", "not deterministic: 1 difference"]);
    assert!(!result.stdout.contains("out exists"), "{result:?}");
}

#[test]
fn nondeterministic_file_is_found_by_its_absolute_path() {
    let project = Project::new();
    let step = "spec: {}\n---\nexec: {command: [sh, -c, 'mkdir -p out; echo $$ >out/a']}\n";
    project.write("stamp/step.yml", step);
    project.write("out/a", "of an earlier run");
    let link = project.tmp().join("link");
    std::os::unix::fs::symlink(project.path(""), &link).unwrap();
    for path in [project.path("out"), link.join("out")] {
        let result = project.step(&["run", "stamp", "--verify-deterministic", path.to_str().unwrap()]);
        result.check(1, &["out/a differs at byte ", "not deterministic: 1 difference"]);
    }
}
