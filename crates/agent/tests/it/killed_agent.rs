//! Killed agents, whose spool the next agent recovers.

use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use axum::Router;
use axum::extract::Request;
use axum::http::{Method, StatusCode};
use muster_agent_api::builtin::{Checkout, ContainerSpec, DockerContainer, DockerEngine};
use muster_agent_api::plan::{Call, JobPlan, When};
use muster_agent_api::result::Outcome;
use muster_agent_api::step_runner::StatusRequest;
use muster_job::TerminationCause;

use muster_agent::Options;
use muster_steps::process::Containment;
use muster_test_prerequisites::create_program;
use parking_lot::Mutex;
use prost::Message as _;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::harness::*;

/// Time after which a manager kills an agent that does not listen.
const MANAGER_TIMEOUT: Duration = Duration::from_secs(20);
const NO_CGROUPS_ENV: &str = "AGENT_PROCESS_NO_CGROUPS";
pub(crate) const AGENT_DIR_ENV: &str = "AGENT_PROCESS_DIR";
/// Socket in the agent's directory to which the agent connects when it accepts calls.
const READY_SOCKET: &str = "ready";
/// Test that runs an agent if [`AGENT_DIR_ENV`] is set.
pub(crate) const AGENT_TEST: &str = "killed_agent::next_agent_serves_a_finished_job_unchanged";

fn spawn_agent(dir: &Path) -> Child {
    spawn_agent_with(dir, Containment::default())
}

pub(crate) fn spawn_agent_with(dir: &Path, containment: Containment) -> Child {
    let socket = dir.join(READY_SOCKET);
    let _ = std::fs::remove_file(&socket);
    let ready = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([AGENT_TEST, "--exact", "--nocapture"]).env(AGENT_DIR_ENV, dir);
    if containment == Containment::ProcessTree {
        command.env(NO_CGROUPS_ENV, "1");
    }
    let process = command.spawn().unwrap();
    let timeout = Timespec { tv_sec: i64::try_from(TIMEOUT.as_secs()).unwrap(), tv_nsec: 0 };
    let events = poll(&mut [PollFd::new(&ready, PollFlags::IN)], Some(&timeout)).unwrap();
    assert_eq!(events, 1, "the agent must accept calls in time");
    process
}

#[tokio::test]
async fn killed_agent_fails_its_running_job_and_ends_processes() {
    let dir = tempfile::tempdir().unwrap();
    let mut process = spawn_agent(dir.path());
    let mut agent = Agent::attach(dir).await;
    let pids = agent.dir.path().join("pids");
    let daemon = format!("setsid sh -c 'echo $$ >> {0}; exec sleep 600' & echo $$ >> {0}", pids.display());
    let wait = format!("until [ $(wc -l < {}) = 2 ]; do sleep 0.01; done; echo ready; sleep 600", pids.display());
    let plan = agent.plan(vec![script(&[&daemon, &wait])]);
    agent.run("1-1", &plan, &[variable("A", "1")]).await;
    let seen = agent.log_until("1-1", "\nready\n").await;
    process.kill().unwrap();
    process.wait().unwrap();

    let mut agent = Agent::start_in(agent.dir).await;
    agent.run("1-1", &plan, &[]).await;
    let result = agent.wait("1-1").await;
    let Outcome::Failed { reason, cause, .. } = &result.outcome else { panic!("{result:?}") };
    assert_eq!((reason.as_str(), *cause), ("runner_system_failure", Some(TerminationCause::EnvironmentLost)));
    let log = agent.log("1-1").await;
    assert!(
        log.starts_with(&seen) && log.contains("ERROR: Job failed (system failure): the agent was killed"),
        "{log}"
    );
    assert_eq!(result.log_bytes, log.len() as u64);
    for pid in std::fs::read_to_string(&pids).unwrap().lines() {
        assert!(!is_running(pid), "process {pid} must have ended");
    }
}

