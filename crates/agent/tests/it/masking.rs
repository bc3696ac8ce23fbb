//! Errors of steps hide masked values in the log and the result.

use muster_agent_api::builtin::ResourceShare;
use muster_agent_api::plan::{Call, When};
use muster_agent_api::step_runner::Variable;
use serde_json::{Value, json};

use crate::harness::*;

/// Secret with characters that quoting escapes.
const SECRET: &str = "s3cret \"of\" the\\job";
/// Secret without such characters.
const SIMPLE_SECRET: &str = "s3cret-without-them";

/// Runs a `run:` list, which must fail. `exec` defines the step `./exec`, and `./type` has an invalid input type.
/// Returns the log, and an object with the job's result and the message of its status.
async fn run_failing_steps(list: Value, exec: Value) -> (String, Value) {
    let mut agent = Agent::start().await;
    let typed = json!({"spec": {"inputs": {"a": {"type": SECRET}}}});
    for (name, text) in [("type", format!("{typed}\n---\n{{}}")), ("exec", format!("{{}}\n---\n{exec}"))] {
        let dir = agent.project().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("step.yml"), text).unwrap();
    }
    let steps = step("step_run", When::OnSuccess, Call::Run(list));
    let plan = agent.plan(vec![steps]);
    let masked = |key, value| Variable { masked: true, ..variable(key, value) };
    agent.run("1-1", &plan, &[masked("SECRET", SECRET), masked("SIMPLE_SECRET", SIMPLE_SECRET)]).await;
    let result = agent.wait("1-1").await;
    assert_eq!(failure(&result).0, "script_failure");
    let status = agent.steps.status(muster_agent_api::step_runner::StatusRequest { id: "1-1".to_owned() }).await;
    let jobs = status.unwrap().into_inner().jobs;
    let log = agent.log("1-1").await;
    (log, json!({ "result": result, "status": jobs.first().unwrap().message }))
}

#[tokio::test]
async fn step_errors_do_not_show_masked_values() {
    let call = |step: &str| json!([{"name": "it", "step": step}]);
    let exec = || call("./exec");
    let value = "${{ vars.SECRET }}";
    let valid = || json!({"exec": {"command": ["true"]}});
    let command = |command: &[&str]| json!({"exec": {"command": command}});
    let output = |line: &str| {
        let write = format!("printf '{line}\\n' \"$1\" > \"$2\"");
        command(&["sh", "-c", &write, "sh", "${{ vars.SIMPLE_SECRET }}", "${{ output_file }}"])
    };
    let cases = [
        ("a path", call(&format!("./{value}")), valid()),
        ("an unknown kind of reference", call(value), valid()),
        ("an unknown built-in step", call(&format!("builtin://{value}")), valid()),
        ("a value that is not a number", json!([{"name": "it", "script": "${{ num(vars.SECRET) }}"}]), valid()),
        ("the name of a step", json!([{"name": SECRET, "script": "exit 3"}]), valid()),
        ("the type of an input", call("./type"), valid()),
        ("an input", json!([{"name": "it", "step": "./exec", "inputs": {SECRET: 1}}]), valid()),
        ("a program", exec(), command(&[value])),
        ("a path of a program", exec(), command(&[&format!("/{value}")])),
        ("an invalid expression in a command", exec(), command(&[&format!("${{{{ {SECRET} }}}}")])),
        ("a directory", exec(), json!({"exec": {"command": ["true"], "work_dir": format!("/{value}")}})),
        ("a key of an output", exec(), output(r#"{"name":"%s","value":1}"#)),
        ("an output line that is a string", exec(), output(r#""%s""#)),
    ];
    for (case, list, step) in cases {
        let (log, result) = run_failing_steps(list, step).await;
        assert!(!result.to_string().contains("s3cret"), "{case}: {result}");
        assert!(!log.contains("s3cret"), "{case}: {log}");
    }
}

#[tokio::test]
async fn reason_for_a_missing_share_does_not_show_masked_values() {
    let mut agent = Agent::start().await;
    let mut plan = agent.plan(vec![script(&["true"])]);
    let cgroup = format!("../{SIMPLE_SECRET}");
    plan.share = Some(ResourceShare { cgroup, slots: 1, measure: true, ..ResourceShare::default() });
    agent.run("1-1", &plan, &[Variable { masked: true, ..variable("SIMPLE_SECRET", SIMPLE_SECRET) }]).await;
    let used = agent.wait("1-1").await.used.unwrap();
    assert_eq!(used.share_error, "`../[MASKED]` is not a valid name of a cgroup");
}
