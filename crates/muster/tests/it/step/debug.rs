//! `muster step debug`, with commands on standard input.

use serde_json::Value;

use super::Project;

/// Step that runs `compile` with a sensitive input, and then `link`.
const BUILD: &str = r"spec: {}
---
run:
  - name: compile
    step: ./compile
    inputs: {secret: s3cret-value}
    env: {MODE: fast}
  - name: link
    script: echo linking
";
const COMPILE: &str = r#"spec:
  inputs:
    secret: {type: string, sensitive: true}
    level: {type: number, default: 2}
  outputs:
    object: {type: string}
---
exec:
  command: [sh, -c, 'echo compiling; printf "{\"name\":\"object\",\"value\":\"a.o\"}\n" >"$1"', x, '${{ output_file }}']
"#;

fn project() -> Project {
    let project = Project::new();
    project.write("build/step.yml", BUILD);
    project.write("build/compile/step.yml", COMPILE);
    project.write(
        "bad/step.yml",
        "spec: {}\n---\nrun:\n  - {name: fails, script: exit 5}\n  - {name: next, script: echo next}\n",
    );
    project
}

#[test]
fn paused_step_is_inspected_and_commands_run_in_its_environment() {
    let project = project();
    let lines = [
        "steps",
        "info",
        "env MODE",
        "! echo $MODE s3cret-value in $(pwd); exit 3",
        "nonsense",
        "break after:compile",
        "breakpoints",
        "continue",
        "outputs",
        "clear before:compile",
        "steps",
        "c",
    ];
    let result = project.step_with_input(&["debug", "build", "--break", "before:compile"], &lines).check(0, &[]);
    let output = &result.stdout;
    for text in [
        "Paused before build/compile\n",
        "  running  build\n> running    compile\n  waiting    link\n",
        "secret = [MASKED]",
        "level = 2",
        "MODE = fast\n",
        &format!("fast [MASKED] in {}\nexit code 3\n", project.path("").canonicalize().unwrap().display()),
        "unknown command \"nonsense\"; enter `help` for a list",
        "before:compile\nafter:compile\n",
        "compiling\nPaused after build/compile\n",
        "object = a.o\n",
        "linking\n",
    ] {
        assert!(output.contains(text), "{text:?} is missing in {output}");
    }
    assert!(!output.contains("s3cret-value"), "{output}");
    let position = |text: &str| output.find(text).unwrap();
    assert!(position("Paused before build/compile") < position("compiling\n"));
}

#[test]
fn commands_can_skip_a_step_or_ignore_its_failure_or_fail_it() {
    let project = project();
    let result = project.step_with_input(&["debug", "build", "--break", "before:compile"], &["skip"]).check(0, &[]);
    assert!(result.stdout.contains("linking") && !result.stdout.contains("compiling"), "{result:?}");
    let result = project.step_with_input(&["debug", "bad", "--break", "failure"], &["skip"]);
    result.check(0, &["Paused after bad/fails, which failed: exec: exit status 5", "next\n"]);
    let result = project.step_with_input(&["debug", "bad", "--break", "failure"], &["c", "c"]);
    result.check(5, &["Paused after bad, which failed"]);
    let result = project.step_with_input(&["debug", "build", "--break", "before:link"], &["fail"]);
    result.check(1, &["failed by the debugger"]);
}

#[test]
fn job_without_breakpoints_pauses_at_its_start_and_obeys_the_command_next() {
    let project = project();
    let result = project.step_with_input(&["debug", "bad", "--results", "r.json"], &["next", "next", "skip", "detach"]);
    result.check(
        0,
        &["Paused before bad\n", "Paused before bad/fails\n", "Paused after bad/fails, which failed", "next\n"],
    );
    let tree: Value = serde_json::from_str(&project.read("r.json")).unwrap();
    assert_eq!(tree["steps"][0]["steps"][0]["steps"][0]["status"], "success", "{tree}");
}

#[test]
fn end_of_the_input_lets_the_job_continue() {
    let project = project();
    let result = project.step_with_input(&["debug", "build", "--break", "before:*"], &[]);
    result.check(0, &["Paused before build\n", "compiling", "linking"]);
}

#[test]
fn quit_cancels_the_paused_job() {
    let project = project();
    let result =
        project.step_with_input(&["debug", "build", "--break", "before:link"], &["quit"]).check(1, &["compiling"]);
    assert!(!result.stdout.contains("linking"), "{result:?}");
    assert_eq!(std::fs::read_dir(project.tmp()).unwrap().count(), 0, "temporary files must be removed");
}

#[test]
fn steps_of_a_saved_job_are_paused() {
    let project = project();
    let payload = r#"{"id": 7, "token": "t0ken-of-job", "variables": [{"key": "KEY", "value": "masked-value", "masked": true}],
        "steps": [{"name": "script", "script": ["echo in the script"], "timeout": 60}]}"#;
    project.write("job.json", payload);
    let lines = ["env KEY", "! echo $KEY", "c"];
    let result = project.step_with_input(&["debug", "--job", "job.json", "--break", "before:step_script"], &lines);
    let result = result.check(0, &["Paused before step_script", "KEY = [MASKED]", "[MASKED]\n", "in the script"]);
    assert!(!result.stdout.contains("masked-value"));
}

#[test]
fn invalid_breakpoint_is_rejected() {
    project().step(&["debug", "build", "--break", "compile"]).check(2, &["\"compile\" is not a valid breakpoint"]);
}
