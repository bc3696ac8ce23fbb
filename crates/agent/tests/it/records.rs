//! Parameters of steps in the result of a job.

use std::collections::BTreeMap;

use muster_agent_api::builtin::{CacheEntry, CacheObject, CacheRestore, Checkout, Script};
use muster_agent_api::plan::{Call, JobPlan, Step, When};
use muster_agent_api::result::{CallRecord, JobResult, MASKED, StepNode};
use muster_agent_api::step_runner::Variable;
use muster_job::Secret;
use serde_json::{Value, json};

use crate::harness::*;

const SECRET: &str = "s3cret-0815";

const GREET: &str = r#"spec:
  inputs: {name: {type: string}, times: {type: number, default: 1}, options: {type: struct, default: {}}}
  outputs: {text: {type: string}}
---
env: {GREETING: "hello ${{ inputs.name }}"}
exec:
  command: [sh, -c, 'echo "{\"name\":\"text\",\"value\":\"$GREETING\"}" >"$1"; echo "{\"name\":\"SHOWN\",\"value\":\"yes\"}" >"$2"', greet, '${{ output_file }}', '${{ export_file }}']
"#;

fn recording_plan(agent: &Agent, steps: Vec<Step>) -> JobPlan {
    let dir = agent.project().join("greet");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("step.yml"), GREET).unwrap();
    JobPlan { record_calls: true, ..agent.plan(steps) }
}

fn list(items: Value) -> Step {
    step("step_run", When::OnSuccess, Call::Run(items))
}

async fn run(agent: &mut Agent, plan: &JobPlan) -> JobResult {
    let secret = Variable { masked: true, ..variable("SECRET", SECRET) };
    agent.run("1-1", plan, &[secret]).await;
    let result = agent.wait("1-1").await;
    agent.close("1-1").await;
    result
}

fn call<'r>(result: &'r JobResult, path: &[&str]) -> &'r CallRecord {
    let find = |node: &'r StepNode, name: &&str| node.steps.iter().find(|step| step.name == *name).unwrap();
    path.iter().fold(&result.tree, find).call.as_deref().unwrap()
}

#[tokio::test]
async fn result_of_a_failed_job_has_the_parameters_of_each_step() {
    let mut agent = Agent::start().await;
    let items = json!([
        { "name": "greet", "step": "./greet", "inputs": { "name": "${{ vars.CI_JOB_NAME }}" }, "env": { "MORE": "1" } },
        { "name": "fails", "script": "exit 3" },
    ]);
    let plan = recording_plan(&agent, vec![list(items), after_script(&["echo bye"])]);
    agent.run("1-1", &plan, &[variable("CI_JOB_NAME", "build")]).await;
    let result = agent.wait("1-1").await;
    assert_eq!(failure(&result), ("script_failure".to_owned(), Some(3)));
    let checkout = call(&result, &["get_sources"]);
    assert_eq!((checkout.step.as_str(), &checkout.inputs["strategy"]), ("builtin:checkout", &json!("none")));
    assert_eq!(call(&result, &["after_script"]).inputs["commands"], json!(["echo bye"]));
    let greet = call(&result, &["step_run", "greet"]);
    assert_eq!(greet.step, "./greet");
    assert_eq!(Value::Object(greet.inputs.clone()), json!({ "name": "build", "times": 1, "options": {} }));
    assert_eq!((&greet.env["GREETING"], &greet.env["MORE"]), (&json!("hello build"), &json!("1")));
    assert_eq!(greet.command[..2], ["sh", "-c"]);
    assert!(!greet.work_dir.is_empty() && !greet.truncated, "{greet:?}");
    assert_eq!((&greet.outputs["text"], &greet.exports["SHOWN"]), (&json!("hello build"), &json!("yes")));
    let fails = &result.tree.steps[1].steps[1];
    assert_eq!((fails.exit_code, &fails.call.as_ref().unwrap().inputs["script"]), (Some(3), &json!("exit 3")));
    assert_eq!(fails.call.as_ref().unwrap().env["SHOWN"], "yes", "an export of an earlier step is a parameter");
}

