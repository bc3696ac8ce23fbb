//! Debugger of jobs, over its service.

use muster_agent_api::agent::debugger_client::DebuggerClient;
use muster_agent_api::agent::execute_response::Event;
use muster_agent_api::agent::{
    AttachRequest, BreakpointRequest, DebugState, ExecuteRequest, InspectRequest, Pause, ResumeAction, ResumeRequest,
};
use muster_agent_api::development::DebugOptions;
use muster_agent_api::plan::{Call, JobPlan, When};
use muster_agent_api::result::{CallRecord, Outcome, StepStatus};
use muster_agent_api::step_runner::Variable;
use muster_job::TerminationCause;
use serde_json::json;
use tonic::transport::Channel;
use tonic::{Code, Streaming};

use crate::harness::*;

struct Client {
    service: DebuggerClient<Channel>,
    states: Streaming<DebugState>,
    id: String,
}

impl Client {
    async fn attach(agent: &Agent, id: &str) -> Self {
        let mut service = DebuggerClient::new(connect(options(agent.dir.path()).socket).await);
        let states = service.attach(AttachRequest { id: id.to_owned() }).await.unwrap().into_inner();
        Self { service, states, id: id.to_owned() }
    }

    async fn wait_for_pause_after(&mut self, number: u64) -> Pause {
        let pausing = async {
            loop {
                let state = self.states.message().await.unwrap().expect("the job ended without a pause");
                if let Some(pause) = state.pause.filter(|pause| pause.number > number) {
                    return pause;
                }
            }
        };
        tokio::time::timeout(TIMEOUT, pausing).await.unwrap()
    }

    async fn resume(&mut self, pause: &Pause, action: ResumeAction) -> Result<(), Code> {
        let request = ResumeRequest { id: self.id.clone(), pause: pause.number, action: action.into() };
        self.service.resume(request).await.map(drop).map_err(|status| status.code())
    }

    async fn inspect(&mut self, pause: &Pause) -> CallRecord {
        let request = InspectRequest { id: self.id.clone(), pause: pause.number };
        serde_json::from_str(&self.service.inspect(request).await.unwrap().into_inner().call).unwrap()
    }

    async fn shell(&mut self, pause: &Pause, command: &str) -> (String, i32) {
        let command = ["sh", "-c", command].map(str::to_owned).to_vec();
        let request = ExecuteRequest { id: self.id.clone(), pause: pause.number, command };
        let mut events = self.service.execute(request).await.unwrap().into_inner();
        let mut output = Vec::new();
        loop {
            match tokio::time::timeout(TIMEOUT, events.message()).await.unwrap().unwrap().unwrap().event.unwrap() {
                Event::Output(bytes) => output.extend(bytes),
                Event::ExitCode(code) => return (String::from_utf8(output).unwrap(), code),
                Event::Error(error) => panic!("{error}"),
            }
        }
    }
}

fn debugged_plan(agent: &Agent, steps: Vec<muster_agent_api::plan::Step>, breakpoints: &[&str]) -> JobPlan {
    let mut plan = agent.plan(steps);
    let breakpoints = breakpoints.iter().map(|text| text.parse().unwrap()).collect();
    plan.development.debug = Some(DebugOptions { breakpoints, ..DebugOptions::default() });
    plan
}

fn run_list() -> muster_agent_api::plan::Step {
    let list = json!([
        {"name": "first", "script": "echo first"},
        {"name": "second", "script": "echo extra is $EXTRA", "env": {"OWN": "value", "EXTRA": "yes"}},
    ]);
    step("run", When::OnSuccess, Call::Run(list))
}

