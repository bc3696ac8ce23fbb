//! Runs the cases with Muster and with gitlab-runner.

use std::ffi::OsStr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use muster_job::{JobId, JobStatus};
use muster_runner_api::test_support::{MemoryCoordinator, RUNNER_TOKEN, Served, serve, serve_on};
use muster_tests::process::{muster, wait_until};

use super::case::{Case, Sources};
use super::docker::Docker;
use super::{Observations, observed};

const TIMEOUT: Duration = Duration::from_secs(600);
const CONCURRENT: usize = 4;

pub(super) enum Executor {
    Shell,
    Docker(Docker),
}

impl Executor {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Shell => "shell",
            Self::Docker(_) => "docker",
        }
    }

    fn keys(&self) -> String {
        match self {
            Self::Shell => "shell = \"bash\"\n".to_owned(),
            Self::Docker(docker) => docker.config(),
        }
    }

    async fn serve(&self, coordinator: Arc<MemoryCoordinator>) -> Served {
        let served = match self {
            Self::Shell => serve(coordinator).await,
            Self::Docker(docker) => serve_on(docker.listen(), coordinator),
        };
        served.unwrap()
    }

    fn command(&self, program: &Path) -> Command {
        match self {
            Self::Shell => Command::new(program),
            Self::Docker(docker) => docker.command(program),
        }
    }
}

pub(super) struct CaseRunner<'a> {
    cases: &'a [Case],
    executor: &'a Executor,
    coordinator: Arc<MemoryCoordinator>,
    home: tempfile::TempDir,
    sources: Sources,
}

/// Process of a runner. Dropping this value kills the process, and Muster's agent, which outlives its manager.
struct RunnerProcess {
    process: std::process::Child,
    state_dir: PathBuf,
}

impl Drop for RunnerProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        // The lock file of the agent contains its process ID.
        let pid = std::fs::read_to_string(self.state_dir.join("spool/agent.lock")).unwrap_or_default();
        let pid = pid.trim();
        let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if !pid.is_empty() && command.contains("agent") {
            let _ = Command::new("kill").arg(pid).status();
        }
    }
}

impl<'a> CaseRunner<'a> {
    pub(super) fn new(cases: &'a [Case], executor: &'a Executor) -> Self {
        let home = tempfile::tempdir().unwrap();
        let sources = create_repository(home.path());
        for case in cases {
            let project = home.path().join("repos/group").join(format!("{}.git", case.project(cases)));
            if !project.exists() {
                symlink(home.path().join("origin"), project).unwrap();
            }
        }
        // Requests are held for longer than a case takes, so that no runner waits for its check interval.
        let coordinator = Arc::new(MemoryCoordinator::new(Duration::from_secs(20)).with_wait_timeout(2 * TIMEOUT));
        Self { cases, executor, coordinator, home, sources }
    }

    /// Returns the results of `muster runner run`.
    pub(super) async fn run_muster(self) -> Observations {
        let served = self.executor.serve(self.coordinator.clone()).await;
        let mut command = self.command(&muster());
        command.arg("runner");
        self.add_run_arguments(&served, &mut command);
        command.arg("--state-dir").arg(self.state_dir());
        self.observe(served, command).await
    }

    /// Returns the results of gitlab-runner.
    pub(super) async fn run_stock(self, binary: &OsStr) -> Observations {
        let served = self.executor.serve(self.coordinator.clone()).await;
        let mut command = self.command(Path::new(binary));
        self.add_run_arguments(&served, &mut command);
        self.observe(served, command).await
    }

    fn state_dir(&self) -> PathBuf {
        self.home.path().join("state")
    }

    /// Writes `config.toml`, and adds the arguments of `run` to the command.
    fn add_run_arguments(&self, served: &Served, command: &mut Command) {
        let config = self.home.path().join("config.toml");
        let text = format!(
            "concurrent = {CONCURRENT}\ncheck_interval = 1\n[[runners]]\nname = \"peer\"\nid = 1\n\
             url = \"{}\"\ntoken = \"{RUNNER_TOKEN}\"\nexecutor = {:?}\n{}",
            served.url,
            self.executor.name(),
            self.executor.keys()
        );
        std::fs::write(&config, text).unwrap();
        command.arg("run").arg("--config").arg(config).arg("--working-directory").arg(self.home.path());
    }

