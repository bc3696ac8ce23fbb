//! Steps at a second agent, and failures of the connection or an agent.

use std::path::{Path, PathBuf};

use muster_agent_api::builtin::AgentProcess;
use muster_agent_api::plan::{Call, JobPlan, Step, When};
use muster_agent_api::result::{JobResult, Outcome, StepStatus};
use muster_agent_api::step_runner::Variable;
use muster_job::TerminationCause;
use rustix::process::{Pid, Signal, kill_process};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

use crate::harness::*;
use crate::killed_agent::{AGENT_DIR_ENV, AGENT_TEST, spawn_agent_with};

struct SecondAgent {
    dir: PathBuf,
    socket: PathBuf,
}

impl SecondAgent {
    fn below(agent: &Agent) -> Self {
        let dir = agent.dir.path().join("inner");
        std::fs::create_dir_all(dir.join("cwd")).unwrap();
        Self { socket: dir.join("s/agent.sock"), dir }
    }

    /// Delegates steps to the second agent, which is this test program again.
    fn step(&self, steps: Vec<Step>) -> Step {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let program = text(&std::env::current_exe().unwrap());
        let process = AgentProcess {
            command: [&program, AGENT_TEST, "--exact", "--nocapture"].map(str::to_owned).to_vec(),
            work_dir: text(&self.dir.join("cwd")),
            env: [(AGENT_DIR_ENV, text(&self.dir)), ("PLACE", "inside".to_owned())]
                .map(|(k, v)| (k.to_owned(), v))
                .into(),
            socket: text(&self.socket),
            project_dir: text(&self.dir.join("builds/p")),
        };
        Step::new("inside", "", Call::delegate(&process, Vec::new(), steps))
    }
}

fn system_failure(result: &JobResult) -> &str {
    assert_eq!(failure(result).0, "runner_system_failure", "{result:?}");
    &result.message
}

