//! Kills (SIGKILL) the manager or the agent at a point that a seed selects, stops the agent (SIGSTOP), or cuts its
//! connections. Nothing is lost or duplicated, logs are complete, and the invariants J1 to J6 (ARCHITECTURE.md) hold.
//!
//! A GitLab-like server does not send a job again. With such a server, the manager is killed only after it has sent a
//! call about each assigned job.
//!
//! Long run: `MUSTER_TEST_RUNS=200 cargo test -p muster-tests --test system kill:: -- --nocapture`

use std::time::{Duration, Instant};

use muster_job::{JobId, JobStatus};
use muster_tests::connections::cut_connections;
use muster_tests::harness::Harness;
use muster_tests::machines::{ProcessKind, kill, signal};
use muster_tests::proxy::{ApiCall, Fault};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;
use tokio::sync::mpsc;

use crate::checks::{self, Lines};

const CONCURRENT: usize = 2;
/// Number of jobs per run: `CONCURRENT` running jobs, and a waiting job.
pub(crate) const JOBS: i64 = 3;
/// Minimum number of runs for the check that enough of them had a kill.
const MIN_RUNS_TO_CHECK: usize = 8;

/// Beginning of the line with the reason of a failure, which is the last line of a trace.
const FAILED: &str = "Job failed (system failure): ";

const AGENT_SOCKET: &str = "agent.sock";
const MAX_FREEZE_TIME: Duration = Duration::from_secs(3);

/// Maximum time from a kill to the end of all jobs. Shorter than the coordinator's timeout, so that the failure lists
/// all lost jobs.
const RUN_TIMEOUT: Duration = Duration::from_secs(100);

#[derive(Debug, Clone, Copy)]
pub(crate) enum Point {
    /// At the n-th call of a kind. The call is lost, or only its response if `is_processed` is true.
    Call { kind: ApiCall, number: u32, is_processed: bool },
    /// When the coordinator has received this number of bytes of the first job's trace.
    Log(usize),
    /// After this fraction of the duration of a run without a kill.
    Time(f64),
}

impl Point {
    pub(crate) fn random(rng: &mut StdRng) -> Self {
        match rng.random_range(0..4) {
            0 => Self::Log(rng.random_range(1..1500)),
            1 => Self::Time(rng.random()),
            _ => Self::Call {
                kind: ApiCall::ALL[rng.random_range(0..4)],
                number: rng.random_range(1..5),
                is_processed: rng.random(),
            },
        }
    }
}

/// Process, container or connections to kill, stop or cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Victim {
    Manager,
    Agent,
    /// Stopped, and resumed after a random time.
    PausedAgent,
    /// Stopped, and killed after a random time.
    FrozenAgent,
    AgentConnections,
    Plugin,
    SshServer,
    Instance,
    /// Running container of a job or of a service.
    Container,
    /// Docker Engine with all its containers.
    Engine,
    /// Docker Engine without its containers.
    EngineProcess,
}

impl Victim {
    /// Kills or interrupts the victim. Returns whether it existed.
    fn kill(self, harness: &mut Harness, rng: &mut StdRng) -> bool {
        let mut kill_random = |kind| {
            let pids = harness.machines.processes(kind);
            !pids.is_empty() && kill(pids[rng.random_range(0..pids.len())])
        };
        match self {
            Self::Manager => {
                harness.kill_manager();
                harness.start_manager();
                true
            }
            Self::Agent => harness.kill_agent(),
            Self::PausedAgent => freeze_agent(harness, rng, "CONT"),
            Self::FrozenAgent => freeze_agent(harness, rng, "KILL"),
            Self::AgentConnections => harness.agent_pid().is_some_and(|pid| cut_connections(pid, AGENT_SOCKET) > 0),
            Self::Plugin => harness.kill_plugin(),
            Self::SshServer => kill_random(ProcessKind::SshServer),
            Self::Instance => kill_random(ProcessKind::PersistentInstance),
            Self::Container => {
                let containers = harness.containers();
                let Some(id) = containers.get(rng.random_range(0..containers.len().max(1))) else { return false };
                let engine = harness.engine.as_ref().unwrap();
                engine.try_call("POST", &format!("/containers/{id}/kill"), &[]).is_ok_and(|(status, _)| status == 204)
            }
            Self::Engine => {
                harness.engine.as_mut().unwrap().restart();
                true
            }
            Self::EngineProcess => harness.engine.as_ref().unwrap().crash(),
        }
    }

