//! Jobs of a GitLab-like server run on unreliable instances, with a plugin that fails. Each assigned job ends, and none
//! starts twice.
//!
//! Long run: `MUSTER_TEST_RUNS=1000 cargo test -p muster-tests --test system fleet_faults -- --nocapture`

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use muster_job::{JobId, JobStatus};
use muster_tests::harness::Harness;
use muster_tests::machines::{ProcessKind, kill};
use muster_tests::process::wait_until;
use muster_tests::proxy::{ApiCall, Fault};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

use crate::checks::{self, Lines};

/// Number of test environments that run at the same time. They are idle most of the time.
const PARALLEL_HARNESSES: usize = 3;
/// Number of consecutive seeds that share one test environment, and therefore the faults of its plugin.
const SEEDS_PER_HARNESS: u64 = 10;
const CONCURRENT: usize = 4;
const BURST_TIMEOUT: Duration = Duration::from_secs(90);
/// Number of jobs per seed. More than `CONCURRENT`, so that some jobs wait.
const JOBS: i64 = 6;

#[derive(Debug, Default)]
struct Tally {
    seeds: usize,
    passed: usize,
    /// Jobs with a system failure and a message about the instance.
    failed: usize,
    /// Instances that the tests killed.
    killed_instances: usize,
}

/// Regression test: when capacity decreased, the manager dropped job requests that the server had already answered with
/// jobs.
#[tokio::test(flavor = "multi_thread")]
async fn burst_completes_when_plugin_fails_first_and_then_accepts_half() {
    let autoscaler = "max_instances = 12\n    max_use_count = 1\n    update_interval = \"1s\"\n    \
        update_interval_when_expecting = \"200ms\"";
    let plugin = "max_size = 20\n      request_failures = 3\n      acceptance_rate = 0.5\n      boot_delay_ms = 100";
    let mut harness = Harness::with_instances_gitlab_like(12, autoscaler, plugin).await;
    for id in 1..=30 {
        harness.push(id, &["echo \"$(date +%s%N)\" >> \"$MARKS/started-$CI_JOB_ID\""], &json!({}));
    }
    let all_ended = futures::future::join_all((1..=30).map(|id| harness.coordinator.wait_for_end(JobId(id))));
    let Ok(ended) = tokio::time::timeout(BURST_TIMEOUT, all_ended).await else {
        let (assigned, ended) = harness.coordinator.assigned_and_ended();
        panic!("{assigned} of 30 jobs were assigned, and {ended} ended:\n{}", harness.log());
    };
    for (id, job) in (1..=30).map(JobId).zip(ended) {
        assert_eq!((job.status, job.assignments), (JobStatus::Success, 1), "{}\n{}", job.text(), harness.log());
        assert_eq!(harness.start_count(id), 1);
    }
    checks::check_all_jobs(&harness, 12, (1..=30).map(JobId)).await;
    assert_eq!(harness.stop_manager().await, Some(0), "{}", harness.log());
}

/// Sends a signal to a manager while the server holds its job request, which then gets a job. Returns the ended job.
async fn assign_job_after_signal(signal: &str) -> (Harness, muster_runner_api::test_support::Job) {
    let autoscaler = "max_instances = 2\n    delete_instances_on_shutdown = true";
    let harness = Harness::with_instances_gitlab_like(1, autoscaler, "").await;
    harness.coordinator.set_assignment_enabled(false);
    harness.coordinator.wait_for_pending_requests(1).await;
    harness.signal(signal);
    assert!(wait_until(|| harness.log().contains("stopped requesting jobs")).await, "{}", harness.log());
    harness.push(1, &["echo \"$(date +%s%N)\" >> \"$MARKS/started-$CI_JOB_ID\""], &json!({}));
    harness.coordinator.set_assignment_enabled(true);
    let job = harness.coordinator.wait_for_end(JobId(1)).await;
    (harness, job)
}

