use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use muster_agent::{Options, ServeError, serve};
use muster_agent_api::agent::agent_client::AgentClient;
use muster_agent_api::agent::{ListJobsRequest, WaitForResultRequest};
use muster_agent_api::builtin::Script;
use muster_agent_api::client::{AgentConnection, AgentError, Reach};
use muster_agent_api::plan::{Call, JobPlan, Step, When, job_steps};
use muster_agent_api::result::{JobResult, Outcome, StepStatus};
use muster_agent_api::step_runner::step_runner_client::StepRunnerClient;
use muster_agent_api::step_runner::{CancelRequest, CloseRequest, FollowLogsRequest, Job, RunRequest, Variable};
use muster_steps::process::Containment;
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};

/// Longer than any operation of these tests on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct Agent {
    pub(crate) dir: TempDir,
    shutdown: CancellationToken,
    task: JoinHandle<Result<(), ServeError>>,
    pub(crate) steps: StepRunnerClient<Channel>,
    pub(crate) extension: AgentClient<Channel>,
}

pub(crate) fn options(dir: &Path) -> Options {
    Options {
        socket: dir.join("s/agent.sock"),
        only_user: None,
        tcp: None,
        spool: dir.join("spool"),
        exit_with_pid: None,
        ready: None,
        retention: Duration::from_secs(3600),
        spool_limit: 1 << 30,
        boot_id: "first".to_owned(),
        containment: Containment::default(),
        job_nofile_limit: None,
        idle_timeout: None,
        unattended_timeout: None,
        shutdown: CancellationToken::new(),
    }
}

pub(crate) async fn connect(socket: PathBuf) -> Channel {
    let connector = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { tokio::net::UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    Endpoint::from_static("http://agent").connect_with_connector(connector).await.unwrap()
}

/// Agent that listens on this socket.
pub(crate) struct Socket(pub(crate) PathBuf);

#[async_trait::async_trait]
impl Reach for Socket {
    async fn reach(&self) -> Result<AgentConnection, AgentError> {
        let path = self.0.clone();
        let opened =
            AgentConnection::open(path.display().to_string(), move || tokio::net::UnixStream::connect(path.clone()));
        opened.await.map_err(|error| AgentError::NotReached(error.into()))
    }
}

impl Agent {
    pub(crate) async fn start() -> Self {
        Self::start_in(tempfile::tempdir().unwrap()).await
    }

    pub(crate) async fn start_in(dir: TempDir) -> Self {
        Self::start_with(options(dir.path()), dir).await
    }

    pub(crate) async fn start_with(mut options: Options, dir: TempDir) -> Self {
        let (ready, is_ready) = oneshot::channel();
        options.ready = Some(ready);
        let (shutdown, socket) = (options.shutdown.clone(), options.socket.clone());
        let task = tokio::spawn(serve(options));
        tokio::time::timeout(TIMEOUT, is_ready).await.unwrap().expect("the agent must accept calls");
        let channel = connect(socket).await;
        let steps = StepRunnerClient::new(channel.clone());
        Self { dir, shutdown, task, steps, extension: AgentClient::new(channel) }
    }

    /// Starts an agent on a separate thread with its own runtime. The test still runs if the agent blocks this thread.
    pub(crate) async fn start_on_thread(dir: TempDir) -> Self {
        let (ready, is_ready) = oneshot::channel();
        let options = Options { ready: Some(ready), ..options(dir.path()) };
        let (shutdown, socket) = (options.shutdown.clone(), options.socket.clone());
        let (result_sender, result) = oneshot::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let _ = result_sender.send(runtime.block_on(serve(options)));
        });
        tokio::time::timeout(TIMEOUT, is_ready)
            .await
            .expect("the agent must start in time")
            .expect("the agent must accept calls");
        let task = tokio::spawn(async { result.await.unwrap() });
        let channel = connect(socket).await;
        let steps = StepRunnerClient::new(channel.clone());
        Self { dir, shutdown, task, steps, extension: AgentClient::new(channel) }
    }

    pub(crate) async fn wait_exit(self) {
        tokio::time::timeout(TIMEOUT, self.task).await.unwrap().unwrap().unwrap();
    }

    pub(crate) async fn attach(dir: TempDir) -> Self {
        let channel = connect(options(dir.path()).socket).await;
        let steps = StepRunnerClient::new(channel.clone());
        let task = tokio::spawn(async { Ok(()) });
        Self { dir, shutdown: CancellationToken::new(), task, steps, extension: AgentClient::new(channel) }
    }

    /// Drops the agent's only client. Returns the agent's task and directory.
    pub(crate) fn disconnect(self) -> (JoinHandle<Result<(), ServeError>>, TempDir) {
        (self.task, self.dir)
    }

    pub(crate) async fn stop(self) -> TempDir {
        self.shutdown.cancel();
        drop((self.steps, self.extension));
        tokio::time::timeout(TIMEOUT, self.task).await.unwrap().unwrap().unwrap();
        self.dir
    }

    pub(crate) fn temporary_files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.dir.path().join("builds/p.tmp")).into_iter().flatten();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    pub(crate) fn project(&self) -> PathBuf {
        self.dir.path().join("builds/p")
    }

    pub(crate) async fn run(&mut self, id: &str, plan: &JobPlan, variables: &[Variable]) {
        self.steps.run(request(id, plan, variables)).await.unwrap();
    }

    pub(crate) async fn log_from(&mut self, id: &str, offset: i64) -> Vec<u8> {
        let mut log = Vec::new();
        tokio::time::timeout(TIMEOUT, async {
            let request = FollowLogsRequest { id: id.to_owned(), offset };
            let mut stream = self.steps.follow_logs(request).await.unwrap().into_inner();
            while let Some(message) = stream.message().await.unwrap() {
                log.extend(message.data);
            }
        })
        .await
        .unwrap();
        log
    }

    pub(crate) async fn log(&mut self, id: &str) -> String {
        String::from_utf8(self.log_from(id, 0).await).unwrap()
    }

    pub(crate) async fn log_until(&mut self, id: &str, text: &str) -> String {
        let request = FollowLogsRequest { id: id.to_owned(), offset: 0 };
        let mut stream = self.steps.follow_logs(request).await.unwrap().into_inner();
        let mut log = String::new();
        tokio::time::timeout(TIMEOUT, async {
            while !log.contains(text) {
                let message =
                    stream.message().await.unwrap().unwrap_or_else(|| panic!("{text:?} is not in the log: {log}"));
                log.push_str(&String::from_utf8_lossy(&message.data));
            }
        })
        .await
        .unwrap();
        log
    }

    pub(crate) async fn wait(&mut self, id: &str) -> JobResult {
        let response = self.extension.wait_for_result(WaitForResultRequest { id: id.to_owned() });
        let response = tokio::time::timeout(TIMEOUT, response).await.unwrap().unwrap();
        serde_json::from_str(&response.into_inner().result).unwrap()
    }

    pub(crate) async fn cancel(&mut self, id: &str) {
        self.steps.cancel(CancelRequest { id: id.to_owned() }).await.unwrap();
    }

    pub(crate) async fn close(&mut self, id: &str) {
        self.steps.close(CloseRequest { id: id.to_owned() }).await.unwrap();
    }

    pub(crate) async fn ids(&mut self) -> Vec<String> {
        self.extension
            .list_jobs(ListJobsRequest {})
            .await
            .unwrap()
            .into_inner()
            .jobs
            .into_iter()
            .map(|job| job.id)
            .collect()
    }

    pub(crate) async fn complete(&mut self, plan: &JobPlan) -> (String, JobResult) {
        self.run("1-1", plan, &[]).await;
        let log = self.log("1-1").await;
        let result = self.wait("1-1").await;
        assert_eq!(result.log_bytes, log.len() as u64);
        self.close("1-1").await;
        (log, result)
    }

    pub(crate) fn plan(&self, steps: Vec<Step>) -> JobPlan {
        JobPlan {
            project_dir: self.project().to_string_lossy().into_owned(),
            builds_dir: self.dir.path().to_string_lossy().into_owned(),
            steps: [vec![no_sources()], steps].concat(),
            grace_ms: 300,
            ..JobPlan::default()
        }
    }
}

