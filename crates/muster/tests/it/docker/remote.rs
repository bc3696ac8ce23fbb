//! Whole jobs at an engine on another machine, which is reached over TCP with TLS and over SSH.

use std::sync::OnceLock;

use muster_agent_api::builtin::{DockerContainer, DockerEngine, DockerVolume};
use muster_agent_api::result::Outcome;
use muster_job::TerminationCause;
use muster_test_prerequisites::RemoteEngine;

use super::harness::{Host, IMAGE, failure_of, job, script};
use super::link::Link;
use super::services::{SERVER, job_and_service, run};

/// Commands that wait until [`Remote::release`].
const WAIT: &str = "while [ ! -e /tmp/go ]; do sleep 0.05; done";

/// An agent on this machine, whose engine is on another one.
struct Remote {
    host: Host,
    /// The agent's only connection to the engine.
    link: Link,
    transport: &'static str,
}

impl Remote {
    /// Starts an agent for each transport, if an engine can run here.
    async fn start_each() -> Vec<Self> {
        static ENGINE: OnceLock<Option<RemoteEngine>> = OnceLock::new();
        static IMAGE_EXISTS: OnceLock<bool> = OnceLock::new();
        let Some(remote) = ENGINE.get_or_init(RemoteEngine::start) else { return Vec::new() };
        if !IMAGE_EXISTS.get_or_init(|| remote.engine.create_image(IMAGE, &[])) {
            return Vec::new();
        }
        let dir = || tempfile::tempdir().unwrap();
        let link = Link::open(&remote.engine, remote.tls_address()).await;
        let certificates = remote.client_certificates().display().to_string();
        let tls = DockerEngine { host: format!("tcp://{}", link.address), cert_path: certificates, tls_verify: true };
        let tls = Self { host: Host::serve(&remote.engine, tls, dir()).await, link, transport: "tls" };
        let link = Link::open(&remote.engine, remote.ssh_address()).await;
        let ssh = DockerEngine { host: remote.ssh_url(), ..DockerEngine::default() };
        let programs = dir();
        remote.create_ssh_client(programs.path(), link.address);
        let ssh = Self { host: Host::serve(&remote.engine, ssh, programs).await, link, transport: "ssh" };
        vec![tls, ssh]
    }

    fn job(&self, name: &str) -> DockerContainer {
        job(&self.name(name))
    }

    fn name(&self, name: &str) -> String {
        format!("remote-{name}-{}", self.transport)
    }

