//! The engine in a world that lies: seeded runs, in which every invariant is checked after every event.
//!
//! The sample on each push is always the same: the seeds from 1, so that what one push shows does not depend on luck.
//! `MUSTER_TEST_RUNS=100000` makes as many from a random seed; `MUSTER_TEST_SEED=n` begins with that one. What fails is
//! told by its seed, and as the smallest case that fails the same way.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use muster_taskscaler::sim::scenario::Case;

/// Runs on each push.
const SAMPLE: u64 = 300;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn whatever_the_provider_does_every_invariant_holds() {
    let wanted = number("MUSTER_TEST_RUNS");
    let runs = wanted.unwrap_or(SAMPLE);
    let first = number("MUSTER_TEST_SEED").unwrap_or_else(|| if wanted.is_some() { rand::random() } else { 1 });
    println!("{runs} runs from MUSTER_TEST_SEED={first}");
    let next = AtomicU64::new(0);
    let failure = Mutex::new(None);
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    let (done, moved, restarts) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let run = next.fetch_add(1, Ordering::Relaxed);
                    if run >= runs || failure.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
                        return;
                    }
                    let seed = first.wrapping_add(run);
                    let case = Case::random(seed);
                    match case.run() {
                        Ok(report) => {
                            done.fetch_add(report.done as u64, Ordering::Relaxed);
                            moved.fetch_add(report.moved as u64, Ordering::Relaxed);
                            restarts.fetch_add(case.scenario.kills.len() as u64, Ordering::Relaxed);
                        }
                        Err(violation) => {
                            let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
                            failure.get_or_insert((seed, case, violation));
                        }
                    }
                }
            });
        }
    });
    if let Some((seed, case, violation)) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        let smallest = case.shrunk(&violation);
        let found = smallest.run().err();
        panic!(
            "{violation}\nMUSTER_TEST_SEED={seed} MUSTER_TEST_RUNS=1 replays it\nthe smallest that fails: {found:?}\n{smallest:?}"
        );
    }
    let [done, moved, restarts] = [done, moved, restarts].map(AtomicU64::into_inner);
    println!("{done} jobs done, {moved} lost their instance and ran elsewhere, {restarts} planned restarts");
    assert!(done > 0);
}
