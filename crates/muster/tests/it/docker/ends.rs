//! Jobs that end early, because of a cancel, a timeout, or a container or an agent that is killed.

use std::time::Duration;

use muster_agent_api::builtin::Script;
use muster_agent_api::plan::{Call, Step, When};
use muster_agent_api::result::Outcome;
use muster_job::TerminationCause;

use super::harness::{Host, failure_of, job, script};

/// Script that runs until it is ended.
const ENDLESS: &str = "echo ready; sleep 600";

fn after_script() -> Step {
    let commands = vec!["echo \"afterwards it was $CI_JOB_STATUS\"".to_owned()];
    let script = Script { commands, after_script: true, ..Script::default() };
    let mut step = Step::new("after_script", "", Call::builtin(&script));
    step.policy.when = When::Always;
    step
}

#[tokio::test]
async fn cancel_ends_the_script_and_runs_after_script_in_the_container() {
    for host in Host::start_on_each_engine().await {
        host.start_job(&job("cancel"), vec![script(&[ENDLESS]), after_script()]).await;
        host.wait_for_log("ready\n").await;
        host.cancel().await;
        let (log, result) = host.finish().await;
        assert_eq!(failure_of(&result).0, "job_canceled", "{log}");
        assert!(log.contains("\nafterwards it was canceled\n"), "{log}");
        assert_eq!(host.objects("cancel"), "", "no object of the job must be left");
    }
}

#[tokio::test]
async fn timeout_of_the_job_removes_the_container() {
    for host in Host::start_on_each_engine().await {
        let timeout = Duration::from_secs(8);
        host.start_job_with(&job("timeout"), vec![script(&[ENDLESS])], timeout).await;
        let (log, result) = host.finish().await;
        assert_eq!(failure_of(&result).0, "job_execution_timeout", "{log}");
        assert_eq!(host.objects("timeout"), "", "no object of the job must be left");
    }
}

#[tokio::test]
async fn job_is_canceled_while_its_entrypoint_runs() {
    for host in Host::start_on_each_engine().await {
        let mut job = job("slow");
        job.build.entrypoint = Some(["/bin/sh", "-c", "echo slow; sleep 600"].map(str::to_owned).to_vec());
        host.start_job(&job, vec![script(&[ENDLESS])]).await;
        host.wait_for_log("slow\n").await;
        host.cancel().await;
        let (log, result) = host.finish().await;
        assert_eq!(failure_of(&result).0, "job_canceled", "{log}");
        assert_eq!(host.objects("slow"), "", "no object of the job must be left");
    }
}

#[tokio::test]
async fn killed_container_fails_the_job() {
    for host in Host::start_on_each_engine().await {
        host.start_job(&job("killed"), vec![script(&[ENDLESS])]).await;
        host.wait_for_log("ready\n").await;
        assert_eq!(host.docker.call("POST", "/containers/killed-build/kill", &[]).0, 204);
        let (log, result) = host.finish().await;
        assert_eq!(failure_of(&result).0, "runner_system_failure", "{log}");
        assert!(result.message.contains("the job's container exited with code 137"), "{result:?}");
        assert_eq!(host.objects("killed"), "", "no object of the job must be left");
    }
}

#[tokio::test]
async fn next_agent_removes_the_containers_of_a_killed_agent() {
    for mut host in Host::start_on_each_engine().await {
        host.start_job(&job("crash"), vec![script(&[ENDLESS])]).await;
        host.wait_for_log("ready\n").await;
        assert_ne!(host.objects("crash"), "");
        host.restart().await;
        let (log, result) = host.finish().await;
        let Outcome::Failed { cause, .. } = result.outcome else { panic!("{log}") };
        assert_eq!(cause, Some(TerminationCause::EnvironmentLost));
        host.until_no_objects("crash").await;
    }
}
