//! Steps of the operator, the step policy, and the resources that steps use.

use std::collections::BTreeMap;

use muster_agent_api::result::{JobResult, Outcome, StepStatus};
use muster_job::{PolicyRule, StepLimits, StepPolicy};
use muster_test_prerequisites::create_program;
use serde_json::{Value, json};

use crate::harness::*;
use muster_agent_api::builtin::{ArtifactsList, ArtifactsUpload, Script};
use muster_agent_api::plan::{Call, Step, When};

fn operator_step(name: &str, commands: &[&str]) -> Step {
    let commands = commands.iter().map(ToString::to_string).collect();
    let env = BTreeMap::from([("OWN".to_owned(), "it's mine".to_owned())]);
    let script = Script { commands, env, by_operator: true, ..Script::default() };
    let mut step = Step::new(name, name, Call::builtin(&script));
    step.policy.by_operator = true;
    step
}

/// Returns an operator's step after the job. `is_required` means that its failure fails the job.
fn step_after_job(name: &str, commands: &[&str], is_required: bool) -> Step {
    let mut step = operator_step(name, commands);
    step.policy.when = When::Finally;
    step.policy.allow_failure = !is_required;
    step.policy.timeout_ms = 60_000;
    step
}

#[tokio::test]
async fn failed_step_before_the_job_is_a_system_failure() {
    let mut agent = Agent::start().await;
    let steps = vec![
        operator_step("operator_before_audit", &["echo \"owned by $OWN\"; exit 3"]),
        script(&["echo never"]),
        after_script(&["echo never"]),
        step_after_job("operator_after_report", &["echo \"job is $CI_JOB_STATUS\""], false),
    ];
    let (log, result) = agent.complete(&agent.plan(steps)).await;
    assert_eq!(failure(&result), ("runner_system_failure".to_owned(), None));
    let text = "ERROR: Job failed (system failure): the step `operator_before_audit` that the operator added to each job of this runner \
                failed: exit status 3";
    assert!(log.contains(text) && log.contains("\nowned by it's mine\n"), "{log}");
    assert!(!log.contains("\nnever\n") && log.contains("\njob is failed\n"), "{log}");
    assert_eq!(
        states(&result)[1..],
        [
            ("operator_before_audit", StepStatus::Failure),
            ("step_script", StepStatus::Skipped),
            ("after_script", StepStatus::Skipped),
            ("operator_after_report", StepStatus::Success)
        ]
    );
}

#[tokio::test]
async fn steps_after_the_job_run_whatever_its_result_is() {
    let mut agent = Agent::start().await;
    let report = || step_after_job("operator_after_report", &["echo \"job is $CI_JOB_STATUS\""], false);
    let (log, result) = agent.complete(&agent.plan(vec![script(&["exit 7"]), report()])).await;
    assert_eq!(failure(&result), ("script_failure".to_owned(), Some(7)));
    assert!(log.contains("\njob is failed\n"), "{log}");

    let mut plan = agent.plan(vec![script(&["sleep 600"]), report()]);
    plan.timeout_ms = 500;
    let (log, result) = agent.complete(&plan).await;
    assert_eq!(failure(&result).0, "job_execution_timeout");
    assert!(log.contains("\njob is timedout\n"), "{log}");

    agent.run("2-1", &agent.plan(vec![script(&["echo ready; sleep 600"]), report()]), &[]).await;
    agent.log_until("2-1", "\nready\n").await;
    agent.cancel("2-1").await;
    let (result, log) = (agent.wait("2-1").await, agent.log("2-1").await);
    assert_eq!(failure(&result).0, "job_canceled");
    assert!(log.contains("\njob is canceled\n"), "{log}");
}

