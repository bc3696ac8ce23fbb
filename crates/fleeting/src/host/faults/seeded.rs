//! Tests random plugins with random calls.
//! Each call returns a response or a helpful error in time, and no process is left running.
//!
//! `MUSTER_TEST_RUNS=300 cargo test -p muster-fleeting faulty_plugins -- --nocapture` makes 300 runs; the default is 40.
//! `MUSTER_TEST_SEED=n` sets the first seed. Each run has its own seed, which a failure prints.

use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::{Behavior, Call, TestPlugin, VALID_HANDSHAKE, id};
use crate::faulty_plugin::Script;
use crate::host::{CallError, Group};

/// Number of runs if `MUSTER_TEST_RUNS` is not set.
const DEFAULT_RUNS: u64 = 40;
/// Timeout of one run on a busy machine. Each of its few calls has a timeout of 5 seconds or less.
const RUN_TIMEOUT: Duration = Duration::from_secs(120);

#[derive(Debug)]
struct FaultRun {
    script: Script,
    /// Whether the plugin is restarted almost immediately after its process ended.
    restarts_fast: bool,
    calls: Vec<u8>,
}

impl FaultRun {
    fn from_seed(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let script = Script::draw(&mut random);
        let calls = (0..random.random_range(1..6)).map(|_| random.random_range(0..6)).collect();
        Self { script, restarts_fast: random.random(), calls }
    }
}

#[derive(Debug, Default, Clone, Copy)]
struct Tally {
    started: u32,
    responses: u32,
    errors: u32,
}

async fn run(run: &FaultRun) -> Tally {
    let script = &run.script;
    let plugin = TestPlugin::with_script(script.behaviors, script.start, script.body);
    let mut spec = plugin.spec();
    if script.start != VALID_HANDSHAKE {
        spec.timeouts.start = Duration::from_millis(300);
    }
    if script.behaviors[Call::Init as usize] == Behavior::Hangs {
        spec.timeouts.init = Duration::from_millis(150);
    }
    if run.restarts_fast {
        spec.timeouts.restart_first = Duration::from_millis(1);
        spec.timeouts.restart_cap = Duration::from_millis(20);
    }
    let mut tally = Tally::default();
    match Group::start(spec).await {
        Ok(group) => {
            tally.started = 1;
            for call in &run.calls {
                match call_plugin(&group, *call).await {
                    Ok(()) => tally.responses += 1,
                    Err(error) => {
                        assert!(
                            error.to_string().starts_with("plugin faulty"),
                            "the error must name the plugin: {error}"
                        );
                        tally.errors += 1;
                    }
                }
            }
            group.stop().await;
        }
        Err(error) => {
            let init_succeeds = [Behavior::Normal, Behavior::Slow].contains(&script.behaviors[Call::Init as usize]);
            assert!(script.start != VALID_HANDSHAKE || !init_succeeds, "a well-behaved plugin must start: {error}");
            let text = error.to_string();
            assert!(text.starts_with("plugin /") && text.contains("fleeting-plugin-faulty"), "{text}");
            tally.errors = 1;
        }
    }
    plugin.wait_dead().await;
    tally
}

async fn call_plugin(group: &Group, call: u8) -> Result<(), CallError> {
    let ids = [id("i1"), id("i2")];
    let assert_requested = |returned: Vec<_>| assert!(returned.iter().all(|id| ids.contains(id)), "{returned:?}");
    match call {
        0 => group.update().await.map(drop),
        1 => group.increase(2).await.map(|n| assert!(n <= 2)),
        2 => group.decrease(&ids).await.map(assert_requested),
        3 => group.connect_info(&ids[0]).await.map(drop),
        4 => group.heartbeat(&ids[0]).await,
        _ => group.suspend(&ids).await.map(assert_requested),
    }
}

fn env_number(key: &str) -> Option<u64> {
    std::env::var(key).ok().and_then(|text| text.parse().ok())
}

#[tokio::test]
async fn faulty_plugins_cause_only_errors() {
    let first = env_number("MUSTER_TEST_SEED").unwrap_or_else(|| rand::random::<u32>().into());
    let runs = env_number("MUSTER_TEST_RUNS").unwrap_or(DEFAULT_RUNS);
    println!("MUSTER_TEST_SEED={first} MUSTER_TEST_RUNS={runs}");
    let start = Instant::now();
    let run_seed = |seed: u64| async move {
        let fault_run = FaultRun::from_seed(seed);
        // Each run is a task, so that a panic is reported with its seed.
        let replay = format!("MUSTER_TEST_SEED={seed} MUSTER_TEST_RUNS=1: {fault_run:?}");
        let outcome = tokio::spawn(async move { tokio::time::timeout(RUN_TIMEOUT, run(&fault_run)).await }).await;
        match outcome {
            Ok(Ok(tally)) => tally,
            Ok(Err(_)) => panic!("the run did not finish within {} s: {replay}", RUN_TIMEOUT.as_secs()),
            Err(error) => panic!("{error}: {replay}"),
        }
    };
    let seeds = (first..).take(usize::try_from(runs).unwrap());
    let tallies: Vec<Tally> = stream::iter(seeds).map(run_seed).buffer_unordered(8).collect().await;
    let sum = |field: fn(&Tally) -> u32| tallies.iter().map(field).sum::<u32>();
    println!(
        "{} plugins, {} of them started: {} calls succeeded, {} returned errors, no process left running; {:.0} s",
        tallies.len(),
        sum(|tally| tally.started),
        sum(|tally| tally.responses),
        sum(|tally| tally.errors),
        start.elapsed().as_secs_f64()
    );
}