#[tokio::test]
async fn job_without_debugger_cannot_be_paused() {
    let mut agent = Agent::start().await;
    let plan = agent.plan(vec![script(&["read -r line <\"$CI_PROJECT_DIR/go\"; echo done"])]);
    agent.run("1-1", &plan, &[]).await;
    let mut service = DebuggerClient::new(connect(options(agent.dir.path()).socket).await);
    let id = || "1-1".to_owned();
    let attached = service.attach(AttachRequest { id: id() }).await.map(drop);
    let breakpoint = BreakpointRequest { id: id(), breakpoint: "before:*".to_owned() };
    let set = service.set_breakpoint(breakpoint).await.map(drop);
    let command = vec!["true".to_owned()];
    let executed = service.execute(ExecuteRequest { id: id(), pause: 1, command }).await.map(drop);
    for answer in [attached, set, executed] {
        let status = answer.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert!(status.message().contains("was started without a debugger"), "{status}");
    }
    agent.close("1-1").await;
}

#[tokio::test]
async fn paused_step_shows_its_state_without_masked_values() {
    let mut agent = Agent::start().await;
    let plan = debugged_plan(&agent, vec![run_list()], &["before:second"]);
    let secret = Variable { masked: true, ..variable("KEY", "masked-value") };
    agent.run("1-1", &plan, &[secret]).await;
    let mut client = Client::attach(&agent, "1-1").await;
    let pause = client.wait_for_pause_after(0).await;
    assert_eq!((pause.path.as_str(), pause.is_after), ("run/second", false));
    let call = client.inspect(&pause).await;
    assert_eq!((&call.env["OWN"], &call.env["EXTRA"]), (&json!("value"), &json!("yes")));
    let (output, code) = client.shell(&pause, "echo $OWN $EXTRA; echo masked-value >&2; pwd; exit 4").await;
    assert_eq!(code, 4);
    assert_eq!(output, format!("value yes\n[MASKED]\n{}\n", agent.project().display()));
    let outdated = Pause { number: 7, ..pause.clone() };
    assert_eq!(client.resume(&outdated, ResumeAction::ResumeContinue).await, Err(Code::FailedPrecondition));
    client.resume(&pause, ResumeAction::ResumeContinue).await.unwrap();
    assert!(agent.log("1-1").await.contains("extra is yes\n"));
    assert_eq!(agent.wait("1-1").await.outcome, Outcome::Success);
}

/// Time for which a job stays paused without a debugger, enough to attach on a busy machine.
const ATTACH_TIMEOUT_MS: u64 = 3000;

#[tokio::test]
async fn command_of_a_lost_client_is_ended_and_the_job_continues() {
    let mut agent = Agent::start().await;
    let mut plan = debugged_plan(&agent, vec![run_list()], &["before:first"]);
    plan.development.debug.as_mut().unwrap().attach_timeout_ms = ATTACH_TIMEOUT_MS;
    agent.run("1-1", &plan, &[]).await;
    let mut client = Client::attach(&agent, "1-1").await;
    let pause = client.wait_for_pause_after(0).await;
    let command = ["sh", "-c", "echo $$; exec sleep 1000"].map(str::to_owned).to_vec();
    let request = ExecuteRequest { id: "1-1".to_owned(), pause: pause.number, command };
    let mut events = client.service.execute(request).await.unwrap().into_inner();
    let Some(Event::Output(pid)) = events.message().await.unwrap().unwrap().event else { panic!("no output") };
    drop((client, events));
    assert_eq!(agent.wait("1-1").await.outcome, Outcome::Success);
    assert!(!is_running(String::from_utf8(pid).unwrap().trim()));
}

#[tokio::test]
async fn job_continues_when_its_last_debugger_is_lost() {
    let mut agent = Agent::start().await;
    let mut plan = debugged_plan(&agent, vec![run_list()], &["before:first", "before:second"]);
    plan.development.debug.as_mut().unwrap().attach_timeout_ms = ATTACH_TIMEOUT_MS;
    agent.run("1-1", &plan, &[]).await;
    let mut client = Client::attach(&agent, "1-1").await;
    client.wait_for_pause_after(0).await;
    let mut other = Client::attach(&agent, "1-1").await;
    drop(client);
    let pause = other.wait_for_pause_after(0).await;
    other.resume(&pause, ResumeAction::ResumeContinue).await.unwrap();
    other.wait_for_pause_after(pause.number).await;
    drop(other);
    assert_eq!(agent.wait("1-1").await.outcome, Outcome::Success);
}

