//! An agent in a separate process, and the engine that runs the containers of its jobs.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use muster_agent_api::builtin::{ContainerSpec, DockerContainer, DockerEngine, DockerVolume, ImageSpec, Script};
use muster_agent_api::client::{self, AgentConnection, AgentError, Reach};
use muster_agent_api::plan::{Call, JobPlan, Step, job_steps};
use muster_agent_api::result::{JobResult, MAX_RESULT_BYTES, Outcome};
use muster_agent_api::step_runner::{Job, RunRequest, Variable};
use muster_test_prerequisites::{DockerEngine as TestEngine, PodmanUser};
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::net::UnixStream;

use crate::process::until;

pub(crate) const IMAGE: &str = "muster-test/busybox:1";
const TITLE: &str = "Preparing the \"docker\" executor";
const ID: &str = "1-1";
const JOB_TIMEOUT: Duration = Duration::from_secs(120);

pub(crate) struct Host {
    pub(crate) docker: &'static TestEngine,
    /// Settings with which the agent finds the engine.
    engine: DockerEngine,
    dir: TempDir,
    process: Mutex<Child>,
}

impl Drop for Host {
    fn drop(&mut self) {
        let mut process = self.process.lock();
        let _ = process.kill();
        let _ = process.wait();
        if std::thread::panicking() {
            let _ = std::io::stderr().write_all(self.agent_log().as_bytes());
        }
    }
}

impl Host {
    /// Starts an agent that uses a Docker Engine, if the machine has one.
    pub(crate) async fn start() -> Option<Self> {
        static IMAGE_EXISTS: OnceLock<bool> = OnceLock::new();
        Self::start_with(TestEngine::shared()?, &IMAGE_EXISTS).await
    }

    /// Starts an agent for each kind of engine on this machine.
    pub(crate) async fn start_on_each_engine() -> Vec<Self> {
        static IMAGE_EXISTS: [OnceLock<bool>; 2] = [OnceLock::new(), OnceLock::new()];
        let mut hosts: Vec<_> = Self::start().await.into_iter().collect();
        for (user, image_exists) in [PodmanUser::Root, PodmanUser::Unprivileged].into_iter().zip(&IMAGE_EXISTS) {
            let Some(podman) = TestEngine::shared_podman(user) else { continue };
            hosts.extend(Self::start_with(podman, image_exists).await);
        }
        hosts
    }

    /// Starts an agent with an engine that the test may crash. `None` means that no engine can run here.
    pub(crate) async fn start_on_isolated_engine() -> Option<Self> {
        // The engine ends with the process of the tests.
        Self::start_with(Box::leak(Box::new(TestEngine::isolated()?)), &OnceLock::new()).await
    }

    async fn start_with(docker: &'static TestEngine, image_exists: &OnceLock<bool>) -> Option<Self> {
        if !image_exists.get_or_init(|| docker.create_image(IMAGE, &[])) {
            return None;
        }
        let engine = DockerEngine { host: docker.url(), ..DockerEngine::default() };
        Some(Self::serve(docker, engine, tempfile::tempdir().unwrap()).await)
    }