    /// Ends [`WAIT`] in the build container of a job. Does not use the link.
    fn release(&self, name: &str) {
        let call = |path: &str, body: &str| self.host.docker.call("POST", path, body.as_bytes());
        let exec = format!("/containers/{}-build/exec", self.name(name));
        let (status, answer) = call(&exec, r#"{"Cmd": ["touch", "/tmp/go"]}"#);
        let id = answer.split('"').nth(3).filter(|_| status == 201).unwrap_or_else(|| panic!("{status} {answer}"));
        assert_eq!(call(&format!("/exec/{id}/start"), r#"{"Detach": true}"#).0, 200);
    }

    fn check_no_objects(&self, name: &str) {
        assert_eq!(self.host.objects(&self.name(name)), "", "no object of the job must be left");
    }
}

#[tokio::test]
async fn job_with_a_service_runs_at_an_engine_that_has_no_files_of_this_machine() {
    for remote in Remote::start_each().await {
        let (mut job, service) = job_and_service(&remote.host, &remote.name("job"), SERVER);
        job.volumes.push(DockerVolume {
            source: remote.host.dir().display().to_string(),
            destination: "/agent".to_owned(),
            ..DockerVolume::default()
        });
        let commands = [
            "echo \"$A on $(hostname) in $PWD, $(ls /agent | wc -l) files of the agent\"",
            "wget -q -O - http://web:8080/",
            "cat /proc/[0-9]*/cmdline | tr '\\0' ' '; echo",
            "exit 7",
        ];
        let (log, result) = run(&remote.host, &(job, service), &commands).await;
        assert_eq!(failure_of(&result), ("script_failure".to_owned(), Some(7)), "{log}");
        let greeting =
            format!("handed on on {}-host in /builds/group/project, 0 files of the agent\n", remote.name("job"));
        assert!(log.contains(&greeting) && log.contains("\nserved\n"), "{log}");
        assert!(log.contains("/.muster/muster-agent agent dial"), "the agent must be reached through exec: {log}");
        remote.check_no_objects("job");
    }
}

#[tokio::test]
async fn job_at_an_engine_on_another_machine_is_canceled() {
    for remote in Remote::start_each().await {
        remote.host.start_job(&remote.job("cancel"), vec![script(&["echo ready; sleep 600"])]).await;
        remote.host.wait_for_log("ready\n").await;
        remote.host.cancel().await;
        let (log, result) = remote.host.finish().await;
        assert_eq!(failure_of(&result).0, "job_canceled", "{log}");
        remote.check_no_objects("cancel");
    }
}

#[tokio::test]
async fn job_continues_after_the_connection_to_its_engine_was_lost() {
    for remote in Remote::start_each().await {
        let commands = format!("echo ready; {WAIT}; i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i + 1)); done");
        remote.host.start_job(&remote.job("lost"), vec![script(&[&commands])]).await;
        remote.host.wait_for_log("ready\n").await;
        remote.link.cut().await;
        remote.release("lost");
        remote.link.restore();
        let (log, result) = remote.host.finish().await;
        assert_eq!(result.outcome, Outcome::Success, "{log}");
        let lines: Vec<_> = log.lines().filter(|line| line.starts_with("line ")).collect();
        let expected: Vec<_> = (0..2000).map(|number| format!("line {number}")).collect();
        assert_eq!(lines, expected, "each line must be in the log once");
        remote.check_no_objects("lost");
    }
}

#[tokio::test]
async fn job_starts_although_the_connection_was_lost_while_its_entrypoint_ran() {
    for remote in Remote::start_each().await {
        let mut job = remote.job("entrypoint");
        let entrypoint = format!("echo slow; {WAIT}; exec \"$@\"");
        job.build.entrypoint = Some(["/bin/sh", "-c", &entrypoint, "sh"].map(str::to_owned).to_vec());
        remote.host.start_job(&job, vec![script(&["echo runs"])]).await;
        remote.host.wait_for_log("slow\n").await;
        remote.link.cut().await;
        remote.release("entrypoint");
        remote.link.restore();
        let (log, result) = remote.host.finish().await;
        assert_eq!(result.outcome, Outcome::Success, "{log}");
        assert!(log.contains("\nruns\n"), "{log}");
        assert!(log.contains("WARNING: the connection to the engine was lost while the container started"), "{log}");
        remote.check_no_objects("entrypoint");
    }
}

#[tokio::test]
async fn job_that_is_canceled_without_a_connection_leaves_nothing_at_the_engine() {
    for remote in Remote::start_each().await {
        remote.host.start_job(&remote.job("unreachable"), vec![script(&["echo ready; sleep 600"])]).await;
        remote.host.wait_for_log("ready\n").await;
        remote.link.cut().await;
        remote.host.cancel().await;
        remote.link.restore();
        let (log, result) = remote.host.finish().await;
        assert_eq!(failure_of(&result).0, "job_canceled", "{log}");
        remote.check_no_objects("unreachable");
    }
}

#[tokio::test]
async fn next_agent_removes_the_objects_of_a_killed_agent_from_an_engine_on_another_machine() {
    for mut remote in Remote::start_each().await {
        remote.host.start_job(&remote.job("crash"), vec![script(&["echo ready; sleep 600"])]).await;
        remote.host.wait_for_log("ready\n").await;
        assert_ne!(remote.host.objects(&remote.name("crash")), "");
        remote.host.restart().await;
        let (log, result) = remote.host.finish().await;
        let Outcome::Failed { cause, .. } = result.outcome else { panic!("{log}") };
        assert_eq!(cause, Some(TerminationCause::EnvironmentLost));
        remote.host.until_no_objects(&remote.name("crash")).await;
    }
}
