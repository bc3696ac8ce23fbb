//! The engine with a faulty provider: seeded runs that check the invariants.
//!
//! By default, the seeds start at 1. `MUSTER_TEST_RUNS=100000` runs 100,000 cases from a random seed, and
//! `MUSTER_TEST_SEED=n` starts at seed `n`. A failure is reported with its seed and with the smallest case that
//! violates the same invariant.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use muster_taskscaler::engine::Violation;
use muster_taskscaler::event::Action;
use muster_taskscaler::sim::scenario::Case;

const DEFAULT_RUNS: u64 = 300;

#[derive(Debug)]
struct Failure {
    seed: u64,
    violation: Violation,
    smallest: Case,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { seed, violation, smallest } = self;
        let found = smallest.run().err();
        write!(
            f,
            "{violation}\nMUSTER_TEST_SEED={seed} MUSTER_TEST_RUNS=1 replays it\nthe smallest failing case: {found:?}\n{smallest:?}"
        )
    }
}

#[derive(Debug, Default)]
struct Totals {
    jobs: AtomicU64,
    rescheduled: AtomicU64,
    resumed: AtomicU64,
    requested_ahead: AtomicU64,
    canceled: AtomicU64,
    canceled_resumes: AtomicU64,
    restarts: AtomicU64,
}

/// Runs the cases of `runs` seeds on all processors until one fails.
fn run_cases(first: u64, runs: u64, case_of: impl Fn(u64) -> Case + Sync) -> Result<Totals, Box<Failure>> {
    let (next, totals, failure) = (AtomicU64::new(0), Totals::default(), Mutex::new(None));
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    let run_worker = || {
        loop {
            let run = next.fetch_add(1, Ordering::Relaxed);
            if run >= runs || failure.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
                return;
            }
            let seed = first.wrapping_add(run);
            let case = case_of(seed);
            match case.run() {
                Ok(report) => {
                    totals.jobs.fetch_add(report.done as u64, Ordering::Relaxed);
                    totals.rescheduled.fetch_add(report.rescheduled as u64, Ordering::Relaxed);
                    totals.resumed.fetch_add(report.resumed as u64, Ordering::Relaxed);
                    totals.requested_ahead.fetch_add(report.requested_ahead as u64, Ordering::Relaxed);
                    totals.canceled.fetch_add(report.canceled as u64, Ordering::Relaxed);
                    totals.canceled_resumes.fetch_add(report.canceled_resumes as u64, Ordering::Relaxed);
                    totals.restarts.fetch_add(case.scenario.manager_kills.len() as u64, Ordering::Relaxed);
                }
                Err(violation) => {
                    let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
                    failure.get_or_insert((seed, case, violation));
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(run_worker);
        }
    });
    match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        None => Ok(totals),
        Some((seed, case, violation)) => {
            let smallest = case.shrunk(&violation);
            Err(Box::new(Failure { seed, violation, smallest }))
        }
    }
}

fn env_number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn invariants_hold_with_random_faults() {
    let requested_runs = env_number("MUSTER_TEST_RUNS");
    let runs = requested_runs.unwrap_or(DEFAULT_RUNS);
    let first =
        env_number("MUSTER_TEST_SEED").unwrap_or_else(|| if requested_runs.is_some() { rand::random() } else { 1 });
    println!("{runs} runs from MUSTER_TEST_SEED={first}");
    let Totals { jobs, rescheduled, resumed, requested_ahead, canceled, canceled_resumes, restarts } =
        run_cases(first, runs, Case::random).unwrap_or_else(|failure| panic!("{failure}"));
    let [jobs, rescheduled, resumed, requested_ahead, canceled, canceled_resumes, restarts] =
        [jobs, rescheduled, resumed, requested_ahead, canceled, canceled_resumes, restarts].map(AtomicU64::into_inner);
    println!(
        "{jobs} jobs done, {rescheduled} rescheduled after their instance was lost, {resumed} resumed an environment, \
         {requested_ahead} were requested ahead of free slots, \
         {canceled} canceled while they waited and queued again ({canceled_resumes} of them waited for an environment), \
         {restarts} planned restarts"
    );
    assert!(jobs > 0 && (resumed > 0 && requested_ahead > 0 && canceled_resumes > 0 || requested_runs.is_some()));
}

/// Simulates a bug: an instance is deleted when it gets its third job.
fn delete_with_third_job(mut actions: Vec<Action>) -> Vec<Action> {
    let third = actions.iter().find_map(|action| match action {
        Action::Assign(lease) if lease.use_number == 3 => Some((lease.group, lease.instance.clone())),
        _ => None,
    });
    actions.extend(third.map(|(group, id)| Action::Decrease { group, ids: vec![id] }));
    actions
}

#[test]
fn engine_bug_is_found_replayed_and_shrunk() {
    let with_bug = |seed| {
        let mut case = Case::random(seed);
        case.scenario.injected_defect = Some(delete_with_third_job);
        case
    };
    let failure = run_cases(1, DEFAULT_RUNS, with_bug).expect_err("the bug must be found");
    assert_eq!(failure.violation.invariant, "I4");
    let message = failure.to_string();
    assert!(message.contains(&format!("MUSTER_TEST_SEED={} MUSTER_TEST_RUNS=1 replays it", failure.seed)), "{message}");
    let replay = || with_bug(failure.seed).run().unwrap_err();
    assert_eq!(
        (replay(), replay()),
        (failure.violation.clone(), failure.violation.clone()),
        "the seed determines the run"
    );
    let smallest = &failure.smallest;
    assert_eq!(smallest.run().unwrap_err().invariant, "I4");
    let (remaining, all) = (smallest.jobs.len(), with_bug(failure.seed).jobs.len());
    assert!((3..8).contains(&remaining) && remaining < all, "the bug needs three jobs: {remaining} of {all} remain");
    Case::random(failure.seed).run().expect("the seed must pass without the bug");
}
