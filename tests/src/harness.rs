//! Test environment: a coordinator in memory, a proxy, and a manager with its processes, which tests can kill.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use muster_job::JobId;
use muster_runner_api::test_support::{MemoryCoordinator, RUNNER_TOKEN, Served, serve};
use muster_test_prerequisites::DockerEngine;
use serde_json::{Value, json};

use crate::files::{nonempty_temporary_directories, visit_files};
use crate::machines::{Machines, ProcessKind, kill, signal};
use crate::process::{muster, plugin_local, wait_until};
use crate::proxy::Proxy;

/// Maximum time that a test waits for an event at the coordinator.
const WAIT_TIMEOUT: Duration = Duration::from_secs(120);
/// Replaces [`WAIT_TIMEOUT`] if the plugin fails at random. The taskscaler's delay doubles with each consecutive
/// failure.
const FAILING_PLUGIN_WAIT_TIMEOUT: Duration = Duration::from_secs(900);
const LONG_POLL: Duration = Duration::from_secs(5);
/// Time that a GitLab-like coordinator needs to find a job for a request.
const JOB_LOOKUP_TIME: Duration = Duration::from_millis(20);
/// Value of a masked variable. No log, and no file that other users can read, may contain it.
pub const SECRET: &str = "zq7Xw2-not-to-be-seen-0451";

/// Test environment. Dropping this value kills its processes.
pub struct Harness {
    /// Coordinator that serves the runner API.
    pub coordinator: Arc<MemoryCoordinator>,
    /// Proxy between the manager and the coordinator.
    pub proxy: Proxy,
    /// Contains all files of the environment.
    pub home: tempfile::TempDir,
    /// Instances on which jobs run. Empty if jobs do not run on instances.
    pub machines: Machines,
    concurrent: usize,
    /// Executable under test. A modified copy simulates an upgrade.
    pub executable: PathBuf,
    /// Engine of the jobs' containers. `None` means that jobs do not run in containers.
    pub engine: Option<DockerEngine>,
    /// JSON members that are added to the payload of each job.
    job_members: Value,
    /// Path of `config.toml`. `None` means that the manager has command-line options, and runs jobs on this host.
    config: Option<PathBuf>,
    /// User that runs the commands of jobs. `None` means the user of the manager.
    job_user: Option<String>,
    manager: Option<Child>,
    /// The manager and the agent of this host exit with this process, unless they have a `config.toml`.
    lifetime_process: Child,
    _served: Served,
}

impl Harness {
    /// Starts an environment whose manager runs jobs on this host.
    pub async fn start(concurrent: usize) -> Self {
        Self::start_with(coordinator_with_idempotency_keys(), concurrent).await
    }

    /// Like [`Self::start`], with a coordinator that loses a job if the response with the job is lost, as GitLab does.
    pub async fn start_gitlab_like(concurrent: usize) -> Self {
        Self::start_with(gitlab_like_coordinator(), concurrent).await
    }

    async fn start_with(coordinator: MemoryCoordinator, concurrent: usize) -> Self {
        let mut harness = Self::prepare(coordinator, concurrent).await;
        harness.start_manager();
        harness
    }

    /// Starts an environment whose manager runs jobs on instances, which outlive the manager and its plugin.
    ///
    /// `autoscaler` is added to `[runners.autoscaler]`, and `plugin` to its `plugin_config`.
    pub async fn with_instances(concurrent: usize, autoscaler: &str, plugin: &str) -> Self {
        Self::with_instances_and_coordinator(coordinator_with_idempotency_keys(), concurrent, autoscaler, plugin).await
    }

    /// Like [`Self::with_instances`], with the coordinator of [`Self::start_gitlab_like`].
    pub async fn with_instances_gitlab_like(concurrent: usize, autoscaler: &str, plugin: &str) -> Self {
        let coordinator = gitlab_like_coordinator().with_wait_timeout(FAILING_PLUGIN_WAIT_TIMEOUT);
        Self::with_instances_and_coordinator(coordinator, concurrent, autoscaler, plugin).await
    }

