//! A configuration, coordinators in memory, and `gitlab-runner run` as a process.

use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::Duration;

use muster_job::JobId;
use muster_runner_api::test_support::{Job, MemoryCoordinator, RUNNER_TOKEN, Served, serve, serve_on};
use muster_test_prerequisites::DockerEngine;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::process::until;
use crate::runner::support::Home;

/// Environment of one test. Dropping it ends the agents that its managers started.
pub(crate) struct Harness {
    pub(crate) home: Home,
    coordinators: Vec<(Arc<MemoryCoordinator>, Served)>,
}

impl Harness {
    pub(crate) fn start_on(listener: TcpListener) -> Self {
        let coordinator = Arc::new(MemoryCoordinator::new(Duration::from_secs(10)));
        let served = serve_on(listener, coordinator.clone()).unwrap();
        Self { home: Home::new(), coordinators: vec![(coordinator, served)] }
    }

    pub(crate) async fn start(count: usize) -> Self {
        let mut coordinators = Vec::new();
        for _ in 0..count {
            let coordinator = Arc::new(MemoryCoordinator::new(Duration::from_secs(10)));
            coordinators.push((coordinator.clone(), serve(coordinator).await.unwrap()));
        }
        Self { home: Home::new(), coordinators }
    }

    pub(crate) fn coordinator(&self, coordinator_index: usize) -> &MemoryCoordinator {
        &self.coordinators[coordinator_index].0
    }

    pub(crate) fn config_path(&self) -> PathBuf {
        self.home.path("config.toml")
    }

    pub(crate) fn entry(&self, coordinator_index: usize) -> String {
        format!(
            "[[runners]]\nname = \"runner-{coordinator_index}\"\nurl = \"{}\"\nid = {}\ntoken = \"{RUNNER_TOKEN}\"\n\
             executor = \"shell\"\nshell = \"sh\"\n",
            self.coordinators[coordinator_index].1.url,
            coordinator_index + 1
        )
    }

    /// Replaces the configuration atomically, as an editor does.
    pub(crate) fn configure(&self, text: &str) {
        let new = self.home.path("new.toml");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.config_path()).unwrap();
    }

    /// Queues a job that logs its start, waits for the file `go-<id>`, and ends.
    pub(crate) fn push(&self, coordinator_index: usize, id: i64) {
        let go = self.home.path(format!("go-{id}"));
        let script = format!(
            "echo ids $CI_CONCURRENT_ID $CI_CONCURRENT_PROJECT_ID; echo begun; while [ ! -e '{}' ]; do sleep 0.02; done; echo done",
            go.display()
        );
        let variables = [("GIT_STRATEGY", "none"), ("FF_TIMESTAMPS", "false")];
        let payload = json!({
            "id": id, "token": format!("job-secret-{id}"), "job_info": { "name": "test", "project_id": 1 },
            "git_info": { "repo_url": "", "sha": "0123456789abcdef", "ref": "main", "ref_type": "branch" },
            "runner_info": { "timeout": 600 },
            "variables": variables.map(|(key, value)| json!({ "key": key, "value": value })),
            "steps": [{ "name": "script", "script": [script] }],
            "features": { "failure_reasons": ["job_canceled", "runner_interrupted"] },
            "muster": { "trace_interval_ms": 20 }
        });
        self.coordinator(coordinator_index).enqueue(serde_json::from_value(payload).unwrap());
    }

    pub(crate) fn release_job(&self, id: i64) {
        std::fs::write(self.home.path(format!("go-{id}")), "").unwrap();
    }

    pub(crate) async fn wait_for_start(&self, coordinator_index: usize, id: i64) {
        self.coordinator(coordinator_index).wait_for(JobId(id), |job| job.text().contains("begun\n")).await;
    }

    pub(crate) async fn wait_for_end(&self, coordinator_index: usize, id: i64) -> Job {
        self.coordinator(coordinator_index).wait_for_end(JobId(id)).await
    }

    pub(crate) fn run(&self) -> ManagerProcess {
        self.run_with(&[])
    }

    pub(crate) fn run_with(&self, env: &[(&str, &str)]) -> ManagerProcess {
        self.process("run", &["--working-directory", self.home.path("").to_str().unwrap()], env)
    }

    /// Runs the manager in the network of `engine`. In its `PATH`, the home directory comes first.
    pub(crate) fn run_in_network(&self, engine: &DockerEngine) -> ManagerProcess {
        let inner = self.command("run", &["--working-directory", self.home.path("").to_str().unwrap()]);
        let mut command = engine.command_in_network(inner.get_program());
        command.args(inner.get_args()).env_clear().current_dir(self.home.path(""));
        command.envs(inner.get_envs().filter_map(|(key, value)| Some((key, value?))));
        let inherited = std::env::var_os("PATH").unwrap_or_default();
        let programs = [self.home.path("")].into_iter().chain(std::env::split_paths(&inherited));
        command.env("PATH", std::env::join_paths(programs).unwrap());
        self.spawn(command)
    }

    /// Runs the manager with a resource limit. `flag` is the flag of `ulimit` that selects the resource.
    pub(crate) fn run_with_limit(&self, flag: &str, limit: u32) -> ManagerProcess {
        let inner = self.command("run", &["--working-directory", self.home.path("").to_str().unwrap()]);
        let mut command = std::process::Command::new("/bin/sh");
        command.args(["-c", "ulimit \"$1\" \"$2\" && shift 2 && exec \"$@\"", "sh", flag, &limit.to_string()]);
        command.arg(inner.get_program()).args(inner.get_args()).env_clear().current_dir(self.home.path(""));
        command.envs(inner.get_envs().filter_map(|(key, value)| Some((key, value?))));
        self.spawn(command)
    }

    pub(crate) fn run_single(&self, flags: &[&str]) -> ManagerProcess {
        self.process("run-single", flags, &[])
    }

    pub(crate) fn flags(&self, coordinator_index: usize) -> [&str; 8] {
        [
            "--url",
            self.coordinators[coordinator_index].1.url.as_str(),
            "--token",
            RUNNER_TOKEN,
            "--executor",
            "shell",
            "--shell",
            "sh",
        ]
    }

    fn process(&self, name: &str, flags: &[&str], env: &[(&str, &str)]) -> ManagerProcess {
        let mut command = self.command(name, flags);
        command.envs(env.iter().copied());
        self.spawn(command)
    }

    fn command(&self, name: &str, flags: &[&str]) -> std::process::Command {
        let config = self.config_path();
        let mut command = self.home.command(&[name, "--config", config.to_str().unwrap()]);
        command.args(flags).arg("--state-dir").arg(self.home.path("state"));
        command
    }

    fn spawn(&self, mut command: std::process::Command) -> ManagerProcess {
        let log = self.home.path("run.log");
        let file = std::fs::File::options().create(true).append(true).open(&log).unwrap();
        ManagerProcess { child: command.stdout(Stdio::null()).stderr(file).spawn().unwrap(), log }
    }
}