#[tokio::test]
async fn reboot_fails_the_job_and_spares_new_processes() {
    // In the test process, agents of other tests would adopt the remaining process and end it.
    if !runs_in_separate_process("killed_agent::reboot_fails_the_job_and_spares_new_processes") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut process = spawn_agent(dir.path());
    let mut agent = Agent::attach(dir).await;
    let pid = agent.dir.path().join("pid");
    let plan = agent.plan(vec![script(&[&format!("echo $$ > {}; echo ready; exec sleep 600", pid.display())])]);
    agent.run("1-1", &plan, &[]).await;
    agent.log_until("1-1", "\nready\n").await;
    process.kill().unwrap();
    process.wait().unwrap();

    // After a restart, the recorded process ID may belong to another process.
    let rebooted = muster_agent::Options { boot_id: "second".to_owned(), ..options(agent.dir.path()) };
    let mut agent = Agent::start_with(rebooted, agent.dir).await;
    agent.run("1-1", &plan, &[]).await;
    let result = agent.wait("1-1").await;
    let Outcome::Failed { reason, cause, .. } = &result.outcome else { panic!("{result:?}") };
    assert_eq!((reason.as_str(), *cause), ("runner_system_failure", Some(TerminationCause::EnvironmentLost)));
    let log = agent.log("1-1").await;
    assert!(log.contains("ERROR: Job failed (system failure): the machine was restarted while the job ran"), "{log}");
    let pid = std::fs::read_to_string(pid).unwrap();
    assert!(is_running(pid.trim()), "a process that may not belong to the job must survive");
    let pid = rustix::process::Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

#[tokio::test]
async fn next_agent_serves_a_finished_job_unchanged() {
    if let Some(dir) = std::env::var_os(AGENT_DIR_ENV) {
        let no_cgroups = std::env::var_os(NO_CGROUPS_ENV).is_some();
        let containment = if no_cgroups { Containment::ProcessTree } else { Containment::default() };
        let (ready, is_ready) = tokio::sync::oneshot::channel();
        let options = Options { containment, ready: Some(ready), ..options(Path::new(&dir)) };
        let served = tokio::spawn(muster_agent::serve(options));
        is_ready.await.unwrap();
        // Only `spawn_agent_with` listens on this socket.
        let _ = std::os::unix::net::UnixStream::connect(Path::new(&dir).join(READY_SOCKET));
        return served.await.unwrap().unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    let mut process = spawn_agent(dir.path());
    let mut agent = Agent::attach(dir).await;
    let plan = agent.plan(vec![script(&["echo hello"])]);
    agent.run("1-1", &plan, &[]).await;
    let (result, log) = (agent.wait("1-1").await, agent.log("1-1").await);
    process.kill().unwrap();
    process.wait().unwrap();

    let mut agent = Agent::start_in(agent.dir).await;
    assert_eq!((agent.wait("1-1").await, agent.log("1-1").await), (result, log));
    let status = agent.steps.status(StatusRequest { id: "1-1".to_owned() }).await.unwrap().into_inner().jobs.remove(0);
    let [start, end] = [status.start_time, status.end_time].map(|time| SystemTime::try_from(time.unwrap()).unwrap());
    assert!(start <= end, "the job ended before it started: {start:?} to {end:?}");
    agent.close("1-1").await;
    assert!(agent.ids().await.is_empty());
}

#[tokio::test]
async fn job_that_cannot_be_recovered_is_not_started_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut process = spawn_agent(dir.path());
    let mut agent = Agent::attach(dir).await;
    let pid = agent.dir.path().join("pid");
    let plan = agent.plan(vec![script(&[&format!("echo $$ >> {}; echo ready; exec sleep 600", pid.display())])]);
    agent.run("1-1", &plan, &[]).await;
    agent.log_until("1-1", "\nready\n").await;
    process.kill().unwrap();
    process.wait().unwrap();
    let journal = agent.dir.path().join("spool/1-1/journal");
    let readable = std::fs::read(&journal).unwrap();
    std::fs::write(&journal, "muster job 2 5\n").unwrap();

    let mut agent = Agent::start_in(agent.dir).await;
    let refused = agent.steps.run(request("1-1", &plan, &[])).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition);
    assert!(refused.message().contains("`muster job 2 5` is not a journal of this version"), "{refused}");
    // At the end of the job, the journal is readable again.
    std::fs::write(&journal, readable).unwrap();
    agent.close("1-1").await;
    let pid = std::fs::read_to_string(pid).unwrap();
    assert!(!is_running(pid.trim()), "the process {pid} of the first run must have ended, and there was no second run");
    let (log, _) = agent.complete(&agent.plan(vec![script(&["echo new"])])).await;
    assert!(log.contains("\nnew\n"), "{log}");
}

