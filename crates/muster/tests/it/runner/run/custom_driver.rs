//! Jobs of the custom executor with a published third-party driver: gitlab-runner-tart-driver, which runs each job in a
//! virtual machine.
//!
//! The driver manages the machines with the program `tart`, and reaches them over SSH. Here, `tart` is a script that
//! starts an SSH server in separate namespaces.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use muster_job::{JobId, JobStatus};
use muster_runner_api::test_support::Job;
use serde_json::{Value, json};

use super::harness::{Harness, ManagerProcess};
use crate::process::until;

/// Script in place of `tart`, with the commands that the driver calls. `HOME_DIR/machines` has a directory for each
/// machine.
const TART: &str = r#"#!/bin/sh
echo "$*" >>HOME_DIR/tart-calls
machine=HOME_DIR/machines/$2
case $1 in
list) echo '[{"Source": "local", "Name": "image", "Size": 1, "State": "stopped"}]' ;;
login | set) ;;
clone) mkdir "HOME_DIR/machines/$3" ;;
run) echo $$ >"$machine/pid" && exec unshare --mount --pid --fork --kill-child sh -c '
    mount -t proc proc /proc && mount -t tmpfs none /opt && exec /usr/sbin/sshd -D -f HOME_DIR/sshd_config' ;;
get) cat "$machine/pid" >&2 && printf 'OS CPU Memory Disk Size Display State\nlinux 1 1 1 1.0 1x1 running\n' ;;
ip) echo 127.0.0.1 ;;
stop) kill -KILL "$(cat "$machine/pid")" ;;
delete) rm -r "$machine" ;;
*) exit 1 ;;
esac
"#;
/// Script that starts the driver with the script `tart`, in a network in which the port of SSH is free.
const DRIVER: &str = r#"#!/bin/sh
HOME=HOME_DIR/home PATH=HOME_DIR/bin:$PATH exec nsenter --target NETWORK --net -- DRIVER "$@"
"#;
/// Script in place of `sudo`, which the driver calls in the machine. The user is already root there.
const SUDO: &str = "#!/bin/sh\nexec \"$@\"\n";
const SSHD_CONFIG: &str = "HostKey HOME_DIR/host-key\nAuthorizedKeysFile HOME_DIR/home/.ssh/id_ed25519.pub\nListenAddress 127.0.0.1\n\
     StrictModes no\nUsePAM no\nPermitRootLogin yes\nPidFile none\nSubsystem sftp internal-sftp\nSetEnv HOME=HOME_DIR/home PATH=HOME_DIR/sudo:PATH_OF_TEST\n";

/// A network namespace. Dropping it ends the process that keeps the namespace in existence.
struct Network(Child);