#[tokio::test]
async fn cancel_ends_a_pause_and_after_script_runs() {
    let mut agent = Agent::start().await;
    let steps = vec![run_list(), after_script(&["echo after"])];
    let plan = debugged_plan(&agent, steps, &["before:second"]);
    agent.run("1-1", &plan, &[]).await;
    let mut client = Client::attach(&agent, "1-1").await;
    client.wait_for_pause_after(0).await;
    agent.cancel("1-1").await;
    let log = agent.log("1-1").await;
    assert!(log.contains("after\n") && !log.contains("extra is"), "{log}");
    let result = agent.wait("1-1").await;
    assert!(matches!(result.outcome, Outcome::Failed { cause: Some(TerminationCause::CanceledByUser), .. }));
    assert_eq!(result.tree.steps[1].steps[1].status, StepStatus::Cancelled);
}

#[tokio::test]
async fn time_of_a_pause_does_not_count_toward_the_timeout() {
    let mut agent = Agent::start().await;
    let mut plan = debugged_plan(&agent, vec![script(&["echo quick"])], &["before:step_script"]);
    plan.timeout_ms = 3000;
    agent.run("1-1", &plan, &[]).await;
    let mut client = Client::attach(&agent, "1-1").await;
    let pause = client.wait_for_pause_after(0).await;
    assert_eq!(client.shell(&pause, "sleep 4; echo awake").await, ("awake\n".to_owned(), 0));
    client.resume(&pause, ResumeAction::ResumeContinue).await.unwrap();
    assert_eq!(agent.wait("1-1").await.outcome, Outcome::Success);
}

#[tokio::test]
async fn steps_are_listed_with_their_states() {
    let mut agent = Agent::start().await;
    let plan = debugged_plan(&agent, vec![run_list()], &["before:second"]);
    agent.run("1-1", &plan, &[]).await;
    let mut client = Client::attach(&agent, "1-1").await;
    let pause = client.wait_for_pause_after(0).await;
    let states = Client::attach(&agent, "1-1").await.states.message().await.unwrap().unwrap();
    let states: Vec<_> = states.steps.iter().map(|step| (step.path.as_str(), step.state.as_str())).collect();
    assert_eq!(
        states,
        [("get_sources", "success"), ("run", "running"), ("run/first", "success"), ("run/second", "running")]
    );
    client.resume(&pause, ResumeAction::ResumeSkip).await.unwrap();
    agent.wait("1-1").await;
    let last = async {
        let mut last = None;
        while let Some(state) = client.states.message().await.unwrap() {
            last = Some(state);
        }
        last.unwrap()
    };
    let last = tokio::time::timeout(TIMEOUT, last).await.unwrap();
    assert_eq!(last.steps[3].state, "skipped");
}

#[tokio::test]
async fn parallel_steps_are_paused_one_after_the_other() {
    let mut agent = Agent::start().await;
    let keys = json!({"parallel": true, "matrix": {"n": [1, 2, 3]}});
    let list = json!([{"name": "m", "script": "echo number ${{ matrix.n }}", "muster": keys}]);
    let plan = debugged_plan(&agent, vec![step("run", When::OnSuccess, Call::Run(list))], &["before:m"]);
    agent.run("1-1", &plan, &[]).await;
    let mut client = Client::attach(&agent, "1-1").await;
    let (mut number, mut paths) = (0, Vec::new());
    for action in [ResumeAction::ResumeContinue, ResumeAction::ResumeSkip, ResumeAction::ResumeContinue] {
        let pause = client.wait_for_pause_after(number).await;
        client.resume(&pause, action).await.unwrap();
        number = pause.number;
        paths.push(pause.path);
    }
    paths.sort();
    assert_eq!(paths, ["run/m: [1]", "run/m: [2]", "run/m: [3]"]);
    let (result, log) = (agent.wait("1-1").await, agent.log("1-1").await);
    assert_eq!(result.outcome, Outcome::Success);
    assert_eq!(log.matches("\nnumber ").count(), 2, "all steps except the skipped one must run: {log}");
}
