//! The manager or the agent is killed (SIGKILL) at points of a job's life that a seed selects. Nothing is lost or duplicated, the
//! logs are complete, and the invariants J1 to J6 hold. [`crate::fleet_kill`] does the same with instances.
//!
//! With a server that behaves like GitLab, one moment is excluded: from the assignment of a job until its manager has stored it, only
//! the server knows the job, and a kill loses it whatever a manager does. There the manager is killed as soon as the server has
//! heard of each job that it assigned.
//!
//! All of it: `MUSTER_TEST_RUNS=200 cargo test -p muster-tests --test proofs killed -- --nocapture`

use std::time::{Duration, Instant};

use muster_job::{JobId, JobStatus};
use muster_tests::bench::Bench;
use muster_tests::machines::{Part, kill};
use muster_tests::proxy::{Fault, Kind};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;
use tokio::sync::mpsc;

use crate::life::{self, Lines};

const CONCURRENT: usize = 2;
/// Number of jobs of one run: one more than can run at the same time.
pub(crate) const JOBS: i64 = 3;
/// Number of runs from which it is unlikely that most kills miss by chance.
const ENOUGH: usize = 8;

/// Maximum time from a kill to the end of all jobs. It is shorter than the coordinator's timeout for jobs without updates.
const RUN_LIMIT: Duration = Duration::from_secs(100);

/// Point at which to kill.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Point {
    /// At the n-th call of a kind: before it reaches the coordinator, or before its response arrives.
    Call { kind: Kind, number: u32, heard: bool },
    /// When the coordinator has this number of bytes of the first job's trace.
    Log(usize),
    /// After this fraction of the time that a run without a kill took.
    Time(f64),
}

impl Point {
    pub(crate) fn any(rng: &mut StdRng) -> Self {
        match rng.random_range(0..4) {
            0 => Self::Log(rng.random_range(1..1500)),
            1 => Self::Time(rng.random()),
            _ => Self::Call {
                kind: Kind::ALL[rng.random_range(0..4)],
                number: rng.random_range(1..5),
                heard: rng.random(),
            },
        }
    }
}

/// Process to kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Victim {
    Manager,
    Agent,
    Plugin,
    /// SSH server of an instance.
    Server,
    /// Whole instance.
    Machine,
}

impl Victim {
    /// Kills the process, if it exists.
    fn kill(self, bench: &mut Bench, rng: &mut StdRng) -> bool {
        let mut of = |part| {
            let found = bench.machines.processes(part);
            !found.is_empty() && kill(found[rng.random_range(0..found.len())])
        };
        match self {
            Self::Manager => {
                bench.kill_manager();
                bench.start_manager();
                true
            }
            Self::Agent => bench.kill_agent(),
            Self::Plugin => bench.kill_plugin(),
            Self::Server => of(Part::Server),
            Self::Machine => of(Part::Machine),
        }
    }