impl Network {
    /// Creates a network with only the loopback interface. Requires root, and the program `ip`.
    fn create() -> Option<Self> {
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", "ip link set lo up && echo ready && read -r _"]);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let network = Self(process);
        if line != "ready\n" {
            muster_test_prerequisites::missing("a network namespace requires root, and `ip` (Debian: iproute2)");
            return None;
        }
        Some(network)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

struct Driver {
    harness: Harness,
    _run: ManagerProcess,
    _network: Network,
}

impl Drop for Driver {
    /// Ends machines that the driver has not ended.
    fn drop(&mut self) {
        for machine in self.machines() {
            if let Ok(pid) = std::fs::read_to_string(machine.join("pid")) {
                let _ = Command::new("kill").args(["-KILL", pid.trim()]).status();
            }
        }
    }
}

impl Driver {
    async fn start() -> Option<Self> {
        let program = muster_test_prerequisites::variable(
            "MUSTER_TEST_CUSTOM_DRIVER",
            "gitlab-runner-tart-driver, a published driver of the custom executor",
        )?;
        if !muster_test_prerequisites::sshd() {
            return None;
        }
        let network = Network::create()?;
        let harness = Harness::start(1).await;
        let home = harness.home.path("");
        let home = home.to_str().unwrap().trim_end_matches('/').to_owned();
        for directory in ["home/.ssh", "bin", "sudo", "machines"] {
            std::fs::create_dir_all(harness.home.path(directory)).unwrap();
        }
        for key in ["host-key", "home/.ssh/id_ed25519"] {
            let status = Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(harness.home.path(key))
                .status();
            assert!(status.unwrap().success());
        }
        let path = std::env::var("PATH").unwrap();
        let with_values = |text: &str| {
            text.replace("HOME_DIR", &home)
                .replace("PATH_OF_TEST", &path)
                .replace("NETWORK", &network.0.id().to_string())
                .replace("DRIVER", program.to_str().unwrap())
        };
        for (name, text) in [("bin/tart", TART), ("driver", DRIVER), ("sudo/sudo", SUDO)] {
            muster_test_prerequisites::create_program(harness.home.path(name), with_values(text));
        }
        std::fs::write(harness.home.path("sshd_config"), with_values(SSHD_CONFIG)).unwrap();
        let mut table = String::new();
        for stage in ["config", "prepare", "run", "cleanup"] {
            table += &format!("{stage}_exec = \"{home}/driver\"\n{stage}_args = [{stage:?}]\n");
        }
        let entry = harness.entry(0).replace("\"shell\"\nshell = \"sh\"", "\"custom\"\nshell = \"bash\"");
        harness.configure(&format!("check_interval = 1\n{entry}[runners.custom]\n{table}"));
        let run = harness.run();
        Some(Self { harness, _run: run, _network: network })
    }

    fn push(&self, id: i64, image: &str, script: &[&str], after_script: &str) {
        let variables = [
            ("GIT_STRATEGY", "none"),
            ("FF_TIMESTAMPS", "false"),
            ("CI_JOB_ID", &id.to_string()),
            ("CI_PIPELINE_ID", "5"),
            ("CI_PROJECT_NAME", "project"),
            ("CI_JOB_IMAGE", image),
            ("TART_SSH_USERNAME", "root"),
            ("TART_EXECUTOR_SHELL", "/bin/bash"),
        ];
        let mut variables: Vec<Value> =
            variables.iter().map(|(key, value)| json!({ "key": key, "value": value })).collect();
        variables.push(json!({ "key": "SECRET_FILE", "value": "content of the file", "file": true }));
        let payload = json!({
            "id": id, "token": format!("job-secret-{id}"), "job_info": { "name": "test", "project_id": 1 },
            "git_info": { "repo_url": "http://127.0.0.1/group/project.git", "sha": "0123456789abcdef", "ref": "main", "ref_type": "branch" },
            "runner_info": { "timeout": 600 },
            "variables": variables,
            "steps": [{ "name": "script", "script": script }, { "name": "after_script", "script": [after_script] }],
            "features": { "failure_reasons": ["runner_system_failure", "job_canceled"] },
            "muster": { "trace_interval_ms": 20 }
        });
        self.harness.coordinator(0).enqueue(serde_json::from_value(payload).unwrap());
    }

    async fn run_job(&self, id: i64, image: &str, script: &[&str], after_script: &str) -> Job {
        self.push(id, image, script, after_script);
        self.harness.wait_for_end(0, id).await
    }

    fn machines(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.harness.home.path("machines")).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    async fn until_no_machines(&self) {
        until(async || {
            let machines = self.machines();
            if machines.is_empty() { Ok(()) } else { Err(format!("{machines:?}")) }
        })
        .await;
    }

    /// Returns the commands of `tart` so far, without arguments.
    fn calls(&self) -> Vec<String> {
        let calls = std::fs::read_to_string(self.harness.home.path("tart-calls")).unwrap_or_default();
        calls.lines().map(|line| line.split(' ').next().unwrap_or_default().to_owned()).collect()
    }
}

fn assert_contains(text: &str, wanted: &[&str]) {
    for part in wanted {
        assert!(text.contains(part), "`{part}` is missing in {text}");
    }
}

fn processes(argument: &str) -> Vec<OsString> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let has = |path: &Path| {
        std::fs::read_to_string(path.join("cmdline")).is_ok_and(|line| line.split('\0').any(|word| word == argument))
    };
    entries.filter(|entry| has(&entry.path())).map(|entry| entry.file_name()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn published_driver_runs_a_job_in_its_machine() {
    let Some(driver) = Driver::start().await else { return };
    let script = [
        "echo in $PWD beside $(ls /opt | tr '\\n' ' ')",
        "cat \"$SECRET_FILE\"; echo",
        "echo FROM_SCRIPT=kept >>\"$GITLAB_ENV\"",
    ];
    let job = driver.run_job(1, "image", &script, "echo $FROM_SCRIPT $CI_JOB_STATUS").await;
    let text = job.text().replace('\r', "");
    assert_eq!(job.status, JobStatus::Success, "{text}");
    assert_contains(
        &text,
        &[
            "Using Custom executor with driver tart ",
            "[INFO] Cloning VM instance 'grtd-project-5-1-0' from 'image'",
            "[INFO] VM 'grtd-project-5-1-0' is running",
            // The misspelling is the driver's.
            "[get_sources][INFO] Establishing SSH conntection to 'root@127.0.0.1'",
            "[build_script][INFO] Establishing SSH",
            "\nin /opt/builds/group/project beside builds cache temp\n",
            "\ncontent of the file\n",
            "[after_script][INFO] Establishing SSH",
            "\nkept success\n",
            "Job succeeded",
        ],
    );
    driver.until_no_machines().await;
    let calls = driver.calls();
    assert_eq!(calls.first().map(String::as_str), Some("list"), "{calls:?}");
    assert_eq!(calls[calls.len() - 2..], ["stop", "delete"], "{calls:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn published_driver_distinguishes_failures_of_the_job_from_those_of_the_machine() {
    let Some(driver) = Driver::start().await else { return };
    let failure = |job: &Job| job.reports().last().unwrap().failure_reason.clone();
    let job = driver.run_job(1, "image", &["echo before; exit 7; echo never"], "echo after $CI_JOB_STATUS").await;
    let text = job.text();
    assert_eq!(failure(&job).as_deref(), Some("script_failure"), "{text}");
    // The driver exits with 1, whatever the exit code of the script.
    assert_contains(
        &text,
        &["before\r\n", "failed with exit code '7'", "after failed\r\n", "Job failed: exit status 1"],
    );
    driver.until_no_machines().await;

    let job = driver.run_job(2, "missing", &["echo it ran"], "").await;
    let text = job.text();
    assert_eq!(failure(&job).as_deref(), Some("runner_system_failure"), "{text}");
    assert_contains(&text, &["[ERROR] Failed to pull image 'missing'"]);
    assert!(!text.contains("\nit ran"), "{text}");
    driver.until_no_machines().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_ends_the_machine_of_a_published_driver() {
    let Some(driver) = Driver::start().await else { return };
    let seconds = &format!("77123.{}", std::process::id());
    driver.push(1, "image", &[&format!("echo started; sleep {seconds}")], "");
    driver.harness.coordinator(0).wait_for(JobId(1), |job| job.text().contains("started\r\n")).await;
    until(async || match processes(seconds)[..] {
        [_] => Ok(()),
        ref found => Err(format!("processes of the script in the machine: {found:?}")),
    })
    .await;
    driver.harness.coordinator(0).set_status(JobId(1), JobStatus::Canceling);
    let job = driver.harness.wait_for_end(0, 1).await;
    assert_eq!(job.status, JobStatus::Canceled, "{}", job.text());
    driver.until_no_machines().await;
    until(async || {
        let left = processes(seconds);
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
}
