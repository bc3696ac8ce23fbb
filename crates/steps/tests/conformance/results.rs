//! Cases 119 and 121: the file with the results of all steps. The cases about the command `step-runner ci` are tested
//! with a `run:` list instead of the command.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use super::harness::Project;

const FILE: &str = "step-results.json";

fn results(project: &Project) -> Value {
    serde_json::from_str(&fs::read_to_string(project.path().join(FILE)).unwrap()).unwrap()
}

fn debug_project() -> Project {
    Project::new().variable("CI_STEPS_DEBUG", "true").variable("V", "v")
}

#[tokio::test]
async fn c119_list_of_a_job_chains_outputs_and_writes_results_only_on_request() {
    let list = json!([
        {"name": "w", "step": "./w", "inputs": {"line": "{\"name\":\"x\",\"value\":\"chained\"}"}},
        {"name": "p", "script": "echo ${{steps.w.outputs.x}}"},
    ]);
    let project = Project::new();
    assert_eq!(project.run_list(list.clone()).await.log(), "chained\n");
    assert!(!project.path().join(FILE).exists());
    let project = debug_project();
    assert_eq!(project.run_list(list).await.log(), "chained\n");
    let mode = fs::metadata(project.path().join(FILE)).unwrap().permissions().mode();
    assert_eq!((results(&project)["status"].as_str(), mode & 0o777), (Some("success"), 0o640));
}

#[tokio::test]
async fn c119_results_of_a_failure_are_written() {
    let project = debug_project();
    project.run_list(json!([{"name": "bad", "script": "exit 3"}])).await.assert_error("exit status 3");
    let results = results(&project);
    assert_eq!(results["status"], "failure");
    assert_eq!(results["subStepResults"][0]["execResult"]["exitCode"], 3);
}

#[tokio::test]
async fn c119_results_file_replaces_a_symbolic_link() {
    let project = debug_project().file("target", "untouched");
    std::os::unix::fs::symlink("target", project.path().join(FILE)).unwrap();
    project.run("- {name: a, script: 'true'}").await.log();
    assert_eq!(fs::read_to_string(project.path().join("target")).unwrap(), "untouched");
    assert_eq!(results(&project)["status"], "success");
}

#[tokio::test]
async fn c121_outermost_definition_is_unexpanded() {
    let project = debug_project();
    project.run("- {name: e, step: ./e, inputs: {s: '${{job.V}}'}, env: {A: '${{job.V}}'}}").await.log();
    let results = results(&project);
    let step = json!({"protocol": "local", "path": [".", "e"], "filename": "step.yml"});
    let steps = json!([{"name": "e", "step": step, "env": {"A": "${{job.V}}"}, "inputs": {"s": "${{job.V}}"}}]);
    assert_eq!(results["specDefinition"]["definition"], json!({"type": "steps", "steps": steps}));
    assert_eq!(results["specDefinition"]["spec"], json!({"spec": {}}));
    assert_eq!(results["step"], json!({}));
}

#[tokio::test]
async fn c121_inputs_env_and_command_of_inner_steps_are_expanded() {
    let project = debug_project();
    project.run("- {name: e, step: ./e, inputs: {s: '${{job.V}}'}, env: {A: '${{job.V}}'}}").await.log();
    let results = results(&project);
    let inner = &results["subStepResults"][0];
    assert_eq!(inner["step"]["name"], "e");
    assert_eq!(inner["step"]["inputs"], json!({"s": "v"}));
    assert_eq!((&inner["step"]["env"]["A"], &inner["env"]["A"]), (&json!("v"), &json!("v")));
    assert_eq!((&inner["status"], &inner["outputs"]), (&json!("success"), &json!({"x": "dx"})));
    assert_eq!(inner["execResult"]["command"], json!(["printf", "%s|%s|%s|%s|%s|\\n", "v", "1", "true", "{}", "[]"]));
    assert_eq!(inner["execResult"]["workDir"], json!(project.path()));
    assert_eq!(inner["execResult"]["exitCode"], Value::Null);
    let spec = &inner["specDefinition"]["spec"]["spec"];
    assert_eq!(spec["inputs"]["n"], json!({"type": "number", "default": 1}));
    assert_eq!(inner["specDefinition"]["definition"]["exec"]["command"][2], "${{inputs.s}}");
}

#[tokio::test]
async fn c121_exports_and_nested_steps_are_in_the_results() {
    let nested = "{}\n---\nrun: [{name: x, step: ../x, inputs: {line: '{\"name\":\"E\",\"value\":1}'}}]";
    let project = debug_project().step("nested", nested);
    project.run("- {name: n, step: ./nested}").await.log();
    let results = results(&project);
    let sequence = &results["subStepResults"][0];
    assert_eq!(sequence["exports"], Value::Null);
    assert_eq!(sequence["subStepResults"][0]["exports"], json!({"E": "1"}));
}

#[tokio::test]
async fn c121_failed_step_keeps_its_exit_code_and_step_that_failed_to_load_has_no_result() {
    let nested = "{}\n---\nrun: [{name: bad, script: exit 7}]";
    let project = debug_project().step("nested", nested);
    project.run("- {name: n, step: ./nested}\n- {name: never, script: 'true'}").await.assert_error("exit status 7");
    let failed = results(&project);
    assert_eq!(failed["subStepResults"].as_array().unwrap().len(), 1);
    let bad = &failed["subStepResults"][0]["subStepResults"][0];
    assert_eq!((&bad["status"], &bad["execResult"]["exitCode"]), (&json!("failure"), &json!(7)));
    assert_eq!(bad["step"]["step"]["protocol"], "dist");
    project.run("- {name: a, step: ./none}").await.assert_error("failed to load");
    assert_eq!(results(&project)["subStepResults"], Value::Null);
}

#[tokio::test]
async fn c121_program_that_does_not_start_has_exit_code_minus_one() {
    let project = debug_project().step("lost", "{}\n---\nexec: {command: [no-such-program]}");
    project.run("- {name: a, step: ./lost}").await.assert_error("executable file not found in $PATH");
    assert_eq!(results(&project)["subStepResults"][0]["execResult"]["exitCode"], -1);
    let project = debug_project();
    project.run("- {name: a, script: kill -9 $$}").await.assert_error("signal: killed");
    assert_eq!(results(&project)["subStepResults"][0]["execResult"]["exitCode"], -1);
}