#[tokio::test]
async fn failure_after_the_job_is_reported_and_fails_it_only_if_required() {
    let mut agent = Agent::start().await;
    let failing = |required| step_after_job("operator_after_report", &["exit 4"], required);
    let (log, result) = agent.complete(&agent.plan(vec![script(&["true"]), failing(false)])).await;
    assert_eq!(result.outcome, Outcome::Success);
    assert!(log.contains("WARNING: operator_after_report failed, but the job continues: "), "{log}");
    assert_eq!(states(&result)[2], ("operator_after_report", StepStatus::Failure));

    let (log, result) = agent.complete(&agent.plan(vec![script(&["true"]), failing(true)])).await;
    assert_eq!(failure(&result).0, "runner_system_failure");
    assert!(log.contains("the step `operator_after_report` that the operator added"), "{log}");

    let (log, result) = agent.complete(&agent.plan(vec![script(&["exit 7"]), failing(true)])).await;
    assert_eq!(failure(&result), ("script_failure".to_owned(), Some(7)), "the first failure must be reported");
    assert!(log.contains("WARNING: the step `operator_after_report` that the operator added"), "{log}");
}

#[tokio::test]
async fn job_does_not_select_the_programs_of_the_operator() {
    let mut agent = Agent::start().await;
    let programs = agent.dir.path().join("programs");
    std::fs::create_dir(&programs).unwrap();
    create_program(programs.join("uname"), "#!/bin/sh\necho planted\n");
    let path = format!("{}:/usr/bin:/bin", programs.display());
    let variables =
        [variable("PATH", &path), variable("LD_PRELOAD", "/nonexistent.so"), variable("KEPT", "of the job")];
    let report = step_after_job("operator_after_report", &["uname; echo \"preload=$LD_PRELOAD kept=$KEPT\""], true);
    agent.run("1-1", &agent.plan(vec![script(&["uname"]), report]), &variables).await;
    let (result, log) = (agent.wait("1-1").await, agent.log("1-1").await);
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    assert_eq!(log.matches("\nplanted\n").count(), 1, "only the job's own script may run the job's program: {log}");
    assert!(log.contains("\npreload= kept=of the job\n"), "{log}");
}

#[tokio::test]
async fn variables_of_the_job_do_not_configure_steps_of_the_operator() {
    let mut agent = Agent::start().await;
    let list = json!([{ "name": "audit", "script": "echo \"audits ${{ vars.KIND }}\"" }]);
    let mut audit = step("operator_before_audit", When::OnSuccess, Call::Run(list));
    audit.policy.by_operator = true;
    // The legacy dialect has no `vars`.
    let variables = [
        variable("KIND", "it"),
        variable("CI_STEPS_DIALECT", "legacy"),
        variable("CI_STEPS_DEBUG", "true"),
        variable("CI_STEPS_LOG_LEVEL", "loud"),
    ];
    agent.run("1-1", &agent.plan(vec![audit, script(&["ls"])]), &variables).await;
    let (result, log) = (agent.wait("1-1").await, agent.log("1-1").await);
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    assert!(log.contains("\naudits it\n"), "{log}");
    assert!(!log.contains("step-results.json"), "the job must not get the inputs of the step: {log}");
}

#[tokio::test]
async fn job_cannot_replace_the_list_of_its_artifacts() {
    let mut agent = Agent::start().await;
    let artifact = ArtifactsUpload { paths: vec!["out/".to_owned()], ..ArtifactsUpload::default() };
    let list = Call::builtin(&ArtifactsList { artifacts: vec![artifact] });
    let mut list = step("operator_list_artifacts", When::OnSuccess, list);
    let mut sign = operator_step("operator_before_upload_sign", &["echo \"signs\"; cat \"$MUSTER_ARTIFACT_FILES\""]);
    let of_job = agent.dir.path().join("of-the-job");
    std::fs::write(&of_job, "chosen by the job").unwrap();
    let variables = [variable("MUSTER_ARTIFACT_FILES", of_job.to_str().unwrap())];
    let make = |name: &str| script(&[&format!("rm -rf out; mkdir out; touch \"$(printf 'out/{name}')\"")]);
    let text = "contains a line break; rename the file, or exclude it";

    (list.policy.allow_failure, sign.policy.allow_failure) = (true, true);
    // The second `list` fails, and `sign` must not get the files of the first `list`.
    let steps = vec![make("a"), list.clone(), sign.clone(), make("b\\nc"), list.clone(), sign.clone()];
    agent.run("1-1", &agent.plan(steps), &variables).await;
    let (result, log) = (agent.wait("1-1").await, agent.log("1-1").await);
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    assert_eq!(log.matches("\nsigns\n").count(), 2, "{log}");
    assert_eq!(log.matches("\nsigns\nout/a\n").count(), 1, "{log}");
    assert!(log.contains(text) && !log.contains("chosen by the job"), "{log}");

    (list.policy.allow_failure, sign.policy.allow_failure) = (false, false);
    agent.run("2-1", &agent.plan(vec![make("b\\nc"), list, sign]), &variables).await;
    let (result, log) = (agent.wait("2-1").await, agent.log("2-1").await);
    assert_eq!(failure(&result).0, "script_failure", "the job chose the name: {log}");
    assert!(log.contains(text) && !log.contains("\nsigns\n"), "{log}");
}

