//! Cases 84, 98 to 102 and 114: start, list and close jobs.

use muster_agent_api::client::{RunOptions, RunOutcome, run_until_accepted};
use muster_agent_api::step_runner::{FollowLogsRequest, RunRequest, StatusRequest};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::*;

#[tokio::test]
async fn c098_closed_job_leaves_neither_files_nor_its_id() {
    let mut agent = Agent::start().await;
    let secret = Variable { file: true, ..variable("SECRET", "content") };
    agent.run_script("1", "cat ${{ vars.SECRET }}; echo ${{ vars.SECRET }} >&2", &[secret]).await;
    let log = agent.log("1").await;
    let path = log.strip_prefix(&log_of("content")).unwrap().trim().to_owned();
    agent.assert_ended("1", State::Success, None, "").await;
    agent.close("1").await;
    assert!(!std::path::Path::new(&path).exists(), "{path}");
    let work: Vec<_> = std::fs::read_dir(agent.dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!work.iter().any(|name| name == "work.tmp"), "{work:?}");
    let unknown = agent.steps.status(StatusRequest { id: "1".to_owned() }).await.unwrap_err();
    assert!(unknown.message().contains("no job with id \"1\""), "{unknown}");
}

#[tokio::test]
async fn c099_run_of_a_known_id_is_ignored() {
    let mut agent = Agent::start().await;
    agent.run_script("1", "echo first", &[]).await;
    agent.run_script("1", "echo second", &[]).await;
    let invalid = RunRequest { id: "1".to_owned(), steps: "invalid".to_owned(), ..RunRequest::default() };
    agent.steps.run(invalid).await.unwrap();
    assert_eq!(agent.log("1").await, log_of("first\n"));
}

#[tokio::test]
async fn c100_close_of_an_unknown_id_succeeds_and_other_calls_report_the_id() {
    let mut agent = Agent::start().await;
    agent.close("unknown").await;
    let status = agent.steps.status(StatusRequest { id: "unknown".to_owned() }).await.unwrap_err();
    let follow = agent.steps.follow_logs(FollowLogsRequest { id: "unknown".to_owned(), offset: 0 }).await.unwrap_err();
    for error in [status, follow] {
        assert!(error.message().contains("no job with id \"unknown\""), "{error}");
    }
}

#[tokio::test]
async fn c101_status_without_id_lists_all_jobs() {
    let mut agent = Agent::start().await;
    assert!(agent.statuses("").await.is_empty());
    agent.run_script("1", "echo one", &[]).await;
    agent.wait("1").await;
    assert_eq!(agent.statuses("").await, [agent.status("1").await]);
    agent.run_script("2", "exit 3", &[]).await;
    agent.wait("2").await;
    let states: Vec<_> = agent.statuses("").await.iter().map(|job| (job.id.clone(), job.status())).collect();
    assert_eq!(states, [("1".to_owned(), State::Success), ("2".to_owned(), State::Failure)]);
}

#[tokio::test]
async fn c102_jobs_in_the_same_directory_have_separate_variables_and_logs() {
    let mut agent = Agent::start().await;
    let fifo = Fifo::new(&agent);
    let script = format!("{}; echo $WHO $(cat ${{{{ vars.FILE }}}})", fifo.wait_command());
    for who in ["1", "2"] {
        let file = Variable { file: true, ..variable("FILE", &format!("file of {who}")) };
        let script = if who == "1" { &script } else { "echo $WHO $(cat ${{ vars.FILE }})" };
        let request = agent.script_request(who, script, &[file]);
        agent.steps.run(RunRequest { env: [("WHO".to_owned(), who.to_owned())].into(), ..request }).await.unwrap();
    }
    // The second job ends while the first one runs.
    assert_eq!(agent.log("2").await, log_of("2 file of 2\n"));
    agent.wait("2").await;
    agent.close("2").await;
    fifo.let_job_continue().await;
    assert_eq!(agent.log("1").await, log_of("1 file of 1\n"));
}