#[tokio::test]
async fn result_has_no_records_unless_the_plan_requests_them() {
    let mut agent = Agent::start().await;
    let items = json!([{ "name": "greet", "step": "./greet", "inputs": { "name": "a" } }]);
    let plan = JobPlan { record_calls: false, ..recording_plan(&agent, vec![list(items), script(&["true"])]) };
    let (_, result) = agent.complete(&plan).await;
    let text = serde_json::to_string(&result).unwrap();
    assert!(text.contains("\"greet\"") && !text.contains("\"call\""), "{text}");
}

#[tokio::test]
async fn records_contain_no_secrets() {
    let mut agent = Agent::start().await;
    let signed = |kind: &str| Secret::new(format!("http://127.0.0.1:1/{kind}?X-Amz-Signature=signature4711"));
    let object = CacheObject { download: signed("get"), head: signed("head"), ..CacheObject::default() };
    let cache = CacheEntry {
        key: "main".to_owned(),
        cache_dir: agent.dir.path().join("cache").to_string_lossy().into_owned(),
        paths: vec!["target".to_owned()],
        policy: "pull".to_owned(),
        objects: BTreeMap::from([("main".to_owned(), object)]),
        ..CacheEntry::default()
    };
    let mut restore = step("restore_cache", When::OnSuccess, Call::builtin(&CacheRestore { caches: vec![cache] }));
    restore.policy.allow_failure = true;
    let checkout = Checkout {
        strategy: "none".to_owned(),
        repo_url: "https://gitlab-ci-token:token4711@127.0.0.1:1/g/p.git".to_owned(),
        ..Checkout::default()
    };
    let operator = Script { commands: vec!["true hook4711".to_owned()], by_operator: true, ..Script::default() };
    let mut operator = step("operator_before_x", When::OnSuccess, Call::builtin(&operator));
    operator.policy.by_operator = true;
    let inputs = json!({ "name": "${{ vars.SECRET }}", "options": { SECRET: [SECRET, 1] } });
    let items =
        json!([{ "name": "greet", "step": "./greet", "inputs": inputs, "env": { "KEY": "${{ vars.SECRET }}" } }]);
    let steps = vec![
        operator,
        step("sources", When::OnSuccess, Call::builtin(&checkout)),
        restore,
        list(items),
        script(&["echo s3cret-0815"]),
    ];
    let plan = recording_plan(&agent, steps);
    let result = run(&mut agent, &plan).await;
    assert_eq!(result.outcome, muster_agent_api::result::Outcome::Success, "{result:?}");
    let text = serde_json::to_string(&result).unwrap();
    assert!(!text.contains(SECRET) && !text.contains("4711"), "{text}");
    let greet = call(&result, &["step_run", "greet"]);
    assert_eq!((&greet.inputs["name"], &greet.env["KEY"]), (&json!(MASKED), &json!(MASKED)));
    assert_eq!(greet.inputs["options"], json!({ MASKED: [MASKED, 1] }), "names must be masked");
    assert_eq!(call(&result, &["sources"]).inputs["url"], "https://127.0.0.1:1/g/p.git");
    assert_eq!(call(&result, &["restore_cache"]).inputs["caches"][0]["key"], "main");
}

#[tokio::test]
async fn step_of_the_operator_is_recorded_without_its_values() {
    let mut agent = Agent::start().await;
    let items = json!([{ "name": "greet", "step": "./greet", "inputs": { "name": "of the operator" }, "env": { "A": "of the operator" } }]);
    let mut operator = step("operator_before_greet", When::OnSuccess, Call::Run(items));
    operator.policy.by_operator = true;
    let plan = recording_plan(&agent, vec![operator]);
    let result = run(&mut agent, &plan).await;
    let greet = call(&result, &["operator_before_greet", "greet"]);
    let inputs = json!({ "name": MASKED, "times": MASKED, "options": MASKED });
    assert_eq!(serde_json::to_value(greet).unwrap(), json!({ "step": "./greet", "inputs": inputs }));
}