/// Fake container engine at `engine.sock` in a directory.
#[derive(Default)]
struct Engine {
    calls: Mutex<Vec<String>>,
    is_starting: AtomicBool,
}

impl Engine {
    fn start_in(dir: &Path) -> Arc<Self> {
        let engine = Arc::<Self>::default();
        let answering = Arc::clone(&engine);
        let router = Router::new().fallback(async move |request: Request| {
            answering.calls.lock().push(format!("{} {}", request.method(), request.uri().path()));
            match *request.method() {
                _ if answering.is_starting.load(Ordering::SeqCst) => (StatusCode::SERVICE_UNAVAILABLE, ""),
                Method::GET => (StatusCode::OK, "{}"),
                _ => (StatusCode::NO_CONTENT, ""),
            }
        });
        let listener = tokio::net::UnixListener::bind(dir.join("engine.sock")).unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        engine
    }

    fn is_container_deleted(&self) -> bool {
        self.calls.lock().iter().any(|call| call == "DELETE /containers/job-build")
    }
}

/// Returns the journal of a job in containers of [`Engine`], with these lines.
fn journal_of_job_in_containers(dir: &Path, lines: &str) -> Vec<u8> {
    let container = DockerContainer {
        engine: DockerEngine { host: format!("unix://{}/engine.sock", dir.display()), ..DockerEngine::default() },
        build: ContainerSpec { name: "job-build".to_owned(), ..ContainerSpec::default() },
        ..DockerContainer::default()
    };
    let call = Call::delegate(&container, Vec::new(), Vec::new());
    let plan = JobPlan {
        project_dir: dir.join("builds/p").to_string_lossy().into_owned(),
        builds_dir: dir.to_string_lossy().into_owned(),
        steps: vec![step("docker", When::OnSuccess, call)],
        ..JobPlan::default()
    };
    let body = request("1-1", &plan, &[]).encode_to_vec();
    [format!("muster job 1 {}\n", body.len()).as_bytes(), &body, b"\n", lines.as_bytes()].concat()
}

#[tokio::test]
async fn containers_of_a_job_that_cannot_be_recovered_are_removed_when_the_job_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::start_in(dir.path());
    let entry = options(dir.path()).spool.join("1-1");
    std::fs::create_dir_all(&entry).unwrap();
    std::fs::write(entry.join("journal"), "muster job 2 5\n").unwrap();

    let mut agent = Agent::start_in(dir).await;
    let plan = agent.plan(vec![script(&["true"])]);
    assert!(agent.steps.run(request("1-1", &plan, &[])).await.is_err());
    // At the end of the job, the journal is readable again.
    let readable = journal_of_job_in_containers(agent.dir.path(), "\"user_code\"\n");
    std::fs::write(entry.join("journal"), readable).unwrap();
    agent.close("1-1").await;
    assert!(engine.is_container_deleted(), "{:?}", engine.calls.lock());
}