#[tokio::test(flavor = "multi_thread")]
async fn job_assigned_during_graceful_shutdown_runs() {
    let (mut harness, job) = assign_job_after_signal("QUIT").await;
    assert_eq!(job.status, JobStatus::Success, "{}\n{}", job.text(), harness.log());
    assert_eq!(harness.stop_manager().await, Some(0), "{}", harness.log());
    assert_eq!(harness.machines.names(), [""; 0], "{}", harness.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn job_assigned_during_forced_shutdown_is_reported_as_failed() {
    let (mut harness, job) = assign_job_after_signal("TERM").await;
    let reason = job.reports().last().unwrap().failure_reason.clone();
    assert_eq!(reason.as_deref(), Some("runner_system_failure"), "{}\n{}", job.text(), harness.log());
    assert_eq!(harness.start_count(JobId(1)), 0);
    assert!(wait_until(|| !harness.is_manager_running()).await, "{}", harness.log());
    assert_eq!(harness.machines.names(), [""; 0], "{}", harness.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn job_assigned_during_upgrade_is_run_by_the_next_manager() {
    let autoscaler = "max_instances = 2\n    delete_instances_on_shutdown = true";
    let mut harness = Harness::with_instances_gitlab_like(1, autoscaler, "").await;
    harness.coordinator.set_assignment_enabled(false);
    harness.coordinator.wait_for_pending_requests(1).await;
    harness.signal("USR2");
    assert!(wait_until(|| harness.log().contains("stopped requesting jobs")).await, "{}", harness.log());
    harness.push(1, &["echo \"$(date +%s%N)\" >> \"$MARKS/started-$CI_JOB_ID\""], &json!({}));
    harness.coordinator.set_assignment_enabled(true);
    assert!(wait_until(|| !harness.is_manager_running()).await, "{}", harness.log());
    harness.start_manager();
    let job = harness.coordinator.wait_for_end(JobId(1)).await;
    assert_eq!((job.status, job.assignments), (JobStatus::Success, 1), "{}\n{}", job.text(), harness.log());
    assert_eq!(harness.start_count(JobId(1)), 1);
    assert_eq!(harness.stop_manager().await, Some(0), "{}", harness.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn unreliable_instances_lose_and_duplicate_no_job() {
    let seeds = checks::seeds(12);
    let ranges = (seeds.start / SEEDS_PER_HARNESS..seeds.end.div_ceil(SEEDS_PER_HARNESS))
        .map(|index| (index * SEEDS_PER_HARNESS).max(seeds.start)..seeds.end.min((index + 1) * SEEDS_PER_HARNESS));
    let pending = Arc::new(Mutex::new(ranges.collect::<VecDeque<_>>()));
    let workers: Vec<_> = (0..PARALLEL_HARNESSES).map(|_| tokio::spawn(run_ranges(Arc::clone(&pending)))).collect();
    let mut all = Tally::default();
    for worker in workers {
        for tally in worker.await.unwrap() {
            all.seeds += tally.seeds;
            all.passed += tally.passed;
            all.failed += tally.failed;
            all.killed_instances += tally.killed_instances;
        }
    }
    println!("{} seeds, no job lost or duplicated: {all:?}", all.seeds);
    assert!(all.passed > all.failed, "most jobs should succeed: {all:?}");
}

async fn run_ranges(pending: Arc<Mutex<VecDeque<Range<u64>>>>) -> Vec<Tally> {
    let mut tallies = Vec::new();
    loop {
        let Some(seeds) = pending.lock().pop_front() else { return tallies };
        tallies.push(run_range(seeds).await);
    }
}

async fn run_range(seeds: Range<u64>) -> Tally {
    // All seeds of the environment share the faults of the plugin.
    let mut rng = StdRng::seed_from_u64(seeds.start / SEEDS_PER_HARNESS);
    let idle = rng.random_range(0..3);
    let autoscaler = format!(
        "max_instances = 4\n    max_use_count = {}\n    delete_instances_on_shutdown = true\n    create_timeout = \"5s\"\n    \
         update_interval = \"1s\"\n    update_interval_when_expecting = \"200ms\"\n    deletion_retry_interval = \"1s\"\n    \
         heartbeat_interval = \"1s\"\n    [[runners.autoscaler.policy]]\n      idle_count = {idle}\n      idle_time = \"1s\"",
        rng.random_range(1..4),
    );
    let plugin = format!(
        "seed = {}\n      request_failures = {}\n      request_failure_rate = {:.2}\n      acceptance_rate = {:.2}\n      \
         request_delay_ms = {}\n      boot_delay_ms = {}\n      boot_jitter = 0.9\n      boot_failure_rate = {:.2}\n      \
         heartbeat_failure_rate = {:.2}",
        rng.random_range(1..u32::MAX),
        rng.random_range(0..4),
        rng.random_range(0.0..0.4),
        rng.random_range(0.3..=1.0),
        rng.random_range(0..300),
        rng.random_range(0..300),
        rng.random_range(0.0..0.15),
        rng.random_range(0.0..0.1),
    );
    println!("plugin settings from seed {} on: {plugin}", seeds.start);
    let mut harness = Harness::with_instances_gitlab_like(CONCURRENT, &autoscaler, &plugin).await;
    let mut tally = Tally::default();
    for seed in seeds {
        run(&harness, seed, &mut tally).await;
    }
    let jobs = i64::try_from(tally.seeds).unwrap() * JOBS;
    checks::check_all_jobs(&harness, CONCURRENT, (1..=jobs).map(JobId)).await;
    assert_eq!(harness.stop_manager().await, Some(0), "{}", harness.log());
    assert_eq!(harness.machines.names(), [""; 0], "no instance may remain:\n{}", harness.log());
    tally
}

async fn run(harness: &Harness, seed: u64, tally: &mut Tally) {
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let first = i64::try_from(tally.seeds).unwrap() * JOBS + 1;
    tally.seeds += 1;
    let (mut faults_left, mut fault_rng) = (rng.random_range(0..4), rng.clone());
    harness.proxy.select_faults(Box::new(move |kind| {
        let has_fault = faults_left > 0 && fault_rng.random_bool(0.2);
        faults_left -= u32::from(has_fault);
        let fault = has_fault.then(|| Fault::random(&mut fault_rng));
        // GitLab sends a job only once, so a job in a lost response cannot be recovered.
        fault.filter(|fault| kind != ApiCall::Request || !fault.loses_response())
    }));
    let jobs: Vec<_> = (first..first + JOBS).map(|id| (JobId(id), Lines::random(&mut rng))).collect();
    for (id, lines) in &jobs {
        harness.push(id.0, &[&lines.script()], &json!({}));
    }
    let all_ended = futures::future::join_all(jobs.iter().map(|(id, _)| harness.coordinator.wait_for_end(*id)));
    let kill_after = rng.random_bool(0.3).then(|| Duration::from_millis(rng.random_range(0..1500)));
    let kill_instance = async {
        let Some(after) = kill_after else { return 0 };
        tokio::time::sleep(after).await;
        let instances = harness.machines.processes(ProcessKind::PersistentInstance);
        let is_killed = !instances.is_empty() && kill(instances[rng.random_range(0..instances.len())]);
        usize::from(is_killed)
    };
    let (ended, killed) = tokio::join!(all_ended, kill_instance);
    tally.killed_instances += killed;
    for ((id, lines), job) in jobs.iter().zip(ended) {
        assert_eq!(job.assignments, 1);
        if job.status == JobStatus::Success {
            tally.passed += 1;
            checks::check_success(harness, *id, &job, *lines);
            continue;
        }
        tally.failed += 1;
        let (text, last) = (job.text(), job.reports().last().unwrap());
        assert_eq!(last.failure_reason.as_deref(), Some("runner_system_failure"), "{text}\n{}", harness.log());
        // A job fails only if its script had started before the instance was killed or failed its heartbeats.
        assert!(text.lines().last().unwrap_or_default().contains("instance"), "{text}\n{}", harness.log());
        checks::check_job(harness, *id, &job).unwrap();
    }
}
