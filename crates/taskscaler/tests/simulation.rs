//! The engine in a world that lies: seeded runs, in which every invariant is checked after every event.
//!
//! The sample on each push is always the same: the seeds from 1, so that what one push shows does not depend on luck.
//! `MUSTER_TEST_RUNS=100000` makes as many from a random seed; `MUSTER_TEST_SEED=n` begins with that one. What fails is
//! told by its seed, and as the smallest case that fails the same way.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use muster_taskscaler::engine::Violation;
use muster_taskscaler::event::Action;
use muster_taskscaler::sim::scenario::Case;

/// Runs on each push.
const SAMPLE: u64 = 300;

/// A run in which an invariant does not hold.
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
            "{violation}\nMUSTER_TEST_SEED={seed} MUSTER_TEST_RUNS=1 replays it\nthe smallest that fails: {found:?}\n{smallest:?}"
        )
    }
}

/// What came of runs that all went well.
#[derive(Debug, Default)]
struct Done {
    jobs: AtomicU64,
    moved: AtomicU64,
    resumed: AtomicU64,
    ahead: AtomicU64,
    canceled: AtomicU64,
    canceled_wakes: AtomicU64,
    restarts: AtomicU64,
}

/// Runs the cases of so many seeds on all processors, until one fails.
fn hunt(first: u64, runs: u64, case_of: impl Fn(u64) -> Case + Sync) -> Result<Done, Box<Failure>> {
    let (next, done, failure) = (AtomicU64::new(0), Done::default(), Mutex::new(None));
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    let work = || {
        loop {
            let run = next.fetch_add(1, Ordering::Relaxed);
            if run >= runs || failure.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
                return;
            }
            let seed = first.wrapping_add(run);
            let case = case_of(seed);
            match case.run() {
                Ok(report) => {
                    done.jobs.fetch_add(report.done as u64, Ordering::Relaxed);
                    done.moved.fetch_add(report.moved as u64, Ordering::Relaxed);
                    done.resumed.fetch_add(report.resumed as u64, Ordering::Relaxed);
                    done.ahead.fetch_add(report.ahead as u64, Ordering::Relaxed);
                    done.canceled.fetch_add(report.canceled as u64, Ordering::Relaxed);
                    done.canceled_wakes.fetch_add(report.canceled_wakes as u64, Ordering::Relaxed);
                    done.restarts.fetch_add(case.scenario.manager_kills.len() as u64, Ordering::Relaxed);
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
            scope.spawn(work);
        }
    });
    match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        None => Ok(done),
        Some((seed, case, violation)) => {
            let smallest = case.shrunk(&violation);
            Err(Box::new(Failure { seed, violation, smallest }))
        }
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn whatever_the_provider_does_every_invariant_holds() {
    let wanted = number("MUSTER_TEST_RUNS");
    let runs = wanted.unwrap_or(SAMPLE);
    let first = number("MUSTER_TEST_SEED").unwrap_or_else(|| if wanted.is_some() { rand::random() } else { 1 });
    println!("{runs} runs from MUSTER_TEST_SEED={first}");
    let Done { jobs, moved, resumed, ahead, canceled, canceled_wakes, restarts } =
        hunt(first, runs, Case::random).unwrap_or_else(|failure| panic!("{failure}"));
    let [jobs, moved, resumed, ahead, canceled, canceled_wakes, restarts] =
        [jobs, moved, resumed, ahead, canceled, canceled_wakes, restarts].map(AtomicU64::into_inner);
    println!(
        "{jobs} jobs done, {moved} lost their instance and ran elsewhere, {resumed} went on in what another one had left, \
         {ahead} were requested ahead of free slots, \
         {canceled} were canceled while they waited and came again ({canceled_wakes} of them waited for an environment), \
         {restarts} planned restarts"
    );
    assert!(jobs > 0 && (resumed > 0 && ahead > 0 && canceled_wakes > 0 || wanted.is_some()));
}

/// An engine that removes an instance in the moment in which it gives it its third job.
fn removes_too_early(mut actions: Vec<Action>) -> Vec<Action> {
    let third = actions.iter().find_map(|action| match action {
        Action::Grant(lease) if lease.use_number == 3 => Some((lease.group, lease.instance.clone())),
        _ => None,
    });
    actions.extend(third.map(|(group, id)| Action::Decrease { group, ids: vec![id] }));
    actions
}

#[test]
fn a_defect_of_the_engine_is_found_told_by_its_seed_replayed_and_made_small() {
    let spoilt = |seed| {
        let mut case = Case::random(seed);
        case.scenario.injected_defect = Some(removes_too_early);
        case
    };
    let failure = hunt(1, SAMPLE, spoilt).expect_err("the defect is found");
    assert_eq!(failure.violation.invariant, "I4");
    let told = failure.to_string();
    assert!(told.contains(&format!("MUSTER_TEST_SEED={} MUSTER_TEST_RUNS=1 replays it", failure.seed)), "{told}");
    let again = || spoilt(failure.seed).run().unwrap_err();
    assert_eq!(
        (again(), again()),
        (failure.violation.clone(), failure.violation.clone()),
        "a seed says all that happens"
    );
    let smallest = &failure.smallest;
    assert_eq!(smallest.run().unwrap_err().invariant, "I4");
    let (left, all) = (smallest.jobs.len(), spoilt(failure.seed).jobs.len());
    assert!((3..8).contains(&left) && left < all, "three jobs are needed to show it: {left} of {all} are left");
    Case::random(failure.seed).run().expect("without the defect the seed is well");
}
