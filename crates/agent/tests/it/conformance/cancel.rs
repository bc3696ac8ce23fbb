//! Cases 106 to 112: failures, cancellation and timeouts.

use std::time::Duration;

use super::*;
use muster_agent_api::result::{JobResult, Outcome};
use muster_agent_api::step_runner::FollowLogsRequest;
use muster_job::TerminationCause;
use tokio::task::JoinHandle;

const SLEEP: &str = "echo $$; echo ready; exec sleep 600";

impl Agent {
    async fn pid_of_sleep(&mut self, id: &str) -> String {
        let log = self.log_until(id, "\nready\n").await;
        log.lines().nth(1).unwrap().to_owned()
    }

    fn wait_in_background(&self, id: &str) -> JoinHandle<JobResult> {
        let request = muster_agent_api::agent::WaitForResultRequest { id: id.to_owned() };
        let mut extension = self.extension.clone();
        tokio::spawn(async move {
            let response = extension.wait_for_result(request).await.unwrap().into_inner();
            serde_json::from_str(&response.result).unwrap()
        })
    }
}

async fn assert_canceled(result: JoinHandle<JobResult>) {
    let result = tokio::time::timeout(TIMEOUT, result).await.unwrap().unwrap();
    let cause = Some(TerminationCause::CanceledByUser);
    assert!(matches!(result.outcome, Outcome::Failed { cause: found, .. } if found == cause), "{result:?}");
}

#[tokio::test]
async fn c106_failure_message_names_the_step_and_ends_with_the_exit_status() {
    let mut agent = Agent::start().await;
    agent.run_script("1", "no-such-command", &[]).await;
    let message = "step \"main\": exec: exit status 127";
    agent.assert_ended("1", State::Failure, Some(Kind::StepFailure), message).await;
}

#[tokio::test]
async fn c107_close_before_the_first_command_cancels_the_job() {
    let mut agent = Agent::start().await;
    let mut plan = agent.plan(vec![script(&["echo ran >ran"])]);
    plan.require_start_approval = true;
    agent.run("1", &plan, &[]).await;
    let approval = muster_agent_api::agent::WaitForStartApprovalRequest { id: "1".to_owned() };
    assert!(agent.extension.wait_for_start_approval(approval).await.unwrap().into_inner().is_waiting);
    let result = agent.wait_in_background("1");
    agent.log_until("1", "job script").await;
    agent.close("1").await;
    assert_canceled(result).await;
    assert!(!agent.project().join("ran").exists());
}

#[tokio::test]
async fn c108_close_ends_a_running_job_and_its_followers() {
    let mut agent = Agent::start().await;
    agent.run_script("1", SLEEP, &[]).await;
    let pid = agent.pid_of_sleep("1").await;
    let result = agent.wait_in_background("1");
    let request = FollowLogsRequest { id: "1".to_owned(), offset: 0 };
    let mut followed = agent.steps.follow_logs(request).await.unwrap().into_inner();
    agent.close("1").await;
    assert!(!is_running(&pid));
    assert_canceled(result).await;
    let mut log = Vec::new();
    while let Some(message) = tokio::time::timeout(TIMEOUT, followed.message()).await.unwrap().unwrap() {
        log.extend(message.data);
    }
    assert_eq!(String::from_utf8(log).unwrap(), log_of(&format!("{pid}\nready\n")));
}

#[tokio::test]
async fn c109_job_outlives_a_follower_that_gives_up() {
    let mut agent = Agent::start().await;
    agent.run_script("1", SLEEP, &[]).await;
    let pid = agent.pid_of_sleep("1").await;
    tokio::time::timeout(Duration::from_millis(50), agent.log("1")).await.expect_err("the job runs");
    assert_eq!(agent.status("1").await.status(), State::Running);
    agent.close("1").await;
    assert!(!is_running(&pid));
}

#[tokio::test]
async fn c110_process_killed_by_another_program_is_a_failure() {
    let mut agent = Agent::start().await;
    agent.run_script("1", "kill -9 $$", &[]).await;
    let message = "step \"main\": exec: signal: killed";
    agent.assert_ended("1", State::Failure, Some(Kind::StepFailure), message).await;
}

#[tokio::test]
async fn c111_cancel_ends_the_log_and_keeps_the_job() {
    let mut agent = Agent::start().await;
    agent.run_script("1", SLEEP, &[]).await;
    let pid = agent.pid_of_sleep("1").await;
    agent.cancel("1").await;
    let warning = "\u{1b}[0;33mWARNING: script canceled externally (UI, API)\u{1b}[0;m\n";
    assert_eq!(agent.log("1").await, log_of(&format!("{pid}\nready\n{warning}")));
    let message = "job \"1\" cancelled: context canceled";
    agent.assert_ended("1", State::Cancelled, Some(Kind::Cancelled), message).await;
    assert!(!is_running(&pid));
}

#[tokio::test]
async fn c112_timeout_has_its_own_kind() {
    let mut agent = Agent::start().await;
    let mut plan = agent.plan(vec![script(&["sleep 600"])]);
    plan.timeout_ms = 100;
    agent.run("1", &plan, &[]).await;
    let message = "job \"1\" cancelled: context deadline exceeded: execution took longer than 100ms seconds";
    agent.assert_ended("1", State::Cancelled, Some(Kind::Timeout), message).await;
}
