//! `ci`, `run` and `bootstrap`.

use serde_json::{Value, json};

use super::*;

fn ci(project: &Project, steps: &Value) -> Command {
    let mut command = project.command(&["ci"]);
    command.env("STEPS", steps.to_string());
    command
}

#[test]
fn c119_ci_chains_outputs_and_prints_the_error_with_exit_code_1() {
    let project = Project::new();
    let steps = json!([
        {"name": "first", "step": "./echo", "inputs": {"text": "${{ job.CI_NAME }}"}, "env": {"WHO": "me"}},
        {"name": "second", "script": "echo ${{ steps.first.outputs.text }} $CI_NAME $PATH; exit 3"},
        {"name": "never", "script": "echo never"},
    ]);
    let result = ci(&project, &steps).env("CI_NAME", "value").env("PATH", "/usr/bin:/bin").env("OTHER", "x").output();
    let result = CommandResult::of(result.unwrap());
    let expected = "Running step name=first\nvalue 1 me\nRunning step name=second\nvalue /usr/bin:/bin\n".to_owned();
    assert_eq!(output(&result), expected);
    assert_eq!(result.stderr, "Error: failed to run steps: step \"second\": exec: exit status 3\n");
    assert_eq!(result.code, 1);
    assert_eq!(std::fs::read_dir(project.tmp()).unwrap().count(), 0, "temporary files must be removed");
}

#[test]
fn c119_results_are_written_on_request_only() {
    let project = Project::new();
    let steps = json!([{"name": "bad", "script": "exit 3"}]);
    let exists = || project.work().join("step-results.json").exists();
    CommandResult::of(ci(&project, &steps).output().unwrap()).check(1, &[]);
    CommandResult::of(
        ci(&project, &steps).arg("--write-steps-results=false").env("CI_STEPS_DEBUG", "1").output().unwrap(),
    )
    .check(1, &["Error: failed to run steps: step \"bad\": exec: exit status 3"]);
    assert!(!exists());
    for request in
        [ci(&project, &steps).arg("--write-steps-results"), ci(&project, &steps).env("CI_STEPS_DEBUG", "true")]
    {
        CommandResult::of(request.output().unwrap()).check(1, &[]);
        let results: Value = serde_json::from_str(&project.read("step-results.json")).unwrap();
        assert_eq!(results["subStepResults"][0]["execResult"]["exitCode"], 3);
        std::fs::remove_file(project.work().join("step-results.json")).unwrap();
    }
}

#[test]
fn ci_runs_in_the_project_directory_and_writes_the_results_to_the_working_directory() {
    let project = Project::new();
    let elsewhere = project.dir.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    let mut command = ci(&project, &json!([{"name": "a", "step": "./echo"}, {"name": "b", "script": "pwd"}]));
    command.env("CI_PROJECT_DIR", project.work()).current_dir(&elsewhere).arg("--write-steps-results");
    let result = CommandResult::of(command.output().unwrap()).check(0, &[]);
    assert!(output(&result).ends_with(&format!("{}\n", project.work().display())), "{result:?}");
    assert!(elsewhere.join("step-results.json").exists());
}

#[test]
fn invalid_steps_are_rejected_with_their_location() {
    let project = Project::new();
    project.run(&["ci"]).check(1, &["Error: the environment variable STEPS is not set"]);
    for (steps, message) in [
        ("- {name: a", "reading STEPS: line 1"),
        ("a: b", "reading STEPS: `run` must be a list of at least one step"),
        ("- {name: a, script: ls}\n- {name: b}", "reading STEPS: step 2: \"b\" needs exactly one of `script`"),
        ("- {name: a, step: ./none}", "failed to run steps: step \"a\": failed to load"),
    ] {
        let result = CommandResult::of(project.command(&["ci"]).env("STEPS", steps).output().unwrap());
        result.check(1, &[message]);
    }
    project.run(&["nonsense"]).check(1, &["unrecognized subcommand 'nonsense'"]);
    project.run(&["ci", "--nope"]).check(1, &["unexpected argument '--nope'"]);
}

