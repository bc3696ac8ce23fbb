//! Jobs of the ssh executor on a machine with OpenSSH's server: each test has a server with its own keys and home directory.

use std::ffi::OsString;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use muster_job::{FailureReason, JobId, JobStatus};
use muster_runner_api::test_support::Job;
use serde_json::{Value, json};

use super::harness::{Harness, ManagerProcess};
use crate::process::until;

const PASSWORD: &str = "hunter2-of-the-machine";
/// Hash of [`PASSWORD`] in the machine's `/etc/shadow`.
const PASSWORD_HASH: &str =
    "$6$mustertest$YruV235d3XNcpe4SivRyK4mX5L5VVqixhN0DBNAJ9AtFZDkzJ7sx/BRbGIsJaJcQtSjr4rPhVhBqqAdai/ab30";
/// Command that runs another command with the file in the first argument as `/etc/shadow`.
const WITH_SHADOW: [&str; 6] =
    ["unshare", "--mount", "sh", "-c", "mount --bind \"$1\" /etc/shadow && shift && exec \"$@\"", "sh"];

/// This host in the role of the machine: an SSH server that starts one `sshd -i` for each connection.
struct Machine {
    directory: tempfile::TempDir,
    port: u16,
    stopping: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

impl Machine {
    /// Starts a server that accepts a key. `None` means that OpenSSH or git is not installed.
    fn start() -> Option<Self> {
        Self::start_with("PasswordAuthentication no", &[])
    }

    /// Starts a server that accepts only a password. Requires root.
    fn start_with_password() -> Option<Self> {
        if user() != "root" {
            muster_test_prerequisites::missing("a server with another password file requires root");
            return None;
        }
        Self::start_with("PasswordAuthentication yes\nPubkeyAuthentication no\nPermitRootLogin yes", &WITH_SHADOW)
    }