#[tokio::test]
async fn c114_run_waits_until_the_server_listens() {
    let dir = tempfile::tempdir().unwrap();
    let socket = Socket(options(dir.path()).socket);
    let options = RunOptions {
        is_remote: false,
        require_start_approval: false,
        only_with_start_approval: false,
        was_sent: &AtomicBool::new(false),
    };
    let work_dir = dir.path().join("work").to_string_lossy().into_owned();
    let steps = "{}\n---\nrun: [{name: main, script: echo ran}]".to_owned();
    let request = RunRequest { id: "1".to_owned(), steps, work_dir, ..RunRequest::default() };
    let run = || run_until_accepted(&socket, || Ok(request.clone()), options);
    tokio::time::timeout(Duration::from_millis(50), run()).await.expect_err("no server listens");
    let (accepted, mut agent) = tokio::join!(tokio::time::timeout(TIMEOUT, run()), Agent::start_in(dir));
    assert_eq!(accepted.unwrap().unwrap(), RunOutcome::Accepted { awaits_approval: false });
    assert_eq!(agent.log("1").await, log_of("ran\n"));
}

#[tokio::test]
async fn job_without_start_approval_runs_on_an_agent_that_supports_it() {
    let agent = Agent::start().await;
    let socket = Socket(options(agent.dir.path()).socket);
    let options = RunOptions {
        is_remote: false,
        require_start_approval: false,
        only_with_start_approval: true,
        was_sent: &AtomicBool::new(false),
    };
    let request = agent.script_request("1", "true", &[]);
    let outcome = run_until_accepted(&socket, || Ok(request.clone()), options).await.unwrap();
    assert_eq!(outcome, RunOutcome::Accepted { awaits_approval: false });
}

#[tokio::test]
async fn c084_missing_directory_of_the_job_is_created() {
    let mut agent = Agent::start().await;
    let dir = agent.dir.path().join("missing/below");
    let mut request = agent.script_request("1", "pwd", &[]);
    request.job.as_mut().unwrap().build_dir = dir.to_string_lossy().into_owned();
    agent.steps.run(request).await.unwrap();
    agent.assert_ended("1", State::Success, None, "").await;
    assert_eq!(agent.log("1").await, log_of(&format!("{}\n", dir.display())));
}

/// See `docs/spec/steps.md`, section 0.3.
#[tokio::test]
async fn service_has_a_second_name_and_ignores_unknown_fields() {
    use prost::Message;
    use tonic_prost::ProstCodec;
    #[derive(Clone, PartialEq, Message)]
    struct NewerRequest {
        #[prost(string, tag = "1")]
        id: String,
        #[prost(message, optional, tag = "5")]
        job: Option<Job>,
        #[prost(string, tag = "6")]
        steps: String,
        #[prost(message, optional, tag = "7")]
        timeout: Option<prost_types::Duration>,
    }
    let mut agent = Agent::start().await;
    let RunRequest { id, job, steps, .. } = agent.script_request("1", "echo works", &[]);
    let timeout = Some(prost_types::Duration { seconds: 3600, nanos: 0 });
    let mut client = tonic::client::Grpc::new(connect(agent.dir.path().join("s/agent.sock")).await);
    client.ready().await.unwrap();
    let codec = ProstCodec::<NewerRequest, muster_agent_api::step_runner::RunResponse>::default();
    let path = "/step.StepRunner/Run".parse().unwrap();
    let request = tonic::Request::new(NewerRequest { id, job, steps, timeout });
    client.unary(request, path, codec).await.unwrap();
    agent.assert_ended("1", State::Success, None, "").await;
    assert_eq!(agent.log("1").await, log_of("works\n"));
    client.ready().await.unwrap();
    let codec = ProstCodec::<StatusRequest, muster_agent_api::step_runner::StatusResponse>::default();
    let path = "/step.StepRunner/Nothing".parse().unwrap();
    let unknown = client.unary(tonic::Request::new(StatusRequest::default()), path, codec).await.unwrap_err();
    assert_eq!(unknown.code(), tonic::Code::Unimplemented);
}