#[tokio::test]
async fn step_of_a_list_has_its_own_resource_usage() {
    let mut agent = Agent::start().await;
    let busy = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; dd if=/dev/zero of=file bs=1M count=4 conv=fsync 2>/dev/null";
    let list = json!([{ "name": "busy", "script": busy }, { "name": "idle", "script": "true" }]);
    let (_, result) = agent.complete(&agent.plan(vec![step("step_run", When::OnSuccess, Call::Run(list))])).await;
    let run = &result.tree.steps[1];
    let [busy, idle] = [0, 1].map(|index| run.steps[index].used.expect("a process ran"));
    assert!(busy.cpu_ms > idle.cpu_ms && busy.cpu_ms > Some(20), "{busy:?} {idle:?}");
    assert!(busy.memory_bytes > Some(100_000), "{busy:?}");
    assert!(busy.written_bytes >= Some(4 << 20) && idle.written_bytes < Some(1 << 20), "{busy:?} {idle:?}");
    let total = run.used.unwrap();
    assert_eq!(total.cpu_ms, Some(busy.cpu_ms.unwrap() + idle.cpu_ms.unwrap()));
    assert_eq!(result.tree.steps[0].used, None, "no process ran");
    assert!(result.used.unwrap().written_bytes >= total.written_bytes);
}

fn policy(limits: StepLimits) -> StepPolicy {
    StepPolicy { file: "/etc/muster/policy.toml".to_owned(), limits, ..StepPolicy::default() }
}

#[tokio::test]
async fn policy_is_checked_when_a_nested_step_is_loaded() {
    let mut agent = Agent::start().await;
    let nested = "{}\n---\nrun:\n  - {name: inner, step: ../denied}\n";
    for (dir, text) in [("allowed", nested), ("denied", "{}\n---\nexec: {command: [echo, never]}\n")] {
        std::fs::create_dir_all(agent.project().join("ci").join(dir)).unwrap();
        std::fs::write(agent.project().join("ci").join(dir).join("step.yml"), text).unwrap();
    }
    let rule = PolicyRule { line: 5, pattern: "local:./ci/denied".to_owned(), ..PolicyRule::default() };
    for list in [
        json!([{ "name": "outer", "step": "./ci/allowed" }]),
        json!([{ "name": "outer", "step": "./${{ vars.DIR }}/ci/denied" }]),
    ] {
        let mut plan = agent.plan(vec![step("step_run", When::OnSuccess, Call::Run(list.clone()))]);
        plan.step_policy = Some(StepPolicy { rules: vec![rule.clone()], ..policy(StepLimits::default()) });
        agent.run("1-1", &plan, &[variable("DIR", ".")]).await;
        let (result, log) = (agent.wait("1-1").await, agent.log("1-1").await);
        assert_eq!(failure(&result).0, "runner_configuration_error", "{log}");
        let message = "does not allow `local:./ci/denied`: `deny = \"local:./ci/denied\"` at /etc/muster/policy.toml:5";
        assert!(log.contains(message) && !log.contains("\nnever\n"), "{log}");
        agent.close("1-1").await;

        // The operator's steps need no permission.
        plan.steps[1].policy.by_operator = true;
        agent.run("1-2", &plan, &[variable("DIR", ".")]).await;
        let (result, log) = (agent.wait("1-2").await, agent.log("1-2").await);
        assert_eq!(result.outcome, Outcome::Success, "{log}");
        agent.close("1-2").await;
    }
}

