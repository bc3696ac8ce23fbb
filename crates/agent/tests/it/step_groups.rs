//! Plans whose steps contain other steps.

use muster_agent_api::plan::{Call, Step, When};
use muster_agent_api::result::{Outcome, StepNode, StepStatus};

use crate::harness::*;

fn group(name: &str, steps: Vec<Step>) -> Step {
    Step::new(name, "", Call::Steps(steps))
}

fn states(node: &StepNode) -> Vec<(&str, StepStatus)> {
    node.steps.iter().map(|step| (step.name.as_str(), step.status)).collect()
}

#[tokio::test]
async fn group_is_one_node_without_output() {
    let mut agent = Agent::start().await;
    let flat = agent.plan(vec![script(&["echo one"]), script(&["exit 7"]), script(&["echo never"])]);
    let (flat_log, flat_result) = agent.complete(&flat).await;
    let inner = group("inner", vec![script(&["exit 7"]), script(&["echo never"])]);
    let plan = agent.plan(vec![group("outer", vec![script(&["echo one"]), inner])]);
    let (log, result) = agent.complete(&plan).await;
    assert_eq!(log, flat_log);
    assert_eq!(result.outcome, flat_result.outcome);
    let outer = &result.tree.steps[1];
    assert_eq!((outer.status, outer.exit_code), (StepStatus::Failure, Some(7)));
    assert_eq!(states(outer), [("step_script", StepStatus::Success), ("inner", StepStatus::Failure)]);
    let inner = &outer.steps[1];
    assert_eq!(states(inner), [("step_script", StepStatus::Failure), ("step_script", StepStatus::Skipped)]);
}

#[tokio::test]
async fn cancel_reaches_a_group_and_its_after_script() {
    let mut agent = Agent::start().await;
    let after = after_script(&["echo \"it was $CI_JOB_STATUS\""]);
    let mut last = script(&["echo cleaned"]);
    last.policy.when = When::Finally;
    let body = vec![script(&["echo ready; sleep 600"]), after, script(&["echo never"]), last];
    let plan = agent.plan(vec![group("body", body), script(&["echo also never"])]);
    agent.run("1-1", &plan, &[]).await;
    agent.log_until("1-1", "\nready\n").await;
    agent.cancel("1-1").await;
    let (result, log) = (agent.wait("1-1").await, agent.log("1-1").await);
    assert_eq!(failure(&result).0, "job_canceled");
    assert!(log.contains("\nit was canceled\n") && log.contains("\ncleaned\n"), "{log}");
    assert!(!log.contains("\nnever\n") && !log.contains("\nalso never\n"), "{log}");
    assert_eq!(log.matches("script canceled externally").count(), 1, "{log}");
}

#[tokio::test]
async fn group_policy_applies_to_all_of_its_steps() {
    let mut agent = Agent::start().await;
    let mut body = group("body", vec![script(&["echo one"]), script(&["sleep 600"]), script(&["echo never"])]);
    body.policy.timeout_ms = 300;
    let mut plan = agent.plan(vec![body.clone()]);
    plan.timeout_ms = 3_600_000;
    let (log, result) = agent.complete(&plan).await;
    assert_eq!(failure(&result).0, "job_execution_timeout");
    assert!(log.contains("ERROR: Job failed: body timeout: exceeded timeout of 300ms"), "{log}");
    assert!(!log.contains("\nnever\n"), "{log}");

    body.policy.timeout_ms = 0;
    body.policy.allow_failure = true;
    body.call = Call::Steps(vec![script(&["exit 3"]), script(&["echo never"])]);
    let (log, result) = agent.complete(&agent.plan(vec![body, script(&["echo continues"])])).await;
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    assert!(log.contains("WARNING: body failed, but the job continues: exit status 3"), "{log}");
    assert!(log.contains("\ncontinues\n"), "{log}");
}

#[tokio::test]
async fn refusal_of_an_invalid_call_names_the_step() {
    let mut agent = Agent::start().await;
    let call = |name: &str, inputs| Call::Builtin { name: name.to_owned(), inputs };
    for (call, message) in [
        (call("nothing", serde_json::json!({})), "step \"bad\": there is no built-in step \"nothing\""),
        (
            call("script", serde_json::json!({ "commands": 7 })),
            "step \"bad\": inputs of builtin://script: invalid type",
        ),
    ] {
        let plan = agent.plan(vec![group("outer", vec![Step::new("bad", "", call)])]);
        let refused = agent.steps.run(request("1-1", &plan, &[])).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::InvalidArgument);
        assert!(refused.message().contains(message), "{refused}");
    }
    assert!(agent.ids().await.is_empty());
}