#[tokio::test]
async fn large_parameters_are_cut_after_masking() {
    let mut agent = Agent::start().await;
    // The cut is inside the secret.
    let long = format!("{}{SECRET}{}", "x".repeat(64 * 1024 - 4), "y".repeat(100_000));
    let texts = vec!["z".repeat(50_000); 100];
    let items = json!([
        { "name": "long", "step": "./greet", "inputs": { "name": "a", "options": { "text": long } } },
        { "name": "many", "step": "./greet", "inputs": { "name": "a", "options": { "texts": texts } } },
        { "name": "small", "step": "./greet", "inputs": { "name": "a" } },
    ]);
    let plan = recording_plan(&agent, vec![list(items)]);
    let result = run(&mut agent, &plan).await;
    let text = serde_json::to_string(&result).unwrap();
    assert!(!text.contains("s3cr") && text.len() < 1 << 20, "{} bytes", text.len());
    let long = call(&result, &["step_run", "long"]);
    assert!(long.truncated && long.inputs["name"] == "a", "{:?}", long.step);
    let many = call(&result, &["step_run", "many"]);
    assert_eq!(serde_json::to_value(many).unwrap(), json!({ "step": "./greet", "truncated": true }));
    assert!(!call(&result, &["step_run", "small"]).truncated);

    // Full records are not cut.
    let long = "x".repeat(100_000);
    let items = json!([{ "name": "long", "step": "./greet", "inputs": { "name": "a", "options": { "text": long } } }]);
    let mut plan = recording_plan(&agent, vec![list(items)]);
    plan.development.full_records = true;
    let result = run(&mut agent, &plan).await;
    let record = call(&result, &["step_run", "long"]);
    assert!(!record.truncated && record.inputs["options"]["text"] == json!(long));
}

#[tokio::test]
async fn value_is_masked_in_records_that_are_older_than_its_declaration_as_sensitive() {
    let mut agent = Agent::start().await;
    let items = json!([
        { "name": "greet", "step": "./greet", "inputs": { "name": "late-4711" } },
        { "name": "use", "step": "./use", "inputs": { "token": "${{ steps.greet.outputs.text }}" } },
    ]);
    let plan = recording_plan(&agent, vec![list(items)]);
    let dir = agent.project().join("use");
    std::fs::create_dir_all(&dir).unwrap();
    let file = "spec: {inputs: {token: {type: string, sensitive: true}}}\n---\nexec: {command: ['true']}\n";
    std::fs::write(dir.join("step.yml"), file).unwrap();
    let result = run(&mut agent, &plan).await;
    assert_eq!(result.outcome, muster_agent_api::result::Outcome::Success, "{result:?}");
    let greet = call(&result, &["step_run", "greet"]);
    assert_eq!((&greet.outputs["text"], &greet.env["GREETING"]), (&json!(MASKED), &json!(MASKED)));
    assert_eq!(call(&result, &["step_run", "use"]).inputs["token"], MASKED);
}

#[tokio::test]
async fn records_of_a_list_have_a_maximum_size_before_they_are_cut() {
    let mut agent = Agent::start().await;
    let names: Vec<String> = (0..7).map(|index| format!("call{index}")).collect();
    let inputs = json!({ "name": "a", "options": { "text": "${{ vars.BIG }}" } });
    let items = names.iter().map(|name| json!({ "name": name, "step": "./greet", "inputs": inputs })).collect();
    let plan = recording_plan(&agent, vec![list(items)]);
    agent.run("1-1", &plan, &[variable("BIG", &"x".repeat(3 << 20))]).await;
    let result = agent.wait("1-1").await;
    let complete = names.iter().filter(|name| !call(&result, &["step_run", name]).inputs.is_empty()).count();
    assert_eq!(complete, 5, "a record has 3 MiB, and the maximum is 16 MiB");
}