    /// Returns the possible messages of a job that fails because of the kill. `None` means that every job survives the
    /// kill.
    fn failure_messages(self) -> Option<&'static [&'static str]> {
        match self {
            Self::Agent | Self::FrozenAgent => Some(&["the agent was killed while the job ran"]),
            // Depends on what the manager detects first: the provider no longer lists the instance, or it does not
            // respond.
            Self::Instance => Some(&["instance unexpectedly removed", "was lost: it does not respond"]),
            Self::Container => Some(&["container exited with code 137"]),
            // Depends on what the agent does at that moment.
            Self::Engine => Some(&["container exited with", "Docker engine", "failed to "]),
            Self::Manager
            | Self::PausedAgent
            | Self::AgentConnections
            | Self::Plugin
            | Self::SshServer
            | Self::EngineProcess => None,
        }
    }
}

/// Stops the agent, and sends it the signal `then` after a random time. Returns whether an agent was running.
fn freeze_agent(harness: &Harness, rng: &mut StdRng, then: &'static str) -> bool {
    let time = rng.random_range(Duration::ZERO..MAX_FREEZE_TIME);
    let Some(pid) = harness.agent_pid().filter(|pid| signal("STOP", *pid)) else { return false };
    // The thread sends the signal even if the test fails, so that no stopped agent remains.
    std::thread::spawn(move || {
        std::thread::sleep(time);
        signal(then, pid)
    });
    true
}

#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) runs: usize,
    /// Runs with a kill. A run has none if its point is not reached or the victim does not exist.
    pub(crate) kills: usize,
    pub(crate) passed: usize,
    /// Jobs with a system failure because an agent, an instance, a container or an engine was killed.
    pub(crate) failed: usize,
}

