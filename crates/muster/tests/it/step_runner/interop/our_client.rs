//! Muster's client with GitLab's server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use muster_agent_api::client::{
    self, AgentConnection, AgentError, Reach, RunOptions, RunOutcome, follow_to_end, run_until_accepted,
};
use muster_agent_api::result::{JobResult, MAX_RESULT_BYTES, Outcome, StepStatus};
use muster_agent_api::step_runner::RunRequest;
use muster_job::{FailureReason, TerminationCause};
use tokio::net::UnixStream;

use super::*;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

struct Socket(PathBuf);

#[async_trait::async_trait]
impl Reach for Socket {
    async fn reach(&self) -> Result<AgentConnection, AgentError> {
        let path = self.0.clone();
        let location = path.display().to_string();
        let opened = AgentConnection::open_step_runner(location, move || UnixStream::connect(path.clone())).await;
        opened.map_err(|error| AgentError::NotReached(error.into()))
    }
}

struct TheirServer {
    project: Project,
    server: Server,
    socket: Socket,
}

impl TheirServer {
    async fn start() -> Option<Self> {
        let program = variable(PROGRAM)?;
        let project = Project::new();
        let server = Server::start_theirs(&project, &program).await;
        let socket = Socket(server.socket.clone());
        Some(Self { project, server, socket })
    }

    async fn run(&self, id: &str, steps: &str) -> Result<RunOutcome, AgentError> {
        let work_dir = self.project.work().to_str().unwrap().to_owned();
        let request = RunRequest { id: id.to_owned(), work_dir, steps: steps.to_owned(), ..RunRequest::default() };
        let options = RunOptions {
            is_remote: true,
            require_start_approval: false,
            only_with_start_approval: false,
            was_sent: &AtomicBool::new(false),
        };
        let accepted = run_until_accepted(&self.socket, || Ok(request.clone()), options);
        tokio::time::timeout(ANSWER_TIMEOUT, accepted).await.expect("the server must answer the request in time")
    }

    async fn run_to_end(&self, id: &str, list: &str) -> (String, JobResult) {
        let accepted = self.run(id, &definition(list)).await.unwrap();
        assert_eq!(accepted, RunOutcome::Accepted { awaits_approval: false });
        let mut log = Vec::new();
        let result =
            follow_to_end(&self.socket, id, ANSWER_TIMEOUT, MAX_RESULT_BYTES, |data| log.extend_from_slice(data))
                .await
                .unwrap();
        (String::from_utf8(log).unwrap(), result)
    }
}

#[tokio::test]
async fn our_client_runs_jobs_at_their_server() {
    let Some(theirs) = TheirServer::start().await else { return };
    let connection = theirs.socket.reach().await.unwrap();
    assert!(!connection.identity().has_extension);
    connection.check().await.unwrap();

    let list =
        "- {name: a, step: ./echo, inputs: {text: hi}}\n- {name: b, script: 'echo ${{steps.a.outputs.text}} again'}";
    let (log, result) = theirs.run_to_end("1", list).await;
    assert_eq!(log, "Running step \"a\"\nhi 1 \nRunning step \"b\"\nhi again\n");
    assert_eq!((&result.outcome, result.message.as_str()), (&Outcome::Success, ""));
    assert_eq!(result.tree.status, StepStatus::Success);
    assert!(result.tree.started_ms > 0);
    // The result is kept until the job is closed.
    assert_eq!(connection.wait("1", MAX_RESULT_BYTES).await.unwrap(), result);
    client::close(&theirs.socket, "1", ANSWER_TIMEOUT).await.unwrap();
    assert!(matches!(connection.wait("1", MAX_RESULT_BYTES).await, Err(AgentError::Unknown)));
    client::close(&theirs.socket, "1", ANSWER_TIMEOUT).await.unwrap();

    let (log, result) = theirs.run_to_end("2", "- {name: a, script: 'echo before; exit 7'}").await;
    assert_eq!(log, "Running step \"a\"\nbefore\n");
    let outcome = Outcome::Failed { reason: FailureReason::ScriptFailure, exit_code: Some(7), cause: None };
    assert_eq!((result.outcome, result.message.as_str()), (outcome, "step \"a\": exec: exit status 7"));
    client::close(&theirs.socket, "2", ANSWER_TIMEOUT).await.unwrap();
}

#[tokio::test]
async fn our_client_pings_only_servers_that_permit_it() {
    let Some(theirs) = TheirServer::start().await else { return };
    let project = Project::new();
    let ours = Server::start_agent(&project);
    // GitLab's server closes a connection after a few pings, so the client opens a second connection without pings.
    for (socket, connections) in [(&theirs.server.socket, 2), (&ours.socket, 1)] {
        let opened = Arc::new(AtomicUsize::new(0));
        let dial = {
            let (socket, opened) = (socket.clone(), Arc::clone(&opened));
            move || {
                opened.fetch_add(1, Ordering::Relaxed);
                UnixStream::connect(socket.clone())
            }
        };
        let connection = AgentConnection::open_step_runner("the server".to_owned(), dial).await.unwrap();
        assert_eq!(connection.identity().has_extension, connections == 1);
        assert_eq!(opened.load(Ordering::Relaxed), connections);
    }
}

