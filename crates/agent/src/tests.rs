//! Jobs that end after their `Close`, or panic.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use muster_agent_api::development::Development;
use muster_agent_api::plan::{JobPlan, Policy, job_steps};
use muster_agent_api::step_runner::RunRequest;
use muster_builtins::{AgentResources, Context, PreparedContainers, StepCache, Templates};
use muster_job::TerminationCause;
use muster_job::mask::Secrets;
use muster_steps::builtin::{Builtin, Call, Step};
use muster_steps::engine::StartTime;
use muster_steps::failure::Failure;
use muster_steps::log::{Log, Stream};
use muster_steps::process::{Command, Containment, ProcessManager, Processes};
use muster_steps::stop::StopToken;
use tokio::sync::oneshot;

use crate::agent::Agent;
use crate::job::Job;
use crate::parsed_request::{ParsedRequest, parse};
use crate::recover::clean_up_and_fail;
use crate::run_job::{execute, fail_job, persist_result};
use crate::spool::Spool;

const ID: &str = "1-1";

fn agent(dir: &Path) -> Arc<Agent> {
    let spool = Spool::open(&dir.join("spool"), u64::MAX).unwrap();
    let resources = AgentResources::new(
        Templates::new(spool.templates()).unwrap(),
        StepCache::new(spool.step_cache()).unwrap(),
        PreparedContainers::recorded_in(spool.prepared_containers()),
    );
    let processes = ProcessManager::new(Containment::ProcessTree, None);
    Arc::new(Agent::new(spool, resources, processes, "boot".to_owned()))
}

fn request(dir: &Path) -> RunRequest {
    let path = |name: &str| dir.join(name).to_string_lossy().into_owned();
    let plan = JobPlan { project_dir: path("builds/p"), builds_dir: path("builds"), ..JobPlan::default() };
    RunRequest { id: ID.to_owned(), steps: job_steps(&plan).unwrap(), ..RunRequest::default() }
}

fn job(agent: &Agent, request: &RunRequest) -> Arc<Job> {
    let entry = agent.context.spool.entry(&request.id).unwrap();
    let (journal, log) = entry.create(request).unwrap();
    journal.record_boot(&agent.context.boot_id).unwrap();
    Arc::new(Job::new(entry, journal, log, None))
}

#[tokio::test(start_paused = true)]
async fn closed_job_is_deleted_when_it_ends_after_the_answer_to_close() {
    // The client does not wait, or waits longer than the agent.
    for client_timeout in [1, 120] {
        let dir = tempfile::tempdir().unwrap();
        let agent = agent(dir.path());
        let job = job(&agent, &request(dir.path()));
        let (end, ended) = oneshot::channel();
        let (context, ending) = (Arc::clone(&agent.context), Arc::clone(&job));
        agent.adopt_unfinished(&job, async move {
            ended.await.unwrap();
            let outcome = fail_job(&ending, StartTime::now(), "stopped", None);
            persist_result(&context, &ending, outcome, &Secrets::default(), &Development::default());
        });
        for _ in 0..2 {
            if let Ok(closed) = tokio::time::timeout(Duration::from_secs(client_timeout), agent.close(ID)).await {
                let error = closed.unwrap_err().to_string();
                assert!(error.ends_with("; the agent deletes the job when it ends"), "{error}");
            }
        }
        assert!(!agent.is_idle(true));
        end.send(()).unwrap();
        // Waits for all tasks.
        agent.drain(TerminationCause::ManagerShutdown).await;
        assert!(agent.is_idle(true), "the job must be deleted if the client waits {client_timeout} s");
        agent.close(ID).await.unwrap();
    }
}

struct NoLog;

impl Log for NoLog {
    fn write(&self, _: Stream, _: &[u8]) {}
}

/// Step that starts a process in the background, and then panics.
struct Panics {
    pid_file: PathBuf,
}

impl Panics {
    async fn panic(&self, processes: &Processes) -> ! {
        let script = format!("sleep 600 >/dev/null 2>&1 & echo $! > {}", self.pid_file.display());
        let command =
            Command { program: "/bin/sh".into(), args: vec!["-c".into(), script.into()], ..Command::default() };
        let log: Arc<dyn Log> = Arc::new(NoLog);
        processes.run(command, &log, &StopToken::new(), Duration::ZERO).await.unwrap();
        panic!("the step panics");
    }
}

#[async_trait]
impl Builtin<Context> for Panics {
    async fn run(&self, job: &Arc<Context>, _: &StopToken) -> Result<(), Failure> {
        self.panic(&job.processes).await
    }

    fn has_leftovers(&self, _: &Path) -> bool {
        true
    }

    async fn remove_leftovers(&self, _: &Path, processes: &Processes) -> Result<(), Failure> {
        self.panic(processes).await
    }
}

fn panicking(request: &RunRequest, pid_file: &Path) -> ParsedRequest {
    let call = Call::Builtin(Box::new(Panics { pid_file: pid_file.to_owned() }));
    let step = Step { name: "panics".to_owned(), policy: Policy::default(), call, record: None };
    let mut parsed = parse(request).unwrap();
    parsed.steps = vec![step];
    parsed
}

#[track_caller]
fn assert_ended(pid_file: &Path) {
    let pid = std::fs::read_to_string(pid_file).unwrap();
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    assert!(stat.is_empty() || stat.contains(") Z "), "the process must have ended: {stat}");
}

#[tokio::test]
async fn processes_of_a_job_end_if_the_agent_panics_while_it_runs_the_job() {
    let dir = tempfile::tempdir().unwrap();
    let (agent, request, pid_file) = (agent(dir.path()), request(dir.path()), dir.path().join("pid"));
    let job = job(&agent, &request);
    let parsed = panicking(&request, &pid_file);
    execute(Arc::clone(&agent.context), Arc::clone(&job), request, parsed).await;
    let message = job.finished().unwrap().result.message.clone();
    assert!(message.starts_with("the agent panicked while it ran the job"), "{message}");
    assert_ended(&pid_file);
}

#[tokio::test]
async fn lost_job_has_its_result_if_the_agent_panics_while_it_removes_leftovers() {
    let dir = tempfile::tempdir().unwrap();
    let (agent, request, pid_file) = (agent(dir.path()), request(dir.path()), dir.path().join("pid"));
    let job = job(&agent, &request);
    let parsed = panicking(&request, &pid_file);
    clean_up_and_fail(Arc::clone(&agent.context), Arc::clone(&job), parsed, "lost").await;
    assert_eq!(job.finished().unwrap().result.message, "lost");
    assert_ended(&pid_file);
}