pub(crate) fn request(id: &str, plan: &JobPlan, variables: &[Variable]) -> RunRequest {
    RunRequest {
        id: id.to_owned(),
        steps: job_steps(plan).unwrap(),
        job: Some(Job { variables: variables.to_vec(), build_dir: plan.project_dir.clone() }),
        ..RunRequest::default()
    }
}

pub(crate) fn step(name: &str, when: When, call: Call) -> Step {
    let title = format!("Executing \"{name}\" stage of the job script");
    let mut step = Step::new(name, &title, call);
    step.policy.when = when;
    step
}

fn no_sources() -> Step {
    let checkout = muster_agent_api::builtin::Checkout { strategy: "none".to_owned(), ..Default::default() };
    step("get_sources", When::OnSuccess, Call::builtin(&checkout))
}

pub(crate) fn script(commands: &[&str]) -> Step {
    let commands = commands.iter().map(ToString::to_string).collect();
    step("step_script", When::OnSuccess, Call::builtin(&Script { commands, ..Script::default() }))
}

pub(crate) fn after_script(commands: &[&str]) -> Step {
    let commands = commands.iter().map(ToString::to_string).collect();
    let call = Call::builtin(&Script { commands, after_script: true, ..Script::default() });
    let mut step = step("after_script", When::Always, call);
    step.policy.allow_failure = true;
    step
}

pub(crate) fn variable(key: &str, value: &str) -> Variable {
    Variable { key: key.to_owned(), value: value.to_owned(), file: false, masked: false }
}

pub(crate) fn states(result: &JobResult) -> Vec<(&str, StepStatus)> {
    result.tree.steps.iter().map(|step| (step.name.as_str(), step.status)).collect()
}

pub(crate) fn failure(result: &JobResult) -> (String, Option<i32>) {
    match &result.outcome {
        Outcome::Success => panic!("the job succeeded"),
        Outcome::Failed { reason, exit_code, .. } => (reason.to_string(), *exit_code),
    }
}

/// Runs a test in a separate process, and panics if it fails. Returns true in that process.
pub(crate) fn runs_in_separate_process(test: &str) -> bool {
    const SEPARATE_PROCESS: &str = "TEST_IN_SEPARATE_PROCESS";
    if std::env::var_os(SEPARATE_PROCESS).is_some_and(|value| value == test) {
        return true;
    }
    let program = std::env::current_exe().unwrap();
    let output =
        std::process::Command::new(program).args([test, "--exact", "--nocapture"]).env(SEPARATE_PROCESS, test).output();
    let output = output.unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    false
}

pub(crate) fn is_running(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}
