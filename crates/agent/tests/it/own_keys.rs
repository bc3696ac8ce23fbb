//! Steps with the key `muster`, which GitLab's steps lack.

use muster_agent_api::plan::{Call, When};
use muster_agent_api::result::{Outcome, StepStatus};
use serde_json::{Value, json};

use crate::harness::*;

fn list_step(list: Value) -> muster_agent_api::plan::Step {
    step("step_run", When::OnSuccess, Call::Run(list))
}

#[tokio::test]
async fn plan_sets_retry_delay_and_whether_steps_have_log_sections() {
    let mut agent = Agent::start().await;
    let list = json!([
        {"name": "flaky", "script": "test -e tried || { touch tried; exit 3; }", "muster": {"retry": 1, "section": "Try it"}},
        {"name": "a", "script": "echo a", "muster": {"parallel": true}},
        {"name": "b", "script": "echo b", "muster": {"parallel": true}},
    ]);
    let mut plan = agent.plan(vec![list_step(list)]);
    // The default delay is too long for a test.
    plan.retry_wait_ms = (1, 1);
    plan.trace_sections = true;
    let (log, result) = agent.complete(&plan).await;
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    let flaky = &result.tree.steps[1].steps[0];
    assert_eq!((flaky.attempts, flaky.status), (Some(2), StepStatus::Success));
    let markers: Vec<&str> = log
        .split(['\n', '\r'])
        .filter(|line| line.contains("section_start:") || line.contains("section_end:"))
        .filter_map(|line| line.rsplit_once(':').map(|(_, name)| name))
        .filter(|name| name.starts_with("step_run_"))
        .collect();
    let expected = ["step_run_flaky", "step_run_a", "step_run_b"].map(|name| [name, name]).concat();
    assert_eq!(markers, expected, "{log}");
    assert!(log.contains("WARNING: Retrying... flaky error=exec: exit status 3"), "{log}");
}

#[tokio::test]
async fn cancel_ends_all_parallel_steps_and_the_log_has_their_output() {
    let mut agent = Agent::start().await;
    let script = "echo $$ >pid-${{ matrix.n }}; echo begun ${{ matrix.n }}; echo >fifo-${{ matrix.n }}; exec sleep 600";
    let list = json!([
        {"name": "m", "script": script, "muster": {"parallel": true, "matrix": {"n": [1, 2]}, "retry": 3}},
        {"name": "after", "script": "echo never", "muster": {"when": "always"}},
    ]);
    let plan = agent.plan(vec![list_step(list), after_script(&["echo after_script"])]);
    std::fs::create_dir_all(agent.project()).unwrap();
    let fifos = [1, 2].map(|number| agent.project().join(format!("fifo-{number}")));
    for fifo in &fifos {
        rustix::fs::mknodat(rustix::fs::CWD, fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    }
    agent.run("1-1", &plan, &[]).await;
    for fifo in fifos {
        tokio::time::timeout(TIMEOUT, tokio::fs::read(fifo)).await.unwrap().unwrap();
    }
    agent.cancel("1-1").await;
    let (result, log) = (agent.wait("1-1").await, agent.log("1-1").await);
    assert_eq!(failure(&result).0, "job_canceled", "{log}");
    assert!(log.contains("\nbegun 1\n") && log.contains("\nbegun 2\n"), "{log}");
    assert!(log.contains("\nafter_script\n") && !log.contains("\nnever\n"), "{log}");
    assert!(!log.contains("Retrying"), "{log}");
    for number in [1, 2] {
        let pid = std::fs::read_to_string(agent.project().join(format!("pid-{number}"))).unwrap();
        assert!(!is_running(pid.trim()), "{number}");
    }
}

#[tokio::test]
async fn values_that_become_sensitive_in_a_parallel_step_are_masked_everywhere() {
    let mut agent = Agent::start().await;
    let secret = "spec: {inputs: {value: {type: string, sensitive: true}}}\n---\n\
                  exec: {command: [echo, '${{inputs.value}}']}\n";
    std::fs::create_dir_all(agent.project().join("secret")).unwrap();
    std::fs::write(agent.project().join("secret/step.yml"), secret).unwrap();
    let list = json!([
        {"name": "m", "step": "./secret", "inputs": {"value": "top-${{ matrix.n }}-value"},
         "muster": {"parallel": true, "matrix": {"n": [1, 2]}}},
        {"name": "show", "script": "echo seen top-1-value top-2-value"},
    ]);
    let (log, result) = agent.complete(&agent.plan(vec![list_step(list)])).await;
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    assert!(log.contains("\nseen [MASKED] [MASKED]\n") && !log.contains("top-1-value"), "{log}");
}