async fn pids(agent: &mut Agent) -> (i32, i32) {
    let log = agent.log_until("1-1", "ready\n").await;
    let line = log.lines().find(|line| line.starts_with("pids ")).unwrap();
    let mut numbers = line.split(' ').skip(1).map(|number| number.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

const PRINT_PIDS: &str = "echo pids $$ $PPID; echo ready; sleep 600";

fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

fn plan(agent: &Agent, second_agent: &SecondAgent, steps: Vec<Step>) -> JobPlan {
    agent.plan(vec![
        script(&["echo before"]),
        second_agent.step(steps),
        after_script(&["echo \"it was $CI_JOB_STATUS\""]),
    ])
}

#[tokio::test]
async fn delegated_steps_share_log_and_result_tree() {
    let mut agent = Agent::start().await;
    let second_agent = SecondAgent::below(&agent);
    let steps = vec![
        script(&["echo \"$PLACE, $A and $SECRET in ${PWD#$ROOT}\"; echo agent $PPID; readlink /proc/$PPID/cwd"]),
        script(&["exit 7 # hunter22hunter"]),
    ];
    let plan = JobPlan { record_calls: true, ..plan(&agent, &second_agent, steps) };
    let secret = Variable { masked: true, ..variable("SECRET", "hunter22hunter") };
    let root = variable("ROOT", &agent.dir.path().to_string_lossy());
    agent.run("1-1", &plan, &[variable("A", "passed on"), secret, root]).await;
    let (log, result) = (agent.log("1-1").await, agent.wait("1-1").await);
    assert!(log.contains("inside, passed on and [MASKED] in /inner/builds/p\n"), "{log}");
    assert!(log.contains(&format!("\n{}\n", second_agent.dir.join("cwd").display())), "{log}");
    assert!(log.find("\nbefore\n").unwrap() < log.find("\ninside, ").unwrap(), "{log}");
    assert_eq!(log.matches("Job failed").count(), 1, "{log}");
    assert_eq!(failure(&result), ("script_failure".to_owned(), Some(7)));
    let step = result.tree.steps.iter().find(|step| step.name == "inside").unwrap();
    let inside: Vec<_> = step.steps.iter().map(|step| (step.name.as_str(), step.status, step.exit_code)).collect();
    let expected = [("step_script", StepStatus::Success, None), ("step_script", StepStatus::Failure, Some(7))];
    assert_eq!((step.status, step.exit_code, inside), (StepStatus::Failure, Some(7), expected.to_vec()));
    let failed = step.steps[1].call.as_ref().unwrap();
    assert_eq!((failed.step.as_str(), &failed.inputs["commands"][0]), ("builtin:script", &"exit 7 # [MASKED]".into()));
    let pid = log.lines().find_map(|line| line.strip_prefix("agent ")).unwrap();
    assert!(!is_running(pid), "the second agent must have ended");
    assert!(!second_agent.dir.join("spool/delegated").exists(), "the job must be closed at the second agent");
}

#[tokio::test]
async fn secret_of_an_operators_step_at_a_second_agent_is_masked_in_the_whole_job() {
    let mut agent = Agent::start().await;
    let second_agent = SecondAgent::below(&agent);
    let vault = agent.dir.path().join("vault");
    std::fs::create_dir(&vault).unwrap();
    let export = r#"echo "{\"name\":\"TOKEN\",\"value\":\"vault-4711\"}" >"$1""#;
    let file = serde_json::json!({ "exec": { "command": ["sh", "-c", export, "vault", "${{ export_file }}"] } });
    std::fs::write(vault.join("step.yml"), format!("{{}}\n---\n{file}")).unwrap();
    let call = Call::Run(serde_json::json!([{ "name": "vault", "step": vault }]));
    let mut operator = step("operator_before_vault", When::OnSuccess, call);
    operator.policy.by_operator = true;
    operator.policy.exports = [("TOKEN".to_owned(), muster_job::ExportKind::Masked)].into();
    let steps = vec![operator, script(&["echo \"got $TOKEN\"; test \"$TOKEN\" = vault-4711 && exit 7"])];
    let plan = JobPlan { record_calls: true, ..agent.plan(vec![second_agent.step(steps)]) };
    agent.run("1-1", &plan, &[]).await;
    let (log, result) = (agent.log("1-1").await, agent.wait("1-1").await);
    assert_eq!(failure(&result), ("script_failure".to_owned(), Some(7)), "the script must get the value: {log}");
    assert!(log.contains("\ngot [MASKED]\n") && !log.contains("vault-4711"), "{log}");
    let result = serde_json::to_string(&result).unwrap();
    assert!(result.contains("operator_before_vault") && !result.contains("vault-4711"), "{result}");
}

#[tokio::test]
async fn log_section_of_delegating_step_ends_when_environment_is_ready() {
    let mut agent = Agent::start().await;
    let inner = SecondAgent::below(&agent);
    let mut step = inner.step(vec![script(&["echo inside"])]);
    step.policy.title = "Preparing".to_owned();
    step.policy.section = "prepare_executor".to_owned();
    let plan = JobPlan { trace_sections: true, ..agent.plan(vec![step]) };
    agent.run("1-1", &plan, &[]).await;
    let log = agent.log("1-1").await;
    let position = |text: &str| log.find(text).unwrap_or_else(|| panic!("{text} is missing in {log}"));
    assert!(position("section_start:") < position("Preparing"), "{log}");
    assert!(position("Preparing") < position(":prepare_executor\r\x1b[0Ksection_"), "{log}");
    assert!(position(":prepare_executor\r\x1b[0Ksection_") < position("\ninside\n"), "{log}");
    assert_eq!(log.matches(":prepare_executor\r").count(), 2, "{log}");
}

#[tokio::test]
async fn environment_is_retried_when_machine_cannot_create_it() {
    let mut agent = Agent::start().await;
    let inner = SecondAgent::below(&agent);
    let mut step = inner.step(vec![script(&["echo inside"])]);
    if let Call::Delegate { inputs, .. } = &mut step.call {
        inputs["command"] = serde_json::json!(["/nonexistent"]);
    }
    step.policy.attempts = 2;
    let plan = agent.plan(vec![step]);
    agent.run("1-1", &plan, &[]).await;
    let (log, result) = (agent.log("1-1").await, agent.wait("1-1").await);
    assert!(system_failure(&result).contains("the agent of a step did not start"), "{result:?}");
    assert_eq!(log.matches("ERROR: Preparation failed: the agent of a step did not start").count(), 1, "{log}");
    assert!(log.contains("Will be retried in 3s ..."), "{log}");
}

#[tokio::test]
async fn steps_beside_an_environment_run_outside_it_before_its_steps_and_are_in_its_result() {
    let mut agent = Agent::start().await;
    let second_agent = SecondAgent::below(&agent);
    let mut step = second_agent.step(vec![script(&["echo inside"])]);
    let optional = |name: &str, command: &str| {
        let mut step = Step { name: name.to_owned(), ..script(&[command]) };
        step.policy.allow_failure = true;
        step
    };
    if let Call::Delegate { beside, .. } = &mut step.call {
        *beside = vec![optional("first", "echo \"beside ${PLACE:-outside}\""), optional("second", "exit 4")];
    }
    let (log, result) = agent.complete(&agent.plan(vec![step.clone()])).await;
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    assert!(log.find("\nbeside outside\n").unwrap() < log.find("\ninside\n").unwrap(), "{log}");
    assert!(log.contains("second failed, but the job continues: exit status 4"), "{log}");
    let states = |result: &JobResult| -> Vec<_> {
        let environment = result.tree.steps.iter().find(|step| step.name == "inside").unwrap();
        environment.steps.iter().map(|step| (step.name.clone(), step.status)).collect()
    };
    let named = |names: [&str; 3]| names.map(str::to_owned);
    let expected = [StepStatus::Success, StepStatus::Failure, StepStatus::Success];
    assert_eq!(
        states(&result),
        named(["first", "second", "step_script"]).into_iter().zip(expected).collect::<Vec<_>>()
    );

    if let Call::Delegate { beside, .. } = &mut step.call {
        beside[1].policy.allow_failure = false;
        beside.push(optional("third", "echo never"));
    }
    let (log, result) = agent.complete(&agent.plan(vec![step])).await;
    assert_eq!(failure(&result), ("script_failure".to_owned(), Some(4)), "{log}");
    assert!(!log.contains("\ninside\n") && !log.contains("\nnever\n"), "{log}");
    let expected = [StepStatus::Success, StepStatus::Failure, StepStatus::Skipped];
    assert_eq!(states(&result), named(["first", "second", "third"]).into_iter().zip(expected).collect::<Vec<_>>());
}

#[tokio::test]
async fn cancel_reaches_a_delegated_script_and_its_after_script() {
    let mut agent = Agent::start().await;
    let second_agent = SecondAgent::below(&agent);
    let steps = vec![script(&[PRINT_PIDS]), after_script(&["echo \"inside it was $CI_JOB_STATUS\""])];
    let plan = plan(&agent, &second_agent, steps);
    agent.run("1-1", &plan, &[]).await;
    let (script, second) = pids(&mut agent).await;
    agent.cancel("1-1").await;
    let (log, result) = (agent.log("1-1").await, agent.wait("1-1").await);
    assert_eq!(failure(&result).0, "job_canceled");
    assert!(log.contains("\ninside it was canceled\n"), "{log}");
    assert!(!is_running(&script.to_string()) && !is_running(&second.to_string()));
}

#[tokio::test]
async fn delegated_steps_are_ended_by_timeout_and_by_close() {
    for uses_close in [false, true] {
        let mut agent = Agent::start().await;
        let second_agent = SecondAgent::below(&agent);
        let mut plan = plan(&agent, &second_agent, vec![script(&[PRINT_PIDS]), after_script(&["echo never"])]);
        if !uses_close {
            plan.timeout_ms = 10_000;
        }
        agent.run("1-1", &plan, &[]).await;
        let (script, second) = pids(&mut agent).await;
        if uses_close {
            agent.close("1-1").await;
        } else {
            let (log, result) = (agent.log("1-1").await, agent.wait("1-1").await);
            assert_eq!(failure(&result).0, "job_execution_timeout");
            assert!(!log.contains("\nnever\n"), "{log}");
        }
        assert!(!is_running(&script.to_string()) && !is_running(&second.to_string()));
    }
}

#[tokio::test]
async fn killed_second_agent_fails_its_step() {
    // The first agent is a separate process. In the test process, it could not distinguish the second agent's processes
    // from processes of other tests.
    let dir = tempfile::tempdir().unwrap();
    let mut process = spawn_agent_with(dir.path(), muster_steps::process::Containment::default());
    let mut agent = Agent::attach(dir).await;
    let second_agent = SecondAgent::below(&agent);
    let plan = plan(&agent, &second_agent, vec![script(&[PRINT_PIDS])]);
    agent.run("1-1", &plan, &[]).await;
    let (script, second) = pids(&mut agent).await;
    signal(second, Signal::KILL);
    let (log, result) = (agent.log("1-1").await, agent.wait("1-1").await);
    assert!(system_failure(&result).contains("the agent of the step was lost: its process ended"), "{result:?}");
    assert!(log.contains("\nready\n"), "{log}");
    assert!(!is_running(&script.to_string()), "the script must be terminated");
    process.kill().unwrap();
    process.wait().unwrap();
}

#[tokio::test]
async fn frozen_second_agent_fails_its_step_in_time() {
    let mut agent = Agent::start().await;
    let second_agent = SecondAgent::below(&agent);
    let plan = plan(&agent, &second_agent, vec![script(&[PRINT_PIDS])]);
    agent.run("1-1", &plan, &[]).await;
    let (script, second) = pids(&mut agent).await;
    signal(second, Signal::STOP);
    let result = agent.wait("1-1").await;
    assert!(system_failure(&result).contains("the agent of the step was lost"), "{result:?}");
    assert!(!is_running(&script.to_string()) && !is_running(&second.to_string()));
}

#[tokio::test]
async fn cut_connection_is_reopened_without_duplicate_log() {
    let mut agent = Agent::start().await;
    let mut second_agent = SecondAgent::below(&agent);
    let real_socket = std::mem::replace(&mut second_agent.socket, second_agent.dir.join("proxy.sock"));
    let listener = UnixListener::bind(&second_agent.socket).unwrap();
    let (cut, _) = watch::channel(0);
    let cut_sender = cut.clone();
    let proxy = tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            let (real_socket, mut cuts) = (real_socket.clone(), cut_sender.subscribe());
            tokio::spawn(async move {
                let Ok(mut server) = UnixStream::connect(real_socket).await else { return };
                tokio::select! {
                    _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                    _ = cuts.changed() => {}
                }
            });
        }
    });
    let go = agent.dir.path().join("go");
    let wait = |number: u32| format!("until [ -e {}{number} ]; do sleep 0.01; done; echo line {number}", go.display());
    let plan = plan(&agent, &second_agent, vec![script(&["echo ready", &wait(1), &wait(2), &wait(3)])]);
    agent.run("1-1", &plan, &[]).await;
    agent.log_until("1-1", "\nready\n").await;
    for number in 1..=3 {
        cut.send_replace(number);
        std::fs::write(format!("{}{number}", go.display()), "").unwrap();
        agent.log_until("1-1", &format!("\nline {number}\n")).await;
    }
    let (log, result) = (agent.log("1-1").await, agent.wait("1-1").await);
    assert_eq!(result.outcome, Outcome::Success, "{log}");
    for number in 1..=3 {
        assert_eq!(log.matches(&format!("\nline {number}\n")).count(), 1, "{log}");
    }
    proxy.abort();
}

#[tokio::test]
async fn restarted_outer_agent_ends_the_second_agent() {
    let dir = tempfile::tempdir().unwrap();
    let mut process = spawn_agent_with(dir.path(), muster_steps::process::Containment::default());
    let mut agent = Agent::attach(dir).await;
    let second_agent = SecondAgent::below(&agent);
    let plan = plan(&agent, &second_agent, vec![script(&[PRINT_PIDS])]);
    agent.run("1-1", &plan, &[]).await;
    let (script, second) = pids(&mut agent).await;
    process.kill().unwrap();
    process.wait().unwrap();
    let mut agent = Agent::start_in(agent.dir).await;
    let result = agent.wait("1-1").await;
    let Outcome::Failed { reason, cause, .. } = &result.outcome else { panic!("{result:?}") };
    assert_eq!((reason.as_str(), *cause), ("runner_system_failure", Some(TerminationCause::EnvironmentLost)));
    assert!(!is_running(&script.to_string()) && !is_running(&second.to_string()));
}
