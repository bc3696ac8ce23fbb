//! Limits of the disk space of a job's directories.

use muster_agent_api::plan::{Call, Step, When};
use muster_agent_api::result::{JobResult, Outcome, StepStatus};
use muster_job::{PolicyRule, StepLimits, StepPolicy};
use serde_json::{Value, json};

use crate::harness::*;

const EXCEEDED: &str = "the directories of the job hold more than 16 MiB, the disk limit of the runner's step policy; ";

fn disk(megabytes: u64) -> StepLimits {
    StepLimits { disk_bytes: Some(megabytes << 20), ..StepLimits::default() }
}

fn write(file: &str, megabytes: u64) -> String {
    format!("dd if=/dev/zero of={file} bs=1M count={megabytes} 2>/dev/null")
}

async fn run(limits: StepLimits, steps: Vec<Step>) -> (String, JobResult) {
    let mut agent = Agent::start().await;
    let mut plan = agent.plan(steps);
    plan.step_policy = Some(StepPolicy { limits, ..StepPolicy::default() });
    agent.complete(&plan).await
}

#[tokio::test]
async fn step_that_fills_the_disk_is_ended_with_the_reason() {
    let steps = vec![
        script(&[&write("large", 40), "sleep 600 & echo begun; wait; echo never"]),
        after_script(&["ls large && rm large", "echo cleaned"]),
    ];
    let (log, result) = run(disk(16), steps).await;
    assert_eq!(failure(&result).0, "script_failure", "{log}");
    assert!(result.message.contains(EXCEEDED) && log.contains(EXCEEDED), "{} {log}", result.message);
    assert!(!log.contains("\nnever\n") && log.contains("\nlarge\n") && log.contains("\ncleaned\n"), "{log}");
}

#[tokio::test]
async fn step_cannot_succeed_with_more_than_its_limit() {
    let (log, result) = run(disk(16), vec![script(&[&write("large", 40)]), script(&["echo never"])]).await;
    assert_eq!(failure(&result).0, "script_failure", "{log}");
    assert!(log.contains(EXCEEDED) && !log.contains("\nnever\n"), "{log}");
    // Temporary files count.
    let (log, result) = run(disk(16), vec![script(&[&write("\"$PWD.tmp/large\"", 40)])]).await;
    assert!(matches!(result.outcome, Outcome::Failed { .. }) && log.contains(EXCEEDED), "{log}");
    let fits = [write("one", 8), "truncate -s 1T sparse".to_owned(), "ln one two; echo fits".to_owned()];
    let (log, result) = run(disk(16), vec![script(&fits.each_ref().map(String::as_str))]).await;
    assert_eq!(result.outcome, Outcome::Success, "{log}");
}

#[tokio::test]
async fn after_script_cannot_fill_a_full_directory_further() {
    let steps = vec![script(&[&write("large", 40)]), after_script(&[&write("more", 40), "sleep 600; echo never"])];
    let (log, result) = run(disk(16), steps).await;
    let warning = format!("WARNING: after_script failed, but job will continue unaffected: {EXCEEDED}");
    assert!(matches!(result.outcome, Outcome::Failed { .. }) && log.contains(&warning), "{log}");
    assert!(!log.contains("\nnever\n"), "{log}");
}

#[tokio::test]
async fn limit_of_a_rule_ends_only_its_steps() {
    let mut agent = Agent::start().await;
    let rule = |line, pattern: &str, limits| PolicyRule {
        line,
        pattern: pattern.to_owned(),
        is_allowed: true,
        limits,
        ..PolicyRule::default()
    };
    std::fs::create_dir_all(agent.project().join("filling")).unwrap();
    let text = format!("{{}}\n---\nrun:\n  - {{name: fill, script: '{}; exec sleep 600'}}\n", write("large", 40));
    std::fs::write(agent.project().join("filling/step.yml"), text).unwrap();
    let parallel = |name: &str, mut keys: Value| {
        keys["name"] = json!(name);
        keys["muster"] = json!({"parallel": true});
        keys
    };
    let list = json!([
        {"name": "fifo", "script": "mkfifo fifo"},
        {"name": "filling", "step": "./filling", "muster": {"parallel": 2, "retry": 2, "allow_failure": true}},
        parallel("long", json!({"script": "read x <fifo; echo long ends"})),
        parallel("last", json!({"script": "rm large; echo >fifo"})),
    ]);
    let mut plan = agent.plan(vec![step("step_run", When::OnSuccess, Call::Run(list))]);
    let rules = vec![rule(1, "local:./filling", disk(16)), rule(2, "**", StepLimits::default())];
    plan.step_policy = Some(StepPolicy { rules, ..StepPolicy::default() });
    let (log, result) = agent.complete(&plan).await;
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    assert!(log.contains(&format!("filling failed, but the job continues: {EXCEEDED}")), "{log}");
    assert!(log.contains("\nlong ends\n"), "{log}");
    let filling = &result.tree.steps[1].steps[1];
    assert_eq!((filling.status, filling.attempts), (StepStatus::Failure, None), "the step must not be retried");
}