    async fn with_instances_and_coordinator(
        coordinator: MemoryCoordinator,
        concurrent: usize,
        autoscaler: &str,
        plugin: &str,
    ) -> Self {
        let config_text = |harness: &Self| {
            let (url, executable, machines) = (&harness.proxy.url, plugin_local(), harness.path("machines"));
            format!(
                "concurrent = {concurrent}\ncheck_interval = 1\n[[runners]]\n  name = \"ours\"\n  url = {url:?}\n  \
                 token = \"{RUNNER_TOKEN}\"\n  executor = \"instance\"\n  shell = \"bash\"\n  request_concurrency = {concurrent}\n  \
                 [runners.autoscaler]\n    plugin = {executable:?}\n    {autoscaler}\n    [runners.autoscaler.plugin_config]\n      \
                 directory = {machines:?}\n      persistent_instances = true\n      {plugin}\n"
            )
        };
        Self::with_config_and_coordinator(coordinator, concurrent, config_text).await
    }

    /// Starts an environment whose manager uses the `config.toml` that `config_text` returns.
    pub async fn with_config(concurrent: usize, config_text: impl FnOnce(&Self) -> String) -> Self {
        Self::with_config_and_coordinator(coordinator_with_idempotency_keys(), concurrent, config_text).await
    }