/// Runs steps with limits. `None` means that this machine cannot enforce the limits.
async fn run_limited(limits: StepLimits, steps: Vec<Step>) -> Option<(String, JobResult)> {
    let mut agent = Agent::start().await;
    let mut plan = agent.plan(steps);
    plan.step_policy = Some(policy(limits));
    let (log, result) = agent.complete(&plan).await;
    if log.contains("cannot be enforced here") {
        assert_eq!(failure(&result).0, "runner_configuration_error", "{log}");
        muster_test_prerequisites::missing(log);
        return None;
    }
    Some((log, result))
}

#[tokio::test]
async fn processes_of_the_job_have_no_network() {
    let limits = StepLimits { no_network: true, ..StepLimits::default() };
    let interfaces = |name: &str| format!("echo {name} $(tail -n +3 /proc/net/dev | cut -d: -f1)");
    let ping = "python3 -c 'import socket; s=socket.create_server((\"127.0.0.1\",0)); socket.create_connection(s.getsockname()); print(\"loopback works\")'";
    let list = json!([{ "name": "inner", "script": interfaces("list") }]);
    let steps = vec![
        operator_step("operator_before_x", &[&interfaces("operator")]),
        script(&[&interfaces("script"), ping]),
        step("step_run", When::OnSuccess, Call::Run(list)),
        after_script(&[&interfaces("after")]),
    ];
    let Some((log, result)) = run_limited(limits, steps).await else { return };
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    for step in ["script", "list", "after"] {
        assert!(log.contains(&format!("\n{step} lo\n")), "{step}: {log}");
    }
    assert!(log.contains("loopback works"), "{log}");
    // The operator's step sees the network of this process.
    let host = std::fs::read_to_string("/proc/net/dev").unwrap();
    let host: Vec<_> = host.lines().skip(2).map(|line| line.split(':').next().unwrap().trim()).collect();
    assert!(log.contains(&format!("\noperator {}\n", host.join(" "))), "{host:?} {log}");
}

#[tokio::test]
async fn files_of_the_job_have_a_maximum_size() {
    let limits = StepLimits { file_bytes: Some(1 << 20), ..StepLimits::default() };
    let write =
        |name: &str| format!("dd if=/dev/zero of={name} bs=1M count=2 2>/dev/null; echo {name} $(stat -c %s {name})");
    let steps = vec![
        operator_step("operator_before_x", &[&write("free")]),
        script(&[&format!("set +e; {}", write("limited"))]),
    ];
    let Some((log, _)) = run_limited(limits, steps).await else { return };
    assert!(log.contains("\nlimited 1048576\n") && log.contains("\nfree 2097152\n"), "{log}");
}

#[tokio::test]
async fn memory_of_the_job_is_limited_and_its_excess_is_reported() {
    let limits = StepLimits { memory_bytes: Some(32 << 20), cpu_milli: Some(500), ..StepLimits::default() };
    let steps = vec![script(&["echo begun", "python3 -c 'x = bytearray(200 << 20)'"]), after_script(&["exit 1"])];
    let Some((log, result)) = run_limited(limits, steps).await else { return };
    assert_eq!(failure(&result).0, "script_failure", "{log}");
    assert!(log.contains("\nbegun\n"), "{log}");
    let message = "ERROR: a process of the job was killed because it exceeded the memory limit";
    assert_eq!(log.matches(message).count(), 1, "the failure of after_script has another cause: {log}");
}