    /// Starts a machine. It starts `sshd` directly if `wrapper` is empty, and otherwise through this command, to which
    /// the path of a shadow file and the command line of `sshd` are appended.
    fn start_with(authentication: &str, wrapper: &'static [&'static str]) -> Option<Self> {
        if !muster_test_prerequisites::sshd() || !muster_test_prerequisites::program("git", "--version", "git") {
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        std::fs::create_dir(path("home")).unwrap();
        for (name, key_type) in [("ed25519", "ed25519"), ("ecdsa", "ecdsa"), ("login", "ed25519"), ("other", "ed25519")]
        {
            keygen(&path(name), key_type);
        }
        let config = format!(
            "HostKey {0}/ed25519\nHostKey {0}/ecdsa\nAuthorizedKeysFile {0}/login.pub\nStrictModes no\nUsePAM no\n\
             {authentication}\nMaxSessions 100\nPidFile none\nSetEnv HOME={0}/home\n",
            directory.path().display()
        );
        std::fs::write(path("sshd_config"), config).unwrap();
        std::fs::write(path("shadow"), format!("{}:{PASSWORD_HASH}:19000:0:99999:7:::\n", user())).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let stopping = Arc::new(AtomicBool::new(false));
        let (is_stopping, config, log) = (Arc::clone(&stopping), path("sshd_config"), path("sshd.log"));
        let mut command: Vec<OsString> = wrapper.iter().map(Into::into).collect();
        command.extend((!wrapper.is_empty()).then(|| path("shadow").into_os_string()));
        command.push("/usr/sbin/sshd".into());
        let server = std::thread::spawn(move || {
            let mut sessions = Vec::new();
            for stream in listener.incoming() {
                if is_stopping.load(Ordering::Relaxed) {
                    break;
                }
                let stream = OwnedFd::from(stream.unwrap());
                let mut sshd = Command::new(&command[0]);
                sshd.args(&command[1..]).args(["-i", "-f"]).arg(&config).arg("-E").arg(&log);
                sshd.stdin(stream.try_clone().unwrap()).stdout(stream).stderr(Stdio::null());
                sessions.push(sshd.spawn().unwrap());
            }
            for mut session in sessions {
                let _ = session.kill();
                let _ = session.wait();
            }
        });
        let machine = Self { directory, port, stopping, server: Some(server) };
        machine.write_known_hosts("ed25519");
        Some(machine)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn home(&self) -> PathBuf {
        self.path("home")
    }

    fn write_known_hosts(&self, key: &str) {
        let key = std::fs::read_to_string(self.path(&format!("{key}.pub"))).unwrap();
        std::fs::write(self.path("known_hosts"), format!("[127.0.0.1]:{} {key}", self.port)).unwrap();
    }

    async fn start_manager(&self) -> (Harness, ManagerProcess) {
        self.start_manager_with(&format!("identity_file = {:?}\n", self.path("login"))).await
    }

    async fn start_manager_with(&self, credentials: &str) -> (Harness, ManagerProcess) {
        let harness = Harness::start(1).await;
        let entry = harness.entry(0).replace("\"shell\"\nshell", "\"ssh\"\nshell");
        harness.configure(&format!(
            "check_interval = 1\n{entry}[runners.ssh]\nhost = \"127.0.0.1\"\nport = \"{}\"\nuser = {:?}\n\
             {credentials}known_hosts_file = {:?}\n",
            self.port,
            user(),
            self.path("known_hosts")
        ));
        let run = harness.run();
        (harness, run)
    }

    /// Returns the command lines of the processes whose `HOME` is the machine's home directory.
    fn processes(&self) -> Vec<String> {
        let home = format!("HOME={}", self.home().display());
        let is_of_machine = |process: &Path| {
            let environment = std::fs::read(process.join("environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == home.as_bytes())
        };
        let processes = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
        let of_machine = processes.filter(|process| is_of_machine(process));
        let line = |process: PathBuf| {
            String::from_utf8_lossy(&std::fs::read(process.join("cmdline")).unwrap_or_default()).replace('\0', " ")
        };
        of_machine.map(line).collect()
    }

    /// Waits until the idle agent is the only process of the machine, and then checks that no file of a job remains.
    async fn wait_until_only_agent_remains(&self) {
        until(async || {
            let others: Vec<_> = self
                .processes()
                .into_iter()
                .filter(|line| !line.contains(" agent serve ") || !line.contains(" --idle-timeout "))
                .collect();
            if others.is_empty() { Ok(()) } else { Err(format!("processes remain: {others:?}")) }
        })
        .await;
        let find = Command::new("find")
            .arg(self.home())
            .args(["-path", "*.tmp/*", "-o", "-name", "script*"])
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&find.stdout), "", "no file of a job may remain");
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        let _ = self.server.take().map(JoinHandle::join);
        // The agent outlives the SSH sessions.
        let home = self.home();
        let socket = home.join(".muster/agent");
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let needle = socket.as_os_str().as_encoded_bytes();
            if command.windows(needle.len()).any(|window| window == needle) {
                let _ = Command::new("kill").arg(entry.file_name()).status();
            }
        }
    }
}

fn user() -> String {
    let output = Command::new("id").arg("-un").output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn keygen(path: &Path, key_type: &str) {
    let status = Command::new("ssh-keygen").args(["-q", "-t", key_type, "-N", "", "-f"]).arg(path).status().unwrap();
    assert!(status.success());
}

fn push(harness: &Harness, id: i64, script: &[&str], more: Value) {
    let mut payload = json!({
        "id": id, "token": format!("job-secret-{id}"), "job_info": { "name": "test", "project_id": 1 },
        "git_info": { "repo_url": "", "sha": "0123456789abcdef", "ref": "main", "ref_type": "branch" },
        "runner_info": { "timeout": 600 },
        "variables": [
            { "key": "GIT_STRATEGY", "value": "none" }, { "key": "FF_TIMESTAMPS", "value": "false" },
            { "key": "SECRET_FILE", "value": "content of the file", "file": true }
        ],
        "steps": [{ "name": "script", "script": script }],
        "features": { "failure_reasons": ["runner_system_failure", "job_canceled"] },
        "muster": { "trace_interval_ms": 20 }
    });
    for (key, value) in more.as_object().unwrap() {
        payload[key] = value.clone();
    }
    harness.coordinator(0).enqueue(serde_json::from_value(payload).unwrap());
}

fn failure(job: &Job) -> (Option<String>, Option<i64>) {
    let report = job.reports().last().unwrap();
    (report.failure_reason.as_ref().map(ToString::to_string), report.exit_code)
}

#[tokio::test(flavor = "multi_thread")]
async fn job_runs_on_the_machine_and_leaves_only_the_idle_agent() {
    let Some(machine) = Machine::start() else { return };
    let (harness, _run) = machine.start_manager().await;
    push(&harness, 1, &["echo home is $HOME", "cat $SECRET_FILE", "pwd > ../../where"], json!({}));
    let job = harness.wait_for_end(0, 1).await;
    let text = job.text();
    assert_eq!(job.status, JobStatus::Success, "{text}");
    let home = machine.home();
    for expected in ["Using SSH executor...", &format!("home is {}", home.display()), "content of the file"] {
        assert!(text.contains(expected), "{expected} is missing in {text}");
    }
    assert!(home.join("builds").is_dir(), "the checkout must be kept for the next job");
    machine.wait_until_only_agent_remains().await;

    push(&harness, 2, &["exit 3"], json!({}));
    let job = harness.wait_for_end(0, 2).await;
    assert_eq!(job.status, JobStatus::Failed, "{}", job.text());
    assert_eq!(failure(&job), (Some("script_failure".to_owned()), Some(3)), "{}", job.text());
    machine.wait_until_only_agent_remains().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn canceled_job_is_stopped_on_the_machine() {
    let Some(machine) = Machine::start() else { return };
    let (harness, _run) = machine.start_manager().await;
    push(&harness, 1, &["echo begun", "exec sleep 600"], json!({}));
    harness.wait_for_start(0, 1).await;
    until(async || {
        let running = machine.processes();
        if running.iter().any(|line| line.contains("sleep 600")) {
            Ok(())
        } else {
            Err(format!("`sleep 600` is not among {running:?}"))
        }
    })
    .await;
    harness.coordinator(0).set_status(JobId(1), JobStatus::Canceling);
    let job = harness.coordinator(0).wait_for(JobId(1), |job| job.text().contains("Job failed: canceled")).await;
    assert!(job.text().contains("script canceled externally"), "{}", job.text());
    machine.wait_until_only_agent_remains().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn machine_is_refused_unless_its_host_key_is_known() {
    let Some(machine) = Machine::start() else { return };
    // The server has this key, but does not present it first.
    machine.write_known_hosts("ecdsa");
    let (harness, _run) = machine.start_manager().await;
    push(&harness, 1, &["echo it ran"], json!({}));
    let job = harness.wait_for_end(0, 1).await;
    assert_eq!(job.status, JobStatus::Success, "{}", job.text());
    machine.wait_until_only_agent_remains().await;

    machine.write_known_hosts("other");
    let (entry, file) = (format!("[127.0.0.1]:{}", machine.port), machine.path("known_hosts"));
    push(&harness, 2, &["echo it ran"], json!({}));
    let job = harness.wait_for_end(0, 2).await;
    let text = job.text();
    assert_eq!(failure(&job).0, Some(FailureReason::RunnerSystemFailure.to_string()), "{text}");
    let remedy = format!("run `ssh-keygen -R '{entry}' -f {}` and add its new key", file.display());
    assert!(text.contains("possibly another machine has this address now") && text.contains(&remedy), "{text}");
    assert!(!text.contains("it ran"), "{text}");

    std::fs::remove_file(&file).unwrap();
    push(&harness, 3, &["echo it ran"], json!({}));
    let text = harness.wait_for_end(0, 3).await.text();
    let remedy = format!("run `ssh-keyscan -p {} 127.0.0.1 >> {}`", machine.port, file.display());
    assert!(text.contains(&format!("has no key for `{entry}`")) && text.contains(&remedy), "{text}");
    assert!(!text.contains("it ran"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn password_is_used_alone_and_after_a_rejected_key_and_never_shown() {
    let Some(machine) = Machine::start_with_password() else { return };
    let key = format!("identity_file = {:?}\n", machine.path("login"));
    let password = format!("password = {PASSWORD:?}\n");
    for credentials in [password.clone(), key.clone() + &password] {
        let (harness, run) = machine.start_manager_with(&credentials).await;
        push(&harness, 1, &["echo home is $HOME"], json!({}));
        let text = harness.wait_for_end(0, 1).await.text();
        assert!(text.contains(&format!("home is {}", machine.home().display())), "{text}\n{}", run.log());
        assert!(!text.contains(PASSWORD) && !run.log().contains(PASSWORD), "{text}\n{}", run.log());
        machine.wait_until_only_agent_remains().await;
    }

    let (harness, run) = machine.start_manager_with("password = \"another one\"\n").await;
    push(&harness, 1, &["echo it ran"], json!({}));
    let job = harness.wait_for_end(0, 1).await;
    let text = job.text();
    assert_eq!(failure(&job).0, Some(FailureReason::RunnerSystemFailure.to_string()), "{text}");
    assert!(text.contains("password") && text.contains("[runners.ssh]") && !text.contains("another one"), "{text}");
    assert!(!run.log().contains("another one"), "{}", run.log());
}