impl Harness {
    /// Returns the agents of this test, which are found by the state directory in their command lines.
    pub(crate) fn agents(&self) -> Vec<(Pid, PathBuf)> {
        let state = self.home.path("state").into_os_string().into_encoded_bytes();
        let mut agents = Vec::new();
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let arguments = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let is_agent = arguments.windows(6).any(|part| part == b"\0serve");
            let pid = entry.file_name().to_string_lossy().parse().ok().and_then(Pid::from_raw);
            if let Some(pid) = pid.filter(|_| is_agent && arguments.windows(state.len()).any(|part| part == state)) {
                agents.push((pid, std::fs::read_link(entry.path().join("exe")).unwrap_or_default()));
            }
        }
        agents
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        for (pid, _) in self.agents() {
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

pub(crate) struct ManagerProcess {
    child: Child,
    log: PathBuf,
}

impl ManagerProcess {
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Returns the command lines of the manager's child processes.
    pub(crate) fn children(&self) -> Vec<String> {
        let read = |path: String| std::fs::read(path).unwrap_or_default();
        let of_thread = |thread: std::fs::DirEntry| {
            let children = read(thread.path().join("children").display().to_string());
            String::from_utf8_lossy(&children).split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap().flatten();
        let line = |pid: String| String::from_utf8_lossy(&read(format!("/proc/{pid}/cmdline"))).replace('\0', " ");
        threads.flat_map(of_thread).map(line).collect()
    }

    pub(crate) async fn wait_for_log(&self, text: &str, times: usize) {
        until(async || {
            let log = self.log();
            if log.matches(text).count() >= times {
                Ok(())
            } else {
                Err(format!("the log does not contain `{text}` {times} times:\n{log}"))
            }
        })
        .await;
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    pub(crate) async fn wait_for_exit_code(mut self) -> i32 {
        let status = until(async || match self.child.try_wait().unwrap() {
            Some(status) => Ok(status),
            None => Err(format!("the manager did not exit:\n{}", self.log())),
        })
        .await;
        assert_eq!(status.signal(), None, "{}", self.log());
        status.code().unwrap()
    }
}

impl Drop for ManagerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