    /// Like [`Self::with_config`], but jobs run as another user, who owns `builds` and `cache`. Requires root.
    pub async fn with_config_for_user(
        concurrent: usize,
        user: &str,
        config_text: impl FnOnce(&Self) -> String,
    ) -> Self {
        let mut harness = Self::prepare(coordinator_with_idempotency_keys(), concurrent).await;
        // The user must be able to reach the directories `builds` and `cache`.
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o711);
        std::fs::set_permissions(harness.home.path(), permissions).unwrap();
        let directories = ["builds", "cache"].map(|name| harness.path(name));
        directories.iter().for_each(|directory| std::fs::create_dir(directory).unwrap());
        assert!(Command::new("chown").arg(user).args(directories).status().unwrap().success());
        // The executable may be below a home directory that only root can enter.
        let can_execute = format!("test -x '{}'", harness.executable.display());
        if !Command::new("su").args([user, "-s", "/bin/sh", "-c", &can_execute]).status().unwrap().success() {
            let copy = harness.path("muster");
            muster_test_prerequisites::copy_program(&harness.executable, &copy);
            harness.executable = copy;
        }
        harness.job_user = Some(user.to_owned());
        harness.start_with_config(config_text);
        harness
    }

    async fn with_config_and_coordinator(
        coordinator: MemoryCoordinator,
        concurrent: usize,
        config_text: impl FnOnce(&Self) -> String,
    ) -> Self {
        let mut harness = Self::prepare(coordinator, concurrent).await;
        harness.start_with_config(config_text);
        harness
    }

    fn start_with_config(&mut self, config_text: impl FnOnce(&Self) -> String) {
        let config = self.path("config.toml");
        std::fs::write(&config, config_text(self)).unwrap();
        // The file contains the token of the runner.
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&config, permissions).unwrap();
        self.config = Some(config);
        self.start_manager();
    }

    /// Starts an environment whose jobs run in containers of `engine`, each with a service.
    ///
    /// Returns `None` if the images of the jobs cannot be created.
    pub async fn with_containers(concurrent: usize, engine: DockerEngine) -> Option<Self> {
        const IMAGE: &str = "muster-test/harness:1";
        if !engine.create_image(IMAGE, &[]) {
            return None;
        }
        let mut harness = Self::prepare(coordinator_with_idempotency_keys(), concurrent).await;
        let home = harness.home.path().display();
        let text = format!(
            "concurrent = {concurrent}\ncheck_interval = 1\n[[runners]]\n  name = \"ours\"\n  url = {:?}\n  \
             token = \"{RUNNER_TOKEN}\"\n  executor = \"docker\"\n  request_concurrency = {concurrent}\n  [runners.docker]\n    \
             host = {:?}\n    image = \"{IMAGE}\"\n    pull_policy = \"never\"\n    \
             volumes = [\"{home}:{home}\"]\n    wait_for_services_timeout = -1\n",
            harness.proxy.url,
            engine.url()
        );
        let service = json!({ "name": IMAGE, "alias": "web", "command": ["/bin/sh", "-c", "exec sleep 100000"] });
        harness.job_members = json!({ "services": [service] });
        harness.engine = Some(engine);
        harness.start_with_config(|_| text);
        Some(harness)
    }

    /// Starts an environment with several instance groups. Each entry of `groups` has the name of a group, additional
    /// keys of its table, and additional keys of its `plugin_config`.
    pub async fn with_groups(concurrent: usize, autoscaler: &str, groups: &[(&str, &str, &str)]) -> Self {
        let mut harness = Self::prepare(coordinator_with_idempotency_keys(), concurrent).await;
        let (url, executable) = (&harness.proxy.url, plugin_local());
        let mut text = format!(
            "concurrent = {concurrent}\ncheck_interval = 1\n[[runners]]\n  name = \"ours\"\n  url = {url:?}\n  \
             token = \"{RUNNER_TOKEN}\"\n  executor = \"instance\"\n  shell = \"bash\"\n  request_concurrency = {concurrent}\n  \
             [runners.autoscaler]\n    plugin = {executable:?}\n    {autoscaler}\n"
        );
        for (name, keys, config) in groups {
            let directory = harness.path("machines").join(name);
            text.push_str(&format!(
                "    [[runners.autoscaler.groups]]\n      name = {name:?}\n      {keys}\n      \
                 [runners.autoscaler.groups.plugin_config]\n        name = {name:?}\n        directory = {directory:?}\n        \
                 persistent_instances = true\n        {config}\n"
            ));
        }
        harness.start_with_config(|_| text);
        harness
    }

    async fn prepare(coordinator: MemoryCoordinator, concurrent: usize) -> Self {
        let coordinator = Arc::new(coordinator);
        let served = serve(coordinator.clone()).await.unwrap();
        let proxy = Proxy::start(served.url.as_str()).await;
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("token"), RUNNER_TOKEN).unwrap();
        let lifetime_process = Command::new("sleep").arg("100000").spawn().unwrap();
        let machines = Machines::new(home.path().join("machines"));
        Self {
            coordinator,
            proxy,
            home,
            machines,
            concurrent,
            executable: muster(),
            engine: None,
            job_members: json!({}),
            config: None,
            job_user: None,
            manager: None,
            lifetime_process,
            _served: served,
        }
    }

    /// Returns the path of a file of the environment.
    pub fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Starts a manager. The previous manager must have exited.
    pub fn start_manager(&mut self) {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.path("manager.log")).unwrap();
        let mut command = Command::new(&self.executable);
        command.stdin(Stdio::null()).stderr(log);
        if let Some(config) = &self.config {
            command.args(["runner", "run", "--config"]).arg(config).arg("--state-dir").arg(self.path("state"));
            command.stdout(Stdio::null());
            command.args(self.job_user.iter().flat_map(|user| ["--user", user]));
        } else {
            command.args(["manager", "--url", &self.proxy.url, "--concurrent", &self.concurrent.to_string()]);
            command.args(["--exit-with-pid", &self.lifetime_process.id().to_string()]);
            for (flag, name) in [
                ("--token-file", "token"),
                ("--state-dir", "state"),
                ("--builds-dir", "builds"),
                ("--cache-dir", "cache"),
            ] {
                command.arg(flag).arg(self.path(name));
            }
        }
        self.manager = Some(command.spawn().unwrap());
    }

    /// Replaces the first `from` in `config.toml` with `to`.
    pub fn replace_in_config(&self, from: &str, to: &str) {
        let config = self.config.as_ref().unwrap();
        let text = std::fs::read_to_string(config).unwrap();
        assert!(text.contains(from), "config.toml does not contain {from}:\n{text}");
        std::fs::write(config, text.replacen(from, to, 1)).unwrap();
    }

    /// Replaces `config.toml`, and returns its previous content.
    pub fn write_config(&self, text: &str) -> String {
        let config = self.config.as_ref().unwrap();
        let before = std::fs::read_to_string(config).unwrap();
        std::fs::write(config, text).unwrap();
        before
    }

    /// Sends a signal to the manager. `name` has no `SIG` prefix.
    pub fn signal(&self, name: &str) {
        let manager = self.manager.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &manager]).status().unwrap().success());
    }

    /// Returns whether the manager runs.
    pub fn is_manager_running(&mut self) -> bool {
        self.manager.as_mut().is_some_and(|manager| manager.try_wait().unwrap().is_none())
    }

    /// Kills the manager (SIGKILL).
    pub fn kill_manager(&mut self) {
        if let Some(mut manager) = self.manager.take() {
            manager.kill().unwrap();
            manager.wait().unwrap();
        }
    }

    /// Pauses the manager (SIGSTOP).
    pub fn pause_manager(&self) {
        self.signal("STOP");
    }

    /// Resumes the manager (SIGCONT).
    pub fn resume_manager(&self) {
        self.signal("CONT");
    }

    /// Shuts the manager down gracefully, and returns its exit status. `None` means that no manager was running, or
    /// that a signal ended it.
    pub async fn stop_manager(&mut self) -> Option<i32> {
        let mut manager = self.manager.take()?;
        assert!(Command::new("kill").args(["-QUIT", &manager.id().to_string()]).status().unwrap().success());
        let mut status = None;
        let has_exited = wait_until(|| {
            status = manager.try_wait().unwrap();
            status.is_some()
        });
        assert!(has_exited.await, "the manager did not exit in time:\n{}", self.log());
        status?.code()
    }

    /// Kills the manager's plugin (SIGKILL). Returns whether a plugin was running.
    pub fn kill_plugin(&self) -> bool {
        self.signal_plugin("KILL")
    }

    /// Stops the manager's plugin (SIGSTOP), so that it does not respond. Returns whether a plugin was running.
    pub fn freeze_plugin(&self) -> bool {
        self.signal_plugin("STOP")
    }

    fn signal_plugin(&self, name: &str) -> bool {
        let Some(manager) = &self.manager else { return false };
        let parent = format!("\nPPid:\t{}\n", manager.id());
        let is_plugin = |process: &Path| {
            let status = std::fs::read_to_string(process.join("status")).unwrap_or_default();
            let command_line = std::fs::read(process.join("cmdline")).unwrap_or_default();
            status.contains(&parent) && command_line.starts_with(plugin_local().as_os_str().as_encoded_bytes())
        };
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let mut pids = processes
            .filter(|process| is_plugin(&process.path()))
            .filter_map(|process| process.file_name().to_str()?.parse().ok());
        pids.next().is_some_and(|pid| signal(name, pid))
    }

    /// Returns the process ID of the agent of this host, or `None` if no agent is running.
    pub fn agent_pid(&self) -> Option<i32> {
        let pid = std::fs::read_to_string(self.path("state/spool/agent.lock")).ok()?.trim().parse().ok()?;
        let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
        command.contains("agent").then_some(pid)
    }

    /// Kills the agent of this host (SIGKILL). Returns whether an agent was running.
    pub fn kill_agent(&self) -> bool {
        self.agent_pid().is_some_and(kill)
    }

    /// Returns the process ID of the manager.
    pub fn manager_pid(&self) -> u32 {
        self.manager.as_ref().unwrap().id()
    }

    /// Returns the process IDs of the manager and of the agent of this host.
    pub fn process_ids(&self) -> Vec<i32> {
        let manager = self.manager.as_ref().and_then(|manager| manager.id().try_into().ok());
        manager.into_iter().chain(self.agent_pid()).collect()
    }

    /// Adds a job to the queue. `overrides` replaces members of its payload.
    pub fn push(&self, id: i64, script: &[&str], overrides: &Value) {
        let mut payload = json!({
            "id": id, "token": format!("jobtoken{id}jobtoken"),
            "job_info": { "name": format!("job-{id}"), "project_id": id, "project_name": "p" },
            "git_info": { "repo_url": format!("http://example.org/group/p{id}.git"), "sha": "0123456789abcdef",
                "ref": "main", "ref_type": "branch" },
            "runner_info": { "timeout": 600 },
            "variables": [
                { "key": "GIT_STRATEGY", "value": "none" },
                { "key": "FF_TIMESTAMPS", "value": "false" },
                { "key": "CI_JOB_ID", "value": id.to_string() },
                { "key": "MARKS", "value": self.home.path() },
                { "key": "SECRET", "value": SECRET, "masked": true },
            ],
            "steps": [{ "name": "script", "script": script }],
            "features": { "failure_reasons": ["job_canceled", "runner_interrupted"] },
            "muster": { "trace_interval_ms": 20 },
        });
        for (key, value) in self.job_members.as_object().unwrap().iter().chain(overrides.as_object().unwrap()) {
            payload[key] = value.clone();
        }
        self.coordinator.enqueue(serde_json::from_value(payload).unwrap());
    }

    /// Returns the IDs of the running containers of jobs.
    pub fn containers(&self) -> Vec<String> {
        let Some(engine) = &self.engine else { return Vec::new() };
        let filters = "%7B%22label%22%3A%5B%22com.gitlab.gitlab-runner.managed%3Dtrue%22%5D%7D";
        let answer = engine.try_call("GET", &format!("/containers/json?filters={filters}"), &[]);
        let list: Value = answer.ok().and_then(|(_, list)| serde_json::from_str(&list).ok()).unwrap_or_default();
        let ids = list.as_array().into_iter().flatten().filter_map(|container| container["Id"].as_str());
        ids.map(str::to_owned).collect()
    }

    fn engine_objects(&self) -> Vec<String> {
        let Some(engine) = &self.engine else { return Vec::new() };
        let answers = ["/containers/json?all=1", "/networks", "/volumes"].map(|path| engine.try_call("GET", path, &[]));
        if answers.iter().any(|answer| !matches!(answer, Ok((200, _)))) {
            return vec!["an engine that does not answer".to_owned()];
        }
        let words = answers.iter().flatten().map(|(_, list)| list).flat_map(|list| list.split('"'));
        let names = words.filter(|word| word.trim_start_matches('/').starts_with("runner-"));
        names.map(|name| format!("{name} at the engine")).collect()
    }

    /// Returns the number of job results in the spool of the agent of this host.
    pub fn stored_result_count(&self) -> usize {
        let jobs = std::fs::read_dir(self.path("state/spool")).into_iter().flatten().flatten();
        // A result is one line of the journal of its job.
        let journals = jobs.filter_map(|job| std::fs::read(job.path().join("journal")).ok());
        journals.filter(|text| text.split(|byte| *byte == b'\n').any(|line| line.starts_with(b"{\"result\":"))).count()
    }

    /// Returns the number of times that the script of a job has started.
    pub fn start_count(&self, id: JobId) -> usize {
        std::fs::read_to_string(self.path(&format!("started-{id}"))).map_or(0, |text| text.lines().count())
    }

    /// Waits until no spool entry, process, object at the engine or temporary file of a job remains.
    ///
    /// Returns what remains after the timeout.
    pub async fn leftovers(&self) -> Vec<String> {
        let mut found = Vec::new();
        wait_until(|| {
            found = self.find_leftovers();
            found.is_empty()
        })
        .await;
        found
    }

    fn find_leftovers(&self) -> Vec<String> {
        let entries = |path: PathBuf| std::fs::read_dir(path).into_iter().flatten().flatten();
        let is_job = |name: &str| name.starts_with(|first: char| first.is_ascii_digit()) && name.contains('-');
        let spools =
            std::iter::once(self.path("state/spool")).chain(self.machines.paths_in_homes(".muster/agent/spool"));
        let names = spools.flat_map(entries).map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut found: Vec<String> = names.filter(|name| is_job(name)).map(|name| format!("spool of {name}")).collect();
        let variable = format!("MARKS={}", self.home.path().display());
        for process in entries("/proc".into()) {
            let environment = std::fs::read(process.path().join("environ")).unwrap_or_default();
            if environment.split(|byte| *byte == 0).any(|entry| entry == variable.as_bytes()) {
                found.push(format!("process {}", process.file_name().to_string_lossy()));
            }
        }
        found.extend(self.engine_objects());
        let builds = std::iter::once(self.path("builds")).chain(self.machines.paths_in_homes("builds"));
        found.extend(
            builds.flat_map(|builds| nonempty_temporary_directories(&builds)).map(|path| path.display().to_string()),
        );
        found
    }

    /// Returns the logs, and the files and process arguments that other users can read.
    pub fn readable_by_others(&self) -> Vec<(String, Vec<u8>)> {
        let mut found = Vec::new();
        visit_files(self.home.path(), &mut |path, is_readable| {
            if is_readable || path.ends_with("manager.log") || path.ends_with("log") {
                found.push((path.display().to_string(), std::fs::read(path).unwrap_or_default()));
            }
        });
        for process in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            if let Ok(arguments) = std::fs::read(process.path().join("cmdline")) {
                found.push((format!("arguments of {}", process.path().display()), arguments));
            }
        }
        found
    }

    /// Returns the log of all manager processes.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("manager.log")).unwrap_or_default()
    }
}

fn coordinator_with_idempotency_keys() -> MemoryCoordinator {
    MemoryCoordinator::new(LONG_POLL).with_wait_timeout(WAIT_TIMEOUT)
}

fn gitlab_like_coordinator() -> MemoryCoordinator {
    coordinator_with_idempotency_keys().as_gitlab(JOB_LOOKUP_TIME)
}

impl Drop for Harness {
    fn drop(&mut self) {
        for process in [Some(&mut self.lifetime_process), self.manager.as_mut()].into_iter().flatten() {
            let _ = process.kill();
            let _ = process.wait();
        }
        self.machines.kill(ProcessKind::PersistentInstance);
    }
}