    /// Returns a command whose environment has only `HOME` and `PATH`.
    fn command(&self, program: &Path) -> Command {
        let log = std::fs::File::create(self.home.path().join("runner.log")).unwrap();
        let mut command = self.executor.command(program);
        command.env_clear().env("HOME", self.home.path()).env("PATH", std::env::var_os("PATH").unwrap());
        command.current_dir(self.home.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        command
    }

    async fn observe(self, _served: Served, mut runner: Command) -> Observations {
        // `RunnerProcess::drop` reads the agent's process ID from the home directory, so `self`, which owns the
        // directory, must be dropped later.
        let _runner = RunnerProcess { process: runner.spawn().unwrap(), state_dir: self.state_dir() };
        let chains = self.cases.iter().filter(|case| case.after.is_none()).map(|first| self.run_chain(first));
        let Ok(observations) = tokio::time::timeout(TIMEOUT, join_all(chains)).await else {
            panic!("these cases did not end in time:\n{}\nlog of the runner:\n{}", self.unfinished(), self.log());
        };
        observations.into_iter().flatten().collect()
    }

    /// Returns whether the runner still uses the slot of a job.
    fn still_uses_slot(&self, id: JobId) -> bool {
        self.agent_has_job(id) || self.lists_job(id)
    }

    /// Returns whether the agent of Muster still has the job. gitlab-runner has no agent.
    fn agent_has_job(&self, id: JobId) -> bool {
        let entries = std::fs::read_dir(self.state_dir().join("spool")).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name()).any(|name| name.to_string_lossy().starts_with(&format!("{id}-")))
    }

    /// Returns whether the job is still in the processing list, according to the log of the runner. The log of
    /// gitlab-runner has escape sequences.
    fn lists_job(&self, id: JobId) -> bool {
        let log = self.log().replace("\x1b[0;m", "");
        let field = format!(" job={id} ");
        let logged = |event: &str| log.lines().any(|line| line.starts_with(event) && line.contains(&field));
        logged("Added job to processing list") && !logged("Removed job from processing list")
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.home.path().join("runner.log")).unwrap()
    }

    fn unfinished(&self) -> String {
        let jobs = self.cases.iter().map(|case| (case, self.coordinator.job(JobId(case.id(self.cases)))));
        let unfinished = jobs.filter(|(_, job)| !job.as_ref().is_some_and(|job| job.status.is_complete()));
        let lines = unfinished.map(|(case, job)| {
            let (status, text) = job.map_or(("not started", String::new()), |job| (job.status.as_str(), job.text()));
            format!("{} is {status}:\n{text}\n", case.name)
        });
        lines.collect()
    }

    async fn run_chain(&self, first: &Case) -> Observations {
        let mut observations = Observations::new();
        let mut case = Some(first);
        while let Some(current) = case {
            let id = JobId(current.id(self.cases));
            self.coordinator.enqueue(serde_json::from_value(current.payload(self.cases, &self.sources)).unwrap());
            for (trigger, status) in
                [(&current.cancel_at, JobStatus::Canceling), (&current.abort_at, JobStatus::Canceled)]
            {
                if let Some(text) = trigger {
                    self.coordinator.wait_for(id, |job| job.text().contains(text.as_str())).await;
                    self.coordinator.set_status(id, status);
                }
            }
            let job = self.coordinator.wait_for_end(id).await;
            observations.insert(current.name.clone(), observed::observe(&job, self.home.path()));
            // The next job of the project gets the same slot, and with it the same volumes, only after its release.
            let is_released = wait_until(|| !self.still_uses_slot(id)).await;
            assert!(is_released, "the slot of case {} was not released:\n{}", current.name, self.log());
            case = self.cases.iter().find(|next| next.after.as_ref() == Some(&current.name));
        }
        observations
    }
}

/// Creates the repository of the cases. Its commits have the same hashes on every machine.
fn create_repository(home: &Path) -> Sources {
    let origin = home.join("origin");
    std::fs::create_dir_all(origin.join("folder")).unwrap();
    std::fs::create_dir_all(home.join("repos/group")).unwrap();
    git(&origin, &["init", "-q", "-b", "main"]);
    std::fs::write(origin.join("read-me"), "first\n").unwrap();
    std::fs::write(origin.join(".gitignore"), "*.ignored\n").unwrap();
    std::fs::write(origin.join("folder/file with space"), "content\n").unwrap();
    let before_sha = commit(&origin, "first");
    git(&origin, &["tag", "v1"]);
    std::fs::write(origin.join("read-me"), "second\n").unwrap();
    let sha = commit(&origin, "second");
    git(&origin, &["branch", "other", "HEAD~1"]);
    Sources { url: format!("file://{}", home.join("repos/group").display()), sha, before_sha }
}

fn commit(origin: &Path, message: &str) -> String {
    git(origin, &["add", "-A"]);
    git(origin, &["commit", "-q", "-m", message]);
    git(origin, &["rev-parse", "HEAD"])
}

fn git(directory: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("git");
    command.args(["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]).args(arguments).current_dir(directory);
    for name in ["GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"] {
        command.env(name, "2024-01-01T00:00:00Z");
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}