impl Tally {
    /// Prints the numbers, and checks that at least a quarter of the runs had a kill.
    pub(crate) fn print_and_check(&self) {
        println!("{} kills in {} runs, no job lost or duplicated: {self:?}", self.kills, self.runs);
        assert!(self.kills * 4 >= self.runs || self.runs < MIN_RUNS_TO_CHECK, "too few runs had a kill: {self:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_manager_or_agent_loses_and_duplicates_nothing() {
    run_seeds(Harness::start(CONCURRENT).await, CONCURRENT, &[Victim::Manager, Victim::Agent], 16).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_manager_or_agent_of_gitlab_like_server_loses_and_duplicates_nothing() {
    run_seeds(Harness::start_gitlab_like(CONCURRENT).await, CONCURRENT, &[Victim::Manager, Victim::Agent], 8).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupted_agent_loses_no_log_and_no_result() {
    let victims = [Victim::Agent, Victim::PausedAgent, Victim::FrozenAgent, Victim::AgentConnections];
    run_seeds(Harness::start(CONCURRENT).await, CONCURRENT, &victims, 12).await;
}

/// Makes one run for each seed, which selects one of the victims, and then checks all jobs.
pub(crate) async fn run_seeds(mut harness: Harness, concurrent: usize, victims: &[Victim], default_runs: u64) {
    let mut tally = Tally::default();
    let run_time = run_without_kill(&mut harness, &mut tally).await;
    for seed in checks::seeds(default_runs) {
        let mut rng = StdRng::seed_from_u64(seed);
        let victim = victims[rng.random_range(0..victims.len())];
        let point = Point::random(&mut rng);
        println!("seed {seed}: {victim:?} at {point:?}");
        run(&mut harness, Some((victim, point, run_time)), &mut rng, &mut tally).await;
    }
    let jobs = i64::try_from(tally.runs).unwrap() * JOBS;
    checks::check_all_jobs(&harness, concurrent, (1..=jobs).map(JobId)).await;
    tally.print_and_check();
}

pub(crate) async fn run_without_kill(harness: &mut Harness, tally: &mut Tally) -> Duration {
    let start = Instant::now();
    run(harness, None, &mut StdRng::seed_from_u64(0), tally).await;
    start.elapsed()
}

/// Runs three jobs. `kill` is the victim, the point, and the duration of a run without a kill.
pub(crate) async fn run(
    harness: &mut Harness,
    kill: Option<(Victim, Point, Duration)>,
    rng: &mut StdRng,
    tally: &mut Tally,
) {
    let first = i64::try_from(tally.runs).unwrap() * JOBS + 1;
    tally.runs += 1;
    let jobs: Vec<_> = (first..first + JOBS).map(|id| (JobId(id), Lines::random(rng))).collect();
    let (send, mut call_reached) = mpsc::unbounded_channel();
    if let Some((_, Point::Call { kind: wanted, number, is_processed }, _)) = kill {
        let mut calls_left = number;
        let is_processed = is_processed && !(harness.coordinator.imitates_gitlab() && wanted == ApiCall::Request);
        harness.proxy.select_faults(Box::new(move |kind| {
            if kind != wanted || calls_left == 0 {
                return None;
            }
            calls_left -= 1;
            (calls_left == 0).then(|| {
                let _ = send.send(());
                if is_processed { Fault::DropAfter } else { Fault::DropBefore }
            })
        }));
    }
    let artifacts = json!([{ "paths": ["out"], "artifact_type": "archive", "artifact_format": "zip" }]);
    for (id, lines) in &jobs {
        harness.push(id.0, &[&lines.script(), "echo content > out"], &json!({ "artifacts": artifacts }));
    }
    let all_ended = futures::future::join_all(jobs.iter().map(|(id, _)| harness.coordinator.wait_for_end(*id)));
    let mut killed = None;
    let ended = match kill {
        None => all_ended.await,
        Some((victim, point, run_time)) => {
            let point_reached = async {
                match point {
                    Point::Call { .. } => drop(call_reached.recv().await),
                    Point::Log(bytes) => {
                        harness.coordinator.wait_for(jobs[0].0, |job| job.trace.len() >= bytes).await;
                    }
                    Point::Time(fraction) => tokio::time::sleep(run_time.mul_f64(fraction)).await,
                }
            };
            tokio::select! {
                () = point_reached => {}
                // The run does not reach this point, for example no fourth upload.
                ended = all_ended => return check(harness, &jobs, ended, None, tally),
            }
            let is_killed = if victim == Victim::Manager && harness.coordinator.imitates_gitlab() {
                harness.coordinator.set_forwarding_enabled(false);
                harness.coordinator.wait_until_assigned_jobs_are_known().await;
                let is_killed = victim.kill(harness, rng);
                harness.coordinator.set_forwarding_enabled(true);
                is_killed
            } else {
                victim.kill(harness, rng)
            };
            if is_killed {
                tally.kills += 1;
                killed = Some(victim);
            }
            let all_ended = futures::future::join_all(jobs.iter().map(|(id, _)| harness.coordinator.wait_for_end(*id)));
            tokio::time::timeout(RUN_TIMEOUT, all_ended).await.unwrap_or_else(|_| {
                let has_ended = |id| harness.coordinator.job(id).is_some_and(|job| job.status.is_complete());
                let lost: Vec<_> = jobs.iter().map(|(id, _)| *id).filter(|id| !has_ended(*id)).collect();
                let traces = lost.iter().map(|id| harness.coordinator.job(*id).map(|job| job.text()));
                panic!("jobs {lost:?} are lost:\n{}\ntheir traces: {:?}", harness.log(), traces.collect::<Vec<_>>())
            })
        }
    };
    check(harness, &jobs, ended, killed, tally);
}

fn check(
    harness: &Harness,
    jobs: &[(JobId, Lines)],
    ended: Vec<muster_runner_api::test_support::Job>,
    killed: Option<Victim>,
    tally: &mut Tally,
) {
    for ((id, lines), job) in jobs.iter().zip(ended) {
        if job.status == JobStatus::Success {
            tally.passed += 1;
            checks::check_success(harness, *id, &job, *lines);
            assert_eq!(job.artifacts.len(), 1, "{}", job.text());
            continue;
        }
        tally.failed += 1;
        let (text, last) = (job.text(), job.reports().last().unwrap());
        let Some(messages) = killed.and_then(Victim::failure_messages) else {
            panic!("the kill of {killed:?} must not fail a job: {text}\n{}", harness.log())
        };
        assert_eq!(last.failure_reason.as_deref(), Some("runner_system_failure"), "{text}");
        let reasons: Vec<_> = text.lines().filter(|line| line.contains(FAILED)).collect();
        assert_eq!(reasons.len(), 1, "the trace must have the reason exactly once: {text}\n{}", harness.log());
        assert!(
            messages.iter().any(|message| reasons[0].contains(message)),
            "the reason is not one of {messages:?}: {text}\n{}",
            harness.log()
        );
        checks::check_job(harness, *id, &job).unwrap();
        // The trace has the output of the script until the kill, without a gap.
        if let Some((_, output)) = text.split_once("[[MASKED]]\n") {
            let output: String = output.split_inclusive('\n').take_while(|line| line.starts_with("line ")).collect();
            let complete_lines = output.rfind('\n').map_or("", |end| &output[..=end]);
            assert!(lines.text().starts_with(&format!("[[MASKED]]\n{complete_lines}")), "{text}");
        }
    }
}