#[tokio::test]
async fn our_client_waits_for_a_job_without_reading_its_log_to_the_end() {
    let Some(theirs) = TheirServer::start().await else { return };
    theirs
        .run("1", &definition("- {name: a, script: 'while [ ! -e end ]; do sleep 0.01; done; exit 4'}"))
        .await
        .unwrap();
    let connection = theirs.socket.reach().await.unwrap();
    let waiting = connection.wait("1", MAX_RESULT_BYTES);
    let mut waiting = std::pin::pin!(waiting);
    // The start of the log shows that the job runs. The rest of the log is not read.
    let mut log = connection.follow("1", 0).await.unwrap();
    let first = tokio::select! {
        first = log.message() => first.unwrap().unwrap().data,
        result = &mut waiting => panic!("the wait ended before the job: {result:?}"),
    };
    assert_eq!(first.as_ref(), b"Running step \"a\"");
    theirs.project.write("end", "");
    let result = waiting.await.unwrap();
    assert_eq!(result.tree.exit_code, Some(4));
}

#[tokio::test]
async fn our_client_reports_errors_of_their_server_without_a_retry() {
    let Some(theirs) = TheirServer::start().await else { return };
    for steps in ["nonsense", "{}\n---\nrun: [{name: a}]\n"] {
        let error = theirs.run("1", steps).await.unwrap_err();
        assert!(matches!(&error, AgentError::Refused(message) if message.contains("step")), "{error:?}");
    }
    let connection = theirs.socket.reach().await.unwrap();
    assert!(matches!(connection.wait("1", MAX_RESULT_BYTES).await, Err(AgentError::Unknown)));
    let followed = follow_to_end(&theirs.socket, "1", ANSWER_TIMEOUT, MAX_RESULT_BYTES, |_| {}).await;
    assert!(matches!(followed, Err(AgentError::Unknown)), "{followed:?}");
    // GitLab's server ends the stream with an error, because a line is longer than 64 KiB.
    let long = r#"- {name: a, script: 'head -c 100000 /dev/zero | tr "\\0" x; echo'}"#;
    theirs.run("2", &definition(long)).await.unwrap();
    let followed = follow_to_end(&theirs.socket, "2", ANSWER_TIMEOUT, MAX_RESULT_BYTES, |_| {}).await;
    assert!(
        matches!(&followed, Err(AgentError::Refused(message)) if message.contains("token too long")),
        "{followed:?}"
    );
}

#[tokio::test]
async fn our_client_ends_a_job_at_their_server() {
    let Some(theirs) = TheirServer::start().await else { return };
    for (id, cause) in [("1", None), ("2", Some(TerminationCause::TimedOut))] {
        theirs.run(id, &definition("- {name: a, script: 'exec sleep 1000'}")).await.unwrap();
        let connection = theirs.socket.reach().await.unwrap();
        let mut log = connection.follow(id, 0).await.unwrap();
        assert!(log.message().await.unwrap().is_some());
        // GitLab's server has no `Cancel`, so the client closes the job.
        match cause {
            None => connection.cancel(id).await.unwrap(),
            Some(cause) => connection.stop(id, cause).await.unwrap(),
        }
        while log.message().await.unwrap().is_some() {}
        assert!(matches!(connection.wait(id, MAX_RESULT_BYTES).await, Err(AgentError::Unknown)));
    }
}

#[tokio::test]
async fn our_client_notices_the_end_of_their_server() {
    let Some(mut theirs) = TheirServer::start().await else { return };
    // If GitLab's server is killed, the process of the job continues. The process ends when the directory of the test is removed.
    let script = "touch running; while [ -e running ]; do sleep 0.01; done";
    theirs.run("1", &definition(&format!("- {{name: a, script: '{script}'}}"))).await.unwrap();
    let connection = theirs.socket.reach().await.unwrap();
    let mut log = connection.follow("1", 0).await.unwrap();
    assert!(log.message().await.unwrap().is_some());
    theirs.server.child.kill().unwrap();
    theirs.server.child.wait().unwrap();
    let silence = Duration::from_millis(300);
    let followed = follow_to_end(&theirs.socket, "1", silence, MAX_RESULT_BYTES, |_| {}).await;
    assert!(matches!(followed, Err(AgentError::NotReached(_))), "{followed:?}");
}

#[tokio::test]
async fn our_client_reaches_their_server_through_both_proxies() {
    let Some(theirs) = TheirServer::start().await else { return };
    let own_proxy = theirs.project.dir.path().join("bin/step-runner");
    for (id, program) in [("1", own_proxy), ("2", variable(PROGRAM).unwrap())] {
        theirs.run(id, &definition("- {name: a, script: echo hi}")).await.unwrap();
        let mut command = theirs.project.program(&program, &["proxy"]);
        let mut proxy = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = tokio::process::ChildStdin::from_std(proxy.stdin.take().unwrap()).unwrap();
        let output = tokio::process::ChildStdout::from_std(proxy.stdout.take().unwrap()).unwrap();
        let stream = tokio::io::join(output, input);
        let connection = AgentConnection::step_runner_from_stream("the proxy".to_owned(), stream).await.unwrap();
        assert_eq!(connection.wait(id, MAX_RESULT_BYTES).await.unwrap().outcome, Outcome::Success);
        connection.close(id).await.unwrap();
        drop(connection);
        tokio::task::spawn_blocking(move || proxy.wait()).await.unwrap().unwrap();
    }
}