#[test]
fn c120_run_reads_inputs_as_yaml_and_sets_the_environment() {
    let project = Project::new();
    let result = project.run(&["run", "./echo", "--inputs", "text=a,number=3", "--env", "WHO=x, y", "--job", "V=1"]);
    assert_eq!(output(&result.check(0, &[])), "Running step name=\na 3 x, y\n");
    let result = project.run(&["run", "step: ./echo", "--inputs", "text=${{ job.V }}", "--job", "V=of job"]);
    assert_eq!(output(&result.check(0, &[])), "Running step name=\nof job 1 \n");
    project.run(&["run"]).check(1, &["Error: no step specified"]);
    project.run(&["run", "./echo", "--inputs", "text"]).check(1, &["\"text\" is not of the form name=value"]);
    project.run(&["run", "./echo", "--inputs", "other=1"]).check(1, &["does not accept input with name \"other\""]);
    let git = ["run", "--git-url", "http://127.0.0.1:1/steps", "--git-rev", "v1"];
    project.run(&git).check(1, &["http://127.0.0.1:1/steps@v1: ", "Connection refused"]);
    project.run(&git[..3]).check(1, &["field rev in git: required"]);
    let oci = ["run", "--oci-registry", "127.0.0.1:1", "--oci-repository", "steps", "--oci-tag", "1"];
    project.run(&oci).check(1, &["127.0.0.1:1/steps:1: ", "check the name of the registry"]);
}

#[test]
fn c120_run_hides_variables_of_a_job_from_the_step() {
    let project = Project::new();
    let steps = "{}\n---\nexec: {command: [sh, -c, 'echo [$CI_A$GITLAB_B$FF_C$DOCKER_ENV_D$OTHER]']}\n";
    project.write("env/step.yml", steps);
    let mut command = project.command(&["run", "./env"]);
    for name in ["CI_A", "GITLAB_B", "FF_C", "DOCKER_ENV_D", "OTHER"] {
        command.env(name, name);
    }
    let result = CommandResult::of(command.output().unwrap()).check(0, &[]);
    assert_eq!(output(&result), "Running step name=\n[OTHER]\n");
}

#[test]
fn c120_definition_and_results_can_have_the_text_format_of_protobuf() {
    let project = Project::new();
    let definition = r#"
type: steps
steps { name: "one" step { protocol: local path: ["..", "echo"] filename: "step.yml" } inputs { key: "text" value { string_value: "hi" } } }
steps { name: "two" step { protocol: dist path: "script" } inputs { key: "script" value { string_value: "echo ${{ steps.one.outputs.text }} again; exit 4" } } }
"#;
    project.write("sub/list.txtpb", definition);
    let arguments = ["run", "--text-proto-step-file", "sub/list.txtpb", "--step-results-format", "prototext"];
    let result = project.run(&[&arguments[..], &["--write-steps-results"]].concat());
    assert_eq!(output(&result), "Running step name=one\nhi 1 \nRunning step name=two\nhi again\n");
    result.check(1, &["step \"two\": exec: exit status 4"]);
    let results = project.read("step-results.txtpb");
    for part in ["specDefinition{", "status:failure", "sub_step_results:[", "exit_code:4", "string_value:\"hi\""] {
        assert!(results.replace(' ', "").contains(part), "{part} is missing in {results}");
    }
    project.write(
        "exec.txtpb",
        "type: exec exec { command: [\"sh\", \"-c\", \"echo $A\"] } env { key: \"A\" value: \"b\" }",
    );
    let result = project.run(&["run", "--text-proto-step-file", "exec.txtpb", "--step-results-file", "out.json"]);
    assert_eq!(output(&result.check(0, &[])), "Running step name=\nb\n");
    assert!(project.read("out.json").contains("\"status\":\"success\""));
    project.write("bad.txtpb", "nonsense: 1");
    let result = project.run(&["run", "--text-proto-step-file", "bad.txtpb"]);
    result.check(1, &["bad.txtpb is not a definition in the text format"]);
}

#[test]
fn c122_bootstrap_copies_the_executable_repeatedly_but_not_over_a_directory() {
    let project = Project::new();
    let bin = project.dir.path().join("new/bin");
    for _ in 0..2 {
        project.run(&["bootstrap", bin.to_str().unwrap()]).check(0, &[]);
    }
    let copy = project.program(&bin.join("step-runner"), &["--version"]).output().unwrap();
    assert_eq!(CommandResult::of(copy).stdout, format!("step-runner {}\n", env!("CARGO_PKG_VERSION")));
    project.write("file", "");
    project.run(&["bootstrap", "file"]).check(1, &["failed to copy this executable to file/step-runner"]);
    std::fs::create_dir_all(project.work().join("taken/step-runner")).unwrap();
    project.run(&["bootstrap", "taken"]).check(1, &["failed to copy this executable to taken/step-runner"]);
}