    /// Returns the messages of a job that could not survive the kill. The list is empty if every job survives it.
    fn last_words(self) -> Option<&'static [&'static str]> {
        match self {
            Self::Agent => Some(&["the agent was killed while the job ran"]),
            // The manager sees first either that the provider no longer lists the instance, or that it does not respond.
            Self::Machine => Some(&["instance unexpectedly removed", "was lost: it does not respond"]),
            Self::Manager | Self::Plugin | Self::Server => None,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Number of runs, of which `kills` had a kill. A run has none if its point is not reached or the process does not exist.
    pub(crate) runs: usize,
    pub(crate) kills: usize,
    pub(crate) passed: usize,
    /// Number of jobs that ended as a system failure with a reason, because an agent or a machine was killed.
    pub(crate) told: usize,
}

impl Tally {
    /// Prints the result. At least one of four runs must have had a kill.
    pub(crate) fn tell(&self) {
        println!("{} kills of {} runs: lost 0, doubled 0; {self:?}", self.kills, self.runs);
        assert!(self.kills * 4 >= self.runs || self.runs < ENOUGH, "hardly a run reached its point: {self:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_any_point_nothing_is_lost_or_doubled() {
    all(Bench::start(CONCURRENT).await, 16).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_gitlab_nothing_is_lost_or_doubled() {
    all(Bench::start_at_gitlab(CONCURRENT).await, 8).await;
}

async fn all(mut bench: Bench, sample: u64) {
    let mut tally = Tally::default();
    let whole = undisturbed(&mut bench, &mut tally).await;
    for seed in life::seeds(sample) {
        let mut rng = StdRng::seed_from_u64(seed);
        let victim = if rng.random() { Victim::Manager } else { Victim::Agent };
        let point = Point::any(&mut rng);
        println!("seed {seed}: {victim:?} at {point:?}");
        run(&mut bench, Some((victim, point, whole)), &mut rng, &mut tally).await;
    }
    let jobs = i64::try_from(tally.runs).unwrap() * JOBS;
    life::check_world(&bench, CONCURRENT, (1..=jobs).map(JobId)).await;
    tally.tell();
}

/// Returns the time that a run without a kill takes.
pub(crate) async fn undisturbed(bench: &mut Bench, tally: &mut Tally) -> Duration {
    let began = Instant::now();
    run(bench, None, &mut StdRng::seed_from_u64(0), tally).await;
    began.elapsed()
}

/// Makes one run of three jobs with one kill.
pub(crate) async fn run(
    bench: &mut Bench,
    kill: Option<(Victim, Point, Duration)>,
    rng: &mut StdRng,
    tally: &mut Tally,
) {
    let first = i64::try_from(tally.runs).unwrap() * JOBS + 1;
    tally.runs += 1;
    let jobs: Vec<_> = (first..first + JOBS).map(|id| (JobId(id), Lines::any(rng))).collect();
    let (send, mut reached) = mpsc::unbounded_channel();
    if let Some((_, Point::Call { kind: wanted, number, heard }, _)) = kill {
        let mut left = number;
        let heard = heard && !(bench.coordinator.is_as_gitlab() && wanted == Kind::Request);
        bench.proxy.decide(Box::new(move |kind| {
            if kind != wanted || left == 0 {
                return None;
            }
            left -= 1;
            (left == 0).then(|| {
                let _ = send.send(());
                if heard { Fault::DropAfter } else { Fault::DropBefore }
            })
        }));
    }
    let artifacts = json!([{ "paths": ["out"], "artifact_type": "archive", "artifact_format": "zip" }]);
    for (id, lines) in &jobs {
        bench.push(id.0, &[&lines.script(), "echo kept > out"], &json!({ "artifacts": artifacts }));
    }
    let ends = futures::future::join_all(jobs.iter().map(|(id, _)| bench.coordinator.wait_for_end(*id)));
    let mut victim = None;
    let ended = match kill {
        None => ends.await,
        Some((whom, point, whole)) => {
            // A point that this life does not have (a fourth upload) is passed over: its jobs end before.
            let at = async {
                match point {
                    Point::Call { .. } => drop(reached.recv().await),
                    Point::Log(bytes) => {
                        bench.coordinator.wait_for(jobs[0].0, |job| job.trace.len() >= bytes).await;
                    }
                    Point::Time(part) => tokio::time::sleep(whole.mul_f64(part)).await,
                }
            };
            tokio::select! {
                () = at => {}
                ended = ends => return check(bench, &jobs, ended, None, tally),
            }
            let is_killed = if whom == Victim::Manager && bench.coordinator.is_as_gitlab() {
                bench.coordinator.pass_requests_on(false);
                bench.coordinator.wait_until_assigned_jobs_are_known().await;
                let is_killed = whom.kill(bench, rng);
                bench.coordinator.pass_requests_on(true);
                is_killed
            } else {
                whom.kill(bench, rng)
            };
            if is_killed {
                tally.kills += 1;
                victim = Some(whom);
            }
            let ends = futures::future::join_all(jobs.iter().map(|(id, _)| bench.coordinator.wait_for_end(*id)));
            tokio::time::timeout(RUN_LIMIT, ends).await.unwrap_or_else(|_| {
                let has_ended = |id| bench.coordinator.job(id).is_some_and(|job| job.status.is_complete());
                let lost: Vec<_> = jobs.iter().map(|(id, _)| *id).filter(|id| !has_ended(*id)).collect();
                panic!("jobs {lost:?} are lost:\n{}", bench.log())
            })
        }
    };
    check(bench, &jobs, ended, victim, tally);
}

fn check(
    bench: &Bench,
    jobs: &[(JobId, Lines)],
    ended: Vec<muster_runner_api::test_support::Job>,
    victim: Option<Victim>,
    tally: &mut Tally,
) {
    for ((id, lines), job) in jobs.iter().zip(ended) {
        if job.status == JobStatus::Success {
            tally.passed += 1;
            life::check_success(bench, *id, &job, *lines);
            continue;
        }
        tally.told += 1;
        let (text, last) = (job.text(), job.reports().last().unwrap());
        let Some(words) = victim.and_then(Victim::last_words) else {
            panic!("the death of {victim:?} fails no job: {text}\n{}", bench.log())
        };
        assert_eq!(last.failure_reason.as_deref(), Some("runner_system_failure"), "{text}");
        let told: usize = words.iter().map(|words| text.matches(words).count()).sum();
        assert_eq!(told, 1, "the reason is logged once: {text}\n{}", bench.log());
        life::check(bench, *id, &job).unwrap();
        // What the script wrote until then stands there, without a gap.
        if let Some((_, written)) = text.split_once("[[MASKED]]\n") {
            let written: String = written.split_inclusive('\n').take_while(|line| line.starts_with("line ")).collect();
            let whole = written.rfind('\n').map_or("", |end| &written[..end]);
            assert!(lines.text().contains(whole), "{text}");
        }
    }
}
