//! The manager, and the agent, are killed (SIGKILL) at points of a job's life that a seed chooses: nothing is lost,
//! nothing doubled, the logs are whole, and the invariants J1 to J6 hold.
//!
//! All of it: `MUSTER_TEST_RUNS=200 cargo test -p muster-tests --test proofs killed -- --nocapture`

use std::time::{Duration, Instant};

use muster_job::{JobId, JobStatus};
use muster_tests::bench::Bench;
use muster_tests::proxy::{Fault, Kind};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;
use tokio::sync::mpsc;

use crate::life::{self, Lines};

const CONCURRENT: usize = 2;
/// Jobs of one run: one more than run at the same time.
const JOBS: i64 = 3;
/// So many runs, and chance alone does not make most of their points miss.
const ENOUGH: u32 = 8;

/// When to kill.
#[derive(Debug, Clone, Copy)]
enum Point {
    /// At a call of a kind, the so-maniest: before the coordinator hears it, or before its answer arrives.
    Call { kind: Kind, number: u32, heard: bool },
    /// When the coordinator has so many bytes of the first job's trace.
    Log(usize),
    /// After this part of the time that a run without a kill took.
    Time(f64),
}

/// Whom to kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Manager,
    Agent,
}

#[derive(Debug, Default)]
struct Tally {
    /// Processes that were there and got the signal.
    kills: u32,
    passed: usize,
    /// Ended as a system failure that says why: only where an agent was killed.
    told: usize,
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_any_point_nothing_is_lost_or_doubled() {
    let mut bench = Bench::start(CONCURRENT).await;
    let began = Instant::now();
    let mut tally = Tally::default();
    run(&mut bench, 0, None, &mut StdRng::seed_from_u64(0), &mut tally).await;
    let whole = began.elapsed();
    let seeds = life::seeds(16);
    let mut number = 0;
    let runs = u32::try_from(seeds.end - seeds.start).unwrap();
    for seed in seeds {
        number += 1;
        let mut rng = StdRng::seed_from_u64(seed);
        let victim = if rng.random() { Victim::Manager } else { Victim::Agent };
        let point = match rng.random_range(0..4) {
            0 => Point::Log(rng.random_range(1..1500)),
            1 => Point::Time(rng.random()),
            _ => Point::Call {
                kind: Kind::ALL[rng.random_range(0..4)],
                number: rng.random_range(1..5),
                heard: rng.random(),
            },
        };
        println!("seed {seed}: {victim:?} at {point:?}");
        run(&mut bench, number, Some((victim, point, whole)), &mut rng, &mut tally).await;
    }
    life::check_world(&bench, CONCURRENT, (1..=(number + 1) * JOBS).map(JobId)).await;
    println!("{} kills of {runs} runs: lost 0, doubled 0; {tally:?}", tally.kills);
    assert!(tally.kills * 2 >= runs || runs < ENOUGH, "most runs ended before their point: {tally:?}");
}

/// One run of three jobs with one kill, where its point comes.
async fn run(
    bench: &mut Bench,
    number: i64,
    kill: Option<(Victim, Point, Duration)>,
    rng: &mut StdRng,
    tally: &mut Tally,
) {
    let first = number * JOBS + 1;
    let jobs: Vec<_> = (first..first + JOBS).map(|id| (JobId(id), Lines::any(rng))).collect();
    let (send, mut reached) = mpsc::unbounded_channel();
    if let Some((_, Point::Call { kind: wanted, number, heard }, _)) = kill {
        let mut left = number;
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
                () = at => victim = Some(whom),
                ended = ends => return check(bench, &jobs, ended, None, tally),
            }
            match whom {
                Victim::Manager => {
                    bench.kill_manager();
                    bench.start_manager();
                }
                // Before the first job, and for a moment between two agents, there is none.
                Victim::Agent if !bench.kill_agent() => victim = None,
                Victim::Agent => {}
            }
            tally.kills += u32::from(victim.is_some());
            futures::future::join_all(jobs.iter().map(|(id, _)| bench.coordinator.wait_for_end(*id))).await
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
        assert_eq!(victim, Some(Victim::Agent), "a manager's death fails no job: {text}\n{}", bench.log());
        assert_eq!(last.failure_reason.as_deref(), Some("runner_system_failure"), "{text}");
        assert_eq!(text.matches("the agent was ended while the job ran").count(), 1, "the reason is told once: {text}");
        life::check(bench, *id, &job).unwrap();
        // What the script wrote until then stands there, without a gap.
        if let Some((_, written)) = text.split_once("[[MASKED]]\n") {
            let written: String = written.split_inclusive('\n').take_while(|line| line.starts_with("line ")).collect();
            let whole = written.rfind('\n').map_or("", |end| &written[..end]);
            assert!(lines.text().contains(whole), "{text}");
        }
    }
}