#[tokio::test]
async fn containers_of_a_job_before_its_first_command_are_removed_when_the_job_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::start_in(dir.path());
    let entry = options(dir.path()).spool.join("1-1");
    std::fs::create_dir_all(&entry).unwrap();
    std::fs::write(entry.join("journal"), journal_of_job_in_containers(dir.path(), "")).unwrap();
    engine.is_starting.store(true, Ordering::SeqCst);

    let mut agent = Agent::start_in(dir).await;
    assert!(agent.ids().await.is_empty(), "the job can run again");
    engine.is_starting.store(false, Ordering::SeqCst);
    engine.calls.lock().clear();
    agent.close("1-1").await;
    assert!(engine.is_container_deleted(), "{:?}", engine.calls.lock());
}

#[tokio::test]
async fn next_agent_listens_in_time_if_the_processes_of_many_jobs_ignore_sigterm() {
    // In the test process, agents of other tests would adopt the remaining processes and end them.
    if !runs_in_separate_process(
        "killed_agent::next_agent_listens_in_time_if_the_processes_of_many_jobs_ignore_sigterm",
    ) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut process = spawn_agent_with(dir.path(), Containment::ProcessTree);
    let mut agent = Agent::attach(dir).await;
    let ids: Vec<String> = (1..=12).map(|job| format!("{job}-1")).collect();
    let pids = agent.dir.path().join("pids");
    for id in &ids {
        let command = format!("trap '' TERM; echo $$ >> {}; echo ready; sleep 600", pids.display());
        let mut plan = agent.plan(vec![script(&[&command])]);
        plan.project_dir = agent.dir.path().join(format!("builds/{id}")).to_string_lossy().into_owned();
        agent.run(id, &plan, &[]).await;
        agent.log_until(id, "\nready\n").await;
    }
    process.kill().unwrap();
    process.wait().unwrap();

    let killed = Instant::now();
    let mut process = spawn_agent_with(agent.dir.path(), Containment::ProcessTree);
    let elapsed = killed.elapsed();
    let mut agent = Agent::attach(agent.dir).await;
    let recovered = agent.ids().await;
    process.kill().unwrap();
    process.wait().unwrap();
    assert!(elapsed < MANAGER_TIMEOUT, "the manager would kill the agent: {elapsed:?}");
    assert_eq!(recovered.len(), ids.len());
    for pid in std::fs::read_to_string(pids).unwrap().lines() {
        assert!(!is_running(pid), "process {pid} must have ended");
    }
}

#[tokio::test]
async fn lost_job_whose_log_is_full_has_its_result() {
    let dir = tempfile::tempdir().unwrap();
    let mut process = spawn_agent(dir.path());
    let mut agent = Agent::attach(dir).await;
    let plan = agent.plan(vec![script(&["head -c 20000 /dev/zero | tr '\\0' x; echo; echo ready; exec sleep 600"])]);
    agent.run("1-1", &plan, &[]).await;
    agent.log_until("1-1", "\nready\n").await;
    process.kill().unwrap();
    process.wait().unwrap();

    let small = Options { spool_limit: 10_000, ..options(agent.dir.path()) };
    let mut agent = Agent::start_with(small, agent.dir).await;
    assert_eq!(agent.wait("1-1").await.tree.cause, Some(TerminationCause::EnvironmentLost));
}

#[tokio::test]
async fn agent_waits_for_a_leftover_copy_of_the_lock() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path());
    std::fs::create_dir_all(&options.spool).unwrap();
    let copy = std::fs::File::create(options.spool.join("agent.lock")).unwrap();
    rustix::fs::flock(&copy, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    let (ready, is_ready) = tokio::sync::oneshot::channel();
    options.ready = Some(ready);
    let shutdown = options.shutdown.clone();
    // The agent is polled first, so that it finds the lock held.
    let (served, ()) = tokio::join!(muster_agent::serve(options), async {
        drop(copy);
        let _ = is_ready.await;
        shutdown.cancel();
    });
    served.unwrap();
}