/// Runs a `run:` list. Each rule allows the steps of a pattern and limits them, and `limits` apply to all steps. `None`
/// means that this machine cannot enforce the limits.
async fn run_with_rules(rules: &[(&str, StepLimits)], limits: StepLimits, list: Value) -> Option<(String, JobResult)> {
    let mut agent = Agent::start().await;
    let nested = "{}\n---\nrun:\n  - {name: outer, script: 'echo outer; ./show'}\n  - {name: inner, step: ../inner}\n";
    let inner = "{}\n---\nexec: {command: [sh, -c, 'echo inner; ./show']}\n";
    for (dir, text) in [("outer", nested), ("inner", inner)] {
        std::fs::create_dir_all(agent.project().join("ci").join(dir)).unwrap();
        std::fs::write(agent.project().join("ci").join(dir).join("step.yml"), text).unwrap();
    }
    let show = "#!/bin/sh\necho net $(tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' \\n')\n\
                dd if=/dev/zero of=file bs=1M count=4 2>/dev/null; echo size $(stat -c %s file)\n";
    create_program(agent.project().join("show"), show);
    let rule = |(line, (pattern, limits)): (usize, &(&str, StepLimits))| PolicyRule {
        line: line as u64,
        pattern: (*pattern).to_owned(),
        is_allowed: true,
        limits: limits.clone(),
        ..PolicyRule::default()
    };
    let mut plan = agent.plan(vec![step("step_run", When::OnSuccess, Call::Run(list))]);
    plan.step_policy = Some(StepPolicy { rules: rules.iter().enumerate().map(rule).collect(), ..policy(limits) });
    let (log, result) = agent.complete(&plan).await;
    if log.contains("cannot be enforced here") {
        assert_eq!(failure(&result).0, "runner_configuration_error", "{log}");
        assert!(!log.contains("\nnet "), "no step may run: {log}");
        muster_test_prerequisites::missing(log);
        return None;
    }
    Some((log, result))
}

/// Returns the network interfaces and the file size that `show` printed after the line `word`.
fn show_output(log: &str, word: &str) -> (String, u64) {
    let rest = log.split_once(&format!("\n{word}\n")).unwrap_or_else(|| panic!("no {word:?} in {log}")).1;
    let value = |key: &str| rest.lines().find_map(|line| line.strip_prefix(key)).unwrap().trim().to_owned();
    (value("net "), value("size ").parse().unwrap())
}

#[tokio::test]
async fn limits_of_a_rule_apply_to_its_steps_and_the_steps_that_they_call() {
    let file = |megabytes: u64| StepLimits { file_bytes: Some(megabytes << 20), ..StepLimits::default() };
    let no_network = StepLimits { no_network: true, ..StepLimits::default() };
    let rules = [("local:./ci/outer", no_network), ("local:./ci/inner", file(2))];
    let list = json!([
        { "name": "free", "script": "echo free; ./show" },
        { "name": "o", "step": "./ci/outer" },
        { "name": "i", "step": "./ci/inner" },
    ]);
    let Some((log, result)) = run_with_rules(&rules, file(3), list).await else { return };
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    let (host, size) = show_output(&log, "free");
    assert_eq!(size, 3 << 20, "the limit of the policy must apply to all steps");
    assert_eq!(show_output(&log, "outer"), ("lo".to_owned(), 3 << 20));
    assert_eq!(show_output(&log, "inner"), ("lo".to_owned(), 2 << 20), "the called step must have both limits");
    let (_, last) = log.rsplit_once("\ninner\n").unwrap();
    assert_eq!(show_output(&format!("\ninner\n{last}"), "inner"), (host, 2 << 20));
}

#[tokio::test]
async fn memory_and_cpu_limits_of_a_rule_apply_in_addition_to_the_policy_limits() {
    let memory = |megabytes: u64, cpu| StepLimits {
        memory_bytes: Some(megabytes << 20),
        cpu_milli: Some(cpu),
        ..StepLimits::default()
    };
    let allocate = |name: &str, megabytes: u64| {
        json!({
            "name": name,
            "script": format!("python3 -c 'x = bytearray({megabytes} << 20)' && echo {name} fits; true"),
        })
    };
    let nested = json!([allocate("large", 100), { "name": "i", "step": "./ci/inner" }]);
    // The rule's CPU limit (4000) exceeds the limit of the policy (1500). The rule's limit must not be set, because
    // version 1 cgroups refuse it.
    let rules = [("local:./ci/inner", memory(32, 4000))];
    let Some((log, result)) = run_with_rules(&rules, memory(300, 1500), nested).await else { return };
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    assert!(log.contains("\nlarge fits\n"), "{log}");
    let list = json!([allocate("large", 100)]);
    let rules = [("script", memory(32, 4000))];
    let Some((log, result)) = run_with_rules(&rules, memory(300, 1500), list).await else { return };
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    assert!(!log.contains("\nlarge fits\n"), "{log}");
}
