//! The queue is never empty. Each job ends exactly once with the result of its script, and the resource usage of the
//! manager and its agent does not grow.
//!
//! Long run: `MUSTER_TEST_RUNS=200 cargo test -p muster-tests --test system soak -- --nocapture`

use std::path::PathBuf;

use muster_job::{JobId, JobStatus};
use muster_tests::harness::Harness;
use muster_tests::process::wait_until;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

use crate::checks;

const CONCURRENT: usize = 8;
const JOBS: i64 = 50;
/// Maximum number of jobs that are queued or running.
const OPEN_JOBS: i64 = 24;
/// Maximum growth of the memory of manager and agent, for any number of jobs.
const MAX_MEMORY_GROWTH_KIB: u64 = 4 * 1024;
/// Maximum size of the state directory while no job exists.
const MAX_STATE_BYTES: u64 = 256 * 1024;

#[derive(Debug, Clone, Copy)]
struct JobScript {
    zeros: usize,
    fails: bool,
}

impl JobScript {
    fn from_seed(first_seed: u64, id: i64) -> Self {
        let run = u64::try_from((id - 1) / JOBS).unwrap();
        let mut rng = StdRng::seed_from_u64((first_seed + run).wrapping_mul(1 << 20) + id.unsigned_abs());
        Self { zeros: rng.random_range(1..4000), fails: rng.random_bool(0.1) }
    }

    fn push(self, harness: &Harness, id: i64) {
        let script = format!(
            "echo \"${{EPOCHREALTIME/[.,]/}}\" >> \"$MARKS/started-$CI_JOB_ID\"; printf '<%0*d>\\n' {} 0\n\
             echo \"${{EPOCHREALTIME/[.,]/}}\" > \"$MARKS/ended-$CI_JOB_ID\"; exit {}",
            self.zeros,
            u8::from(self.fails)
        );
        // All jobs belong to one project, so that their workspaces are reused.
        let project = json!({
            "job_info": { "name": format!("job-{id}"), "project_id": 1, "project_name": "p" },
            "git_info": { "repo_url": "http://example.org/group/p.git", "sha": "0123456789abcdef", "ref": "main", "ref_type": "branch" },
        });
        harness.push(id, &[&script], &project);
    }

    /// Checks that the job was assigned, started and reported once, and that its log is complete.
    async fn check(self, harness: &Harness, id: i64) {
        let job = harness.coordinator.wait_for_end(JobId(id)).await;
        let expected = if self.fails { JobStatus::Failed } else { JobStatus::Success };
        assert_eq!((job.status, job.assignments), (expected, 1), "{}\n{}", job.text(), harness.log());
        checks::check_job(harness, JobId(id), &job).unwrap();
        assert_eq!(harness.start_count(JobId(id)), 1, "{}", job.text());
        assert!(job.text().contains(&format!("<{:0>1$}>\n", 0, self.zeros)), "{}", job.text());
    }
}

/// Maximum number of files and directories of one workspace. A job takes the lowest free slot, so some workspaces may
/// be created only after the first measurement.
const WORKSPACE_ENTRIES: usize = 10;

#[derive(Debug)]
struct IdleUsage {
    memory_kib: u64,
    open_files: usize,
    /// Files and directories in the state directory and the workspaces.
    entries: usize,
}

impl IdleUsage {
    /// Waits until no job remains, and measures.
    async fn measure(harness: &Harness) -> Self {
        assert_eq!(harness.leftovers().await, [""; 0]);
        let mut state = 0;
        let is_small = wait_until(|| {
            state = paths_below(harness.path("state"))
                .iter()
                .filter_map(|path| path.metadata().ok())
                .map(|file| file.len())
                .sum();
            state <= MAX_STATE_BYTES
        });
        assert!(
            is_small.await,
            "the state directory still has {state} bytes: {:?}",
            paths_below(harness.path("state"))
        );
        let pids = harness.process_ids();
        assert_eq!(pids.len(), 2, "expected a manager and an agent:\n{}", harness.log());
        let count_open_files = |pid: &i32| std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
        Self {
            memory_kib: pids.iter().map(|pid| resident_kib(*pid)).sum(),
            open_files: pids.iter().map(count_open_files).sum(),
            entries: paths_below(harness.path("state")).len() + paths_below(harness.path("builds")).len(),
        }
    }
}

fn resident_kib(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn paths_below(directory: PathBuf) -> Vec<PathBuf> {
    let (mut found, mut pending) = (Vec::new(), vec![directory]);
    while let Some(directory) = pending.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            pending.extend(entry.file_type().is_ok_and(|kind| kind.is_dir()).then(|| entry.path()));
            found.push(entry.path());
        }
    }
    found
}

/// Runs these jobs while keeping the queue filled. Returns the usage after all jobs have ended.
async fn run_jobs(harness: &Harness, first_seed: u64, first: i64, last: i64) -> IdleUsage {
    for id in first..=last.min(first + OPEN_JOBS - 1) {
        JobScript::from_seed(first_seed, id).push(harness, id);
    }
    for id in first..=last {
        JobScript::from_seed(first_seed, id).check(harness, id).await;
        if id + OPEN_JOBS <= last {
            JobScript::from_seed(first_seed, id + OPEN_JOBS).push(harness, id + OPEN_JOBS);
        }
    }
    let usage = IdleUsage::measure(harness).await;
    println!("after {last} jobs: {usage:?}");
    usage
}

#[tokio::test(flavor = "multi_thread")]
async fn sustained_load_runs_each_job_once_without_resource_growth() {
    let seeds = checks::seeds(8);
    let runs = i64::try_from(seeds.end - seeds.start).unwrap().max(2);
    // The first jobs fill all caches.
    let (warm_up_jobs, all_jobs) = (JOBS * (runs / 4).clamp(1, 2), JOBS * runs);
    let harness = Harness::start(CONCURRENT).await;
    let before = run_jobs(&harness, seeds.start, 1, warm_up_jobs).await;
    let after = run_jobs(&harness, seeds.start, warm_up_jobs + 1, all_jobs).await;
    assert!(
        after.memory_kib <= before.memory_kib + MAX_MEMORY_GROWTH_KIB,
        "memory has grown: {before:?}, then {after:?}"
    );
    // There are never more connections and workspaces than jobs that run at the same time.
    assert!(
        after.open_files <= before.open_files + CONCURRENT,
        "the number of open files has grown: {before:?}, then {after:?}"
    );
    assert!(
        after.entries <= before.entries + CONCURRENT * WORKSPACE_ENTRIES,
        "the number of files on disk has grown: {before:?}, then {after:?}"
    );
    checks::check_all_jobs(&harness, CONCURRENT, (1..=all_jobs).map(JobId)).await;
}
