//! A coordinator in memory, a home for one manager, and the real executable.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use muster_runner_api::test_support::{Job, MemoryCoordinator, RUNNER_TOKEN, Served, serve};
use serde_json::{Value, json};
use tokio::process::{Child, Command};

use crate::process::until;

/// Environment of one test. Dropping it stops the agent and the managers.
pub(crate) struct Harness {
    pub(crate) coordinator: Arc<MemoryCoordinator>,
    served: Served,
    home: tempfile::TempDir,
    /// Process that the agents must not outlive.
    lifetime_process: std::process::Child,
}

impl Harness {
    pub(crate) async fn start() -> Self {
        let coordinator = Arc::new(MemoryCoordinator::new(Duration::from_secs(10)));
        let served = serve(coordinator.clone()).await.unwrap();
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("token"), RUNNER_TOKEN).unwrap();
        let lifetime_process = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        Self { coordinator, served, home, lifetime_process }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Queues a job that runs `script` without a checkout.
    pub(crate) fn push(&self, id: i64, script: &[&str], variables: Value) {
        let mut list = vec![
            json!({ "key": "GIT_STRATEGY", "value": "none" }),
            json!({ "key": "FF_TIMESTAMPS", "value": "false" }),
            json!({ "key": "HOME_OF_TEST", "value": self.home.path() }),
        ];
        for (key, value) in variables.as_object().unwrap() {
            list.push(json!({ "key": key, "value": value }));
        }
        let payload = json!({
            "id": id, "token": format!("job-secret-{id}"),
            "job_info": { "name": "test", "project_id": 1 },
            "git_info": { "repo_url": "", "sha": "0123456789abcdef", "ref": "main", "ref_type": "branch" },
            "runner_info": { "timeout": 600 },
            "variables": list,
            "steps": [{ "name": "script", "script": script }],
            "features": { "failure_reasons": ["job_canceled", "runner_interrupted"] },
            "muster": { "trace_interval_ms": 20, "result_tree": true }
        });
        self.coordinator.enqueue(serde_json::from_value(payload).unwrap());
    }

    /// Creates a program that the manager's agent finds first on its PATH.
    pub(crate) fn create_program(&self, name: &str, text: &str) {
        std::fs::create_dir_all(self.path("bin")).unwrap();
        let file = self.path("bin").join(name);
        muster_test_prerequisites::create_program(&file, text);
    }

    pub(crate) fn manager(&self, arguments: &[&str]) -> ManagerProcess {
        self.manager_with(arguments, |_| {})
    }

    pub(crate) fn manager_logged(&self, arguments: &[&str], variables: &[(&str, &str)]) -> (ManagerProcess, PathBuf) {
        let path = self.path(&format!("manager-{}.log", rand::random::<u32>()));
        let log = std::fs::File::create(&path).unwrap();
        let manager = self.manager_with(arguments, |command| {
            command.stderr(log).envs(variables.iter().copied());
        });
        (manager, path)
    }

    fn manager_with(&self, arguments: &[&str], configure: impl FnOnce(&mut Command)) -> ManagerProcess {
        let mut command = Command::new(env!("CARGO_BIN_EXE_muster"));
        let path = format!("{}:{}", self.path("bin").display(), std::env::var("PATH").unwrap());
        command
            .env("PATH", path)
            .args(["manager", "--url", self.served.url.as_str()])
            .arg("--token-file")
            .arg(self.path("token"))
            .arg("--state-dir")
            .arg(self.path("state"))
            .arg("--builds-dir")
            .arg(self.path("builds"))
            .arg("--cache-dir")
            .arg(self.path("cache"))
            .args(["--exit-with-pid", &self.lifetime_process.id().to_string()])
            .args(arguments)
            .kill_on_drop(true);
        configure(&mut command);
        ManagerProcess(command.spawn().unwrap())
    }

    pub(crate) fn spool_text(&self) -> String {
        fn read(path: &Path, text: &mut String) {
            for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
                if entry.path().is_dir() {
                    read(&entry.path(), text);
                } else if let Ok(bytes) = std::fs::read(entry.path()) {
                    text.push_str(&String::from_utf8_lossy(&bytes));
                }
            }
        }
        let mut text = String::new();
        read(&self.path("state").join("spool"), &mut text);
        text
    }

    pub(crate) async fn wait_for_empty_spool(&self) {
        let jobs = self.path("state").join("spool");
        until(async || if has_jobs(&jobs) { Err(format!("jobs are left in {}", jobs.display())) } else { Ok(()) })
            .await;
    }
}

/// Returns whether the spool has a directory of a job's first attempt, named `<id>-1`, at any depth.
fn has_jobs(spool: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(spool) else { return false };
    entries.flatten().any(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_job = name.ends_with("-1") && name.starts_with(|first: char| first.is_ascii_digit());
        is_job || (entry.path().is_dir() && has_jobs(&entry.path()))
    })
}

impl Drop for Harness {
    fn drop(&mut self) {
        let _ = self.lifetime_process.kill();
        let _ = self.lifetime_process.wait();
    }
}

pub(crate) struct ManagerProcess(Child);

impl ManagerProcess {
    pub(crate) fn terminate(&self) {
        let pid = rustix::process::Pid::from_raw(i32::try_from(self.0.id().unwrap()).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    }

    pub(crate) async fn kill(mut self) {
        self.0.kill().await.unwrap();
    }

    pub(crate) async fn wait_for_exit(&mut self, max_wait: Duration) -> ExitStatus {
        tokio::time::timeout(max_wait, self.0.wait()).await.expect("the manager did not exit").unwrap()
    }
}

/// Checks that the last update reports the size and the checksum of the received trace (J3 of ARCHITECTURE.md).
pub(crate) fn check_report(job: &Job) {
    let output = &job.updates.last().unwrap().output;
    assert_eq!(output.bytesize, Some(job.trace.len() as u64), "{}", job.text());
    assert_eq!(output.checksum, Some(format!("crc32:{:08x}", crc32fast::hash(&job.trace))), "{}", job.text());
}