#[tokio::test]
async fn job_before_its_first_command_can_run_again() {
    let dir = tempfile::tempdir().unwrap();
    let (upstream, sha) = crate::checkout::repository(dir.path());
    let mut process = spawn_agent(dir.path());
    let mut agent = Agent::attach(dir).await;
    // This git waits for the gate file, which keeps the job in its checkout.
    let bin = agent.dir.path().join("bin");
    let gate = agent.dir.path().join("gate");
    std::fs::create_dir(&bin).unwrap();
    let git = format!(
        "#!/bin/sh\nuntil [ -e {} ]; do sleep 0.01; done\nexec /usr/bin/env PATH=\"$REAL_PATH\" git \"$@\"\n",
        gate.display()
    );
    create_program(bin.join("git"), git);
    let path = std::env::var("PATH").unwrap();
    let variables = [variable("PATH", &format!("{}:{path}", bin.display())), variable("REAL_PATH", &path)];
    let counter = agent.dir.path().join("count");
    let mut plan = agent.plan(vec![script(&[&format!("echo once >> {}", counter.display())])]);
    plan.header = vec!["header".to_owned()];
    plan.steps[0].call = Call::builtin(&Checkout {
        strategy: "clone".to_owned(),
        repo_url: upstream.to_string_lossy().into_owned(),
        refspecs: vec!["+refs/heads/*:refs/remotes/origin/*".to_owned()],
        sha,
        checkout: true,
        ..Checkout::default()
    });
    agent.run("1-1", &plan, &variables).await;
    let seen = agent.log_until("1-1", "Fetching changes...").await;
    process.kill().unwrap();
    process.wait().unwrap();

    let mut agent = Agent::start_in(agent.dir).await;
    assert!(agent.ids().await.is_empty());
    std::fs::write(gate, "").unwrap();
    agent.run("1-1", &plan, &variables).await;
    let log = agent.log("1-1").await;
    assert!(
        log.starts_with(&seen)
            && log.contains("the job, so the job starts again")
            && log.ends_with("Job succeeded\x1b[0;m\n"),
        "{log}"
    );
    assert_eq!(std::fs::read_to_string(counter).unwrap(), "once\n");
    assert_eq!(agent.wait("1-1").await.log_bytes, log.len() as u64);
}

#[tokio::test]
async fn second_agent_error_names_pid_of_first() {
    let agent = Agent::start().await;
    let pid = std::process::id().to_string();
    let same_spool = muster_agent::serve(options(agent.dir.path())).await.unwrap_err();
    assert!(same_spool.to_string().contains(&pid), "{same_spool}");
    let mut other_spool = options(agent.dir.path());
    other_spool.spool = agent.dir.path().join("other");
    let same_socket = muster_agent::serve(other_spool).await.unwrap_err();
    assert!(same_socket.to_string().contains(&pid), "{same_socket}");
}

#[tokio::test]
async fn job_that_fills_the_spool_fails_alone() {
    let dir = Agent::start().await.stop().await;
    let small = muster_agent::Options { spool_limit: 100_000, ..options(dir.path()) };
    let mut agent = Agent::start_with(small, dir).await;
    let plan = agent.plan(vec![script(&["head -c 300000 /dev/zero | tr '\\0' x; sleep 600"])]);
    agent.run("1-1", &plan, &[]).await;
    let result = agent.wait("1-1").await;
    let Outcome::Failed { reason, cause, .. } = &result.outcome else { panic!("{result:?}") };
    assert_eq!((reason.as_str(), *cause), ("runner_system_failure", Some(TerminationCause::ResourceExhausted)));
    let log = agent.log("1-1").await;
    let end = &log[log.len().saturating_sub(600)..];
    assert!(end.contains("store 100000 bytes together") && end.contains("MUSTER_SPOOL_LIMIT"), "{end}");
    assert!(end.contains("ERROR: Job failed (system failure): no space left for the job's log"), "{end}");
    agent.close("1-1").await;
    let (log, result) = agent.complete(&agent.plan(vec![script(&["echo space again"])])).await;
    assert!(result.outcome == Outcome::Success && log.contains("space again"), "{log}");
}