    /// Starts an agent. Programs in `dir` precede others with the same name in `PATH`.
    pub(super) async fn serve(docker: &'static TestEngine, engine: DockerEngine, dir: TempDir) -> Self {
        let host = Self { docker, engine, process: Mutex::new(spawn(&dir)), dir };
        until(async || host.reach().await.map_err(|error| error.to_string())).await;
        host
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn agent_log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("agent.log")).unwrap_or_default()
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("agent.sock")
    }

    pub(crate) async fn run(&self, job: &DockerContainer, steps: Vec<Step>) -> (String, JobResult) {
        self.start_job(job, steps).await;
        self.finish().await
    }

    /// Runs `services` beside the container, and `steps` in the container. Tries at most twice to create the
    /// containers.
    pub(crate) async fn run_with_services(
        &self,
        job: &DockerContainer,
        services: Vec<Step>,
        steps: Vec<Step>,
    ) -> (String, JobResult) {
        let environment = Call::delegate(&self.with_engine(job), services, steps);
        let mut step = Step::new("prepare_executor", TITLE, environment);
        step.policy.attempts = 2;
        self.start_step(step, Duration::ZERO).await;
        self.finish().await
    }

    pub(crate) async fn start_job(&self, job: &DockerContainer, steps: Vec<Step>) {
        self.start_job_with(job, steps, Duration::ZERO).await;
    }

    pub(crate) async fn start_job_with(&self, job: &DockerContainer, steps: Vec<Step>, timeout: Duration) {
        let environment = Call::delegate(&self.with_engine(job), Vec::new(), steps);
        self.start_step(Step::new("prepare_executor", TITLE, environment), timeout).await;
    }

    fn with_engine(&self, job: &DockerContainer) -> DockerContainer {
        DockerContainer { engine: self.engine.clone(), ..job.clone() }
    }

    async fn start_step(&self, step: Step, timeout: Duration) {
        let plan = JobPlan {
            project_dir: self.dir.path().join("builds/p").to_string_lossy().into_owned(),
            builds_dir: self.dir.path().join("builds").to_string_lossy().into_owned(),
            steps: vec![step],
            grace_ms: 300,
            timeout_ms: u64::try_from(timeout.as_millis()).unwrap(),
            ..JobPlan::default()
        };
        let variable = Variable { key: "A".to_owned(), value: "handed on".to_owned(), file: false, masked: false };
        let request = RunRequest {
            id: ID.to_owned(),
            steps: job_steps(&plan).unwrap(),
            job: Some(Job { variables: vec![variable], build_dir: plan.project_dir.clone() }),
            ..RunRequest::default()
        };
        self.reach().await.unwrap().run(request).await.unwrap();
    }

    pub(crate) async fn finish(&self) -> (String, JobResult) {
        let mut log = Vec::new();
        let following =
            client::follow_to_end(self, ID, JOB_TIMEOUT, MAX_RESULT_BYTES, |bytes| log.extend_from_slice(bytes));
        let result = tokio::time::timeout(JOB_TIMEOUT, following).await.unwrap().unwrap();
        (String::from_utf8(log).unwrap(), result)
    }

    /// Waits until the job's log contains this text.
    pub(crate) async fn wait_for_log(&self, text: &str) {
        let mut log = String::new();
        let reading = async {
            let mut chunks = self.reach().await.unwrap().follow(ID, 0).await.unwrap();
            while !log.contains(text) {
                let chunk = chunks.message().await.unwrap().unwrap_or_else(|| panic!("{text:?} is not in {log}"));
                log.push_str(&String::from_utf8_lossy(&chunk.data));
            }
        };
        assert!(tokio::time::timeout(JOB_TIMEOUT, reading).await.is_ok(), "{text:?} is not in {log}");
    }

    pub(crate) async fn cancel(&self) {
        self.reach().await.unwrap().cancel(ID).await.unwrap();
    }

    /// Deletes the job, so that another job can run.
    pub(crate) async fn close_job(&self) {
        self.reach().await.unwrap().close(ID).await.unwrap();
    }

    /// Kills the agent, and starts another one with the same spool.
    pub(crate) async fn restart(&mut self) {
        let process = self.process.get_mut();
        process.kill().unwrap();
        process.wait().unwrap();
        *process = spawn(&self.dir);
        until(async || self.reach().await.map_err(|error| error.to_string())).await;
    }

    pub(crate) async fn terminate(&mut self) {
        let process = self.process.get_mut();
        let pid = rustix::process::Pid::from_raw(i32::try_from(process.id()).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        until(async || process.try_wait().unwrap().ok_or("the agent still runs".to_owned())).await;
    }

    pub(crate) async fn until_no_objects(&self, name: &str) {
        until(async || match self.objects(name) {
            objects if objects.is_empty() => Ok(()),
            objects => Err(format!("{objects:?} must be removed from {}", self.docker.url())),
        })
        .await;
    }

    /// Returns the names of containers, volumes and networks that begin with this text.
    pub(crate) fn objects(&self, name: &str) -> String {
        let lists =
            ["/containers/json?all=1", "/volumes", "/networks"].map(|path| self.docker.call("GET", path, &[]).1);
        let words = lists.iter().flat_map(|list| list.split('"'));
        words.filter(|word| word.trim_start_matches('/').starts_with(name)).collect::<Vec<_>>().join(" ")
    }
}

fn spawn(dir: &TempDir) -> Child {
    let mut agent = Command::new(env!("CARGO_BIN_EXE_muster-agent"));
    agent.args(["agent", "serve", "--no-cgroups", "--socket"]).arg(dir.path().join("agent.sock"));
    agent.arg("--spool").arg(dir.path().join("spool"));
    let inherited = std::env::var_os("PATH").unwrap_or_default();
    let programs = [dir.path().to_owned()].into_iter().chain(std::env::split_paths(&inherited));
    agent.env("PATH", std::env::join_paths(programs).unwrap());
    let log = File::options().create(true).append(true).open(dir.path().join("agent.log")).unwrap();
    agent.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap()
}

#[async_trait::async_trait]
impl Reach for Host {
    async fn reach(&self) -> Result<AgentConnection, AgentError> {
        let socket = self.socket();
        let location = socket.display().to_string();
        let opened = AgentConnection::open(location, move || UnixStream::connect(socket.clone())).await;
        opened.map_err(|error| AgentError::NotReached(error.into()))
    }
}

/// Returns a job in a container. The names of the job's objects at the engine begin with `name`.
pub(crate) fn job(name: &str) -> DockerContainer {
    DockerContainer {
        build: ContainerSpec {
            name: format!("{name}-build"),
            image: ImageSpec {
                name: IMAGE.to_owned(),
                pull_policies: vec!["if-not-present".to_owned()],
                ..ImageSpec::default()
            },
            hostname: format!("{name}-host"),
            ..ContainerSpec::default()
        },
        volumes: vec![DockerVolume {
            source: format!("{name}-builds"),
            destination: "/builds".to_owned(),
            temporary: true,
            ..DockerVolume::default()
        }],
        directories: vec!["/builds".to_owned(), "/cache".to_owned()],
        owned: ["/builds/group/project", "/builds/group/project.tmp"].map(str::to_owned).to_vec(),
        project_dir: "/builds/group/project".to_owned(),
        ..DockerContainer::default()
    }
}

pub(crate) fn script(commands: &[&str]) -> Step {
    let commands = commands.iter().map(ToString::to_string).collect();
    Step::new("step_script", "", Call::builtin(&Script { commands, ..Script::default() }))
}

pub(crate) fn failure_of(result: &JobResult) -> (String, Option<i32>) {
    match &result.outcome {
        Outcome::Success => panic!("the job passed"),
        Outcome::Failed { reason, exit_code, .. } => (reason.to_string(), *exit_code),
    }
}
