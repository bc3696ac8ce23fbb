//! Soak test with a queue that is never empty: each job ends exactly once with the result of its script, and the resources that the
//! manager and its agent hold do not grow with the number of jobs. `benches/sustained` measures the speed.
//!
//! More of it: `MUSTER_TEST_RUNS=200 cargo test -p muster-tests --test proofs sustained -- --nocapture`

use std::path::PathBuf;

use muster_job::{JobId, JobStatus};
use muster_tests::bench::Bench;
use muster_tests::process::until;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

use crate::life;

const CONCURRENT: usize = 8;
/// Number of jobs of one seed.
const JOBS: i64 = 50;
/// Number of jobs that are queued or run.
const OPEN: i64 = 24;
/// Maximum growth of the memory of manager and agent, after any number of jobs.
const MEMORY_KIB: u64 = 4 * 1024;
/// Maximum size of the state directory without jobs.
const STATE_BYTES: u64 = 256 * 1024;

/// Output and exit status of a job.
#[derive(Debug, Clone, Copy)]
struct Work {
    zeros: usize,
    fails: bool,
}

impl Work {
    /// Returns the output and exit status of a job, from the seed of its run.
    fn of(first_seed: u64, id: i64) -> Self {
        let run = u64::try_from((id - 1) / JOBS).unwrap();
        let mut rng = StdRng::seed_from_u64((first_seed + run).wrapping_mul(1 << 20) + id.unsigned_abs());
        Self { zeros: rng.random_range(1..4000), fails: rng.random_bool(0.1) }
    }

    fn push(self, bench: &Bench, id: i64) {
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
        bench.push(id, &[&script], &project);
    }

    /// Checks that the job was assigned, started and reported once, and that its log is complete.
    async fn check(self, bench: &Bench, id: i64) {
        let job = bench.coordinator.wait_for_end(JobId(id)).await;
        let expected = if self.fails { JobStatus::Failed } else { JobStatus::Success };
        assert_eq!((job.status, job.assignments), (expected, 1), "{}\n{}", job.text(), bench.log());
        life::check(bench, JobId(id), &job).unwrap();
        assert_eq!(bench.starts(JobId(id)), 1, "{}", job.text());
        assert!(job.text().contains(&format!("<{:0>1$}>\n", 0, self.zeros)), "{}", job.text());
    }
}

/// Resources that manager and agent hold while they are idle.
#[derive(Debug)]
struct Held {
    memory_kib: u64,
    /// Number of open files.
    files: usize,
    /// Number of files in the state directory and the workspaces.
    entries: usize,
}

impl Held {
    async fn now(bench: &Bench) -> Self {
        assert_eq!(bench.leftovers().await, [""; 0]);
        let mut state = 0;
        let is_small = until(|| {
            state =
                below(bench.path("state")).iter().filter_map(|path| path.metadata().ok()).map(|file| file.len()).sum();
            state <= STATE_BYTES
        });
        assert!(is_small.await, "{state} bytes stay in the state directory: {:?}", below(bench.path("state")));
        let own = bench.own();
        assert_eq!(own.len(), 2, "a manager and an agent:\n{}", bench.log());
        let open = |pid: &i32| std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
        Self {
            memory_kib: own.iter().map(|pid| resident_kib(*pid)).sum(),
            files: own.iter().map(open).sum(),
            entries: below(bench.path("state")).len() + below(bench.path("builds")).len(),
        }
    }
}

fn resident_kib(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Returns all files and directories below a directory.
fn below(folder: PathBuf) -> Vec<PathBuf> {
    let (mut found, mut left) = (Vec::new(), vec![folder]);
    while let Some(folder) = left.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            left.extend(entry.file_type().is_ok_and(|kind| kind.is_dir()).then(|| entry.path()));
            found.push(entry.path());
        }
    }
    found
}

/// Queues these jobs so that the queue is never empty. Returns the resources that are held when all have ended.
async fn load(bench: &Bench, first_seed: u64, first: i64, last: i64) -> Held {
    for id in first..=last.min(first + OPEN - 1) {
        Work::of(first_seed, id).push(bench, id);
    }
    for id in first..=last {
        Work::of(first_seed, id).check(bench, id).await;
        if id + OPEN <= last {
            Work::of(first_seed, id + OPEN).push(bench, id + OPEN);
        }
    }
    let held = Held::now(bench).await;
    println!("after {last} jobs: {held:?}");
    held
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sustained_load_ends_each_job_once_and_nothing_grows_with_the_number_of_jobs() {
    let seeds = life::seeds(8);
    let runs = i64::try_from(seeds.end - seeds.start).unwrap().max(2);
    // The first two runs fill all caches.
    let (warm, all) = (JOBS * (runs / 4).clamp(1, 2), JOBS * runs);
    let bench = Bench::start(CONCURRENT).await;
    let before = load(&bench, seeds.start, 1, warm).await;
    let after = load(&bench, seeds.start, warm + 1, all).await;
    assert!(after.memory_kib <= before.memory_kib + MEMORY_KIB, "memory grows: {before:?}, then {after:?}");
    // There are never more connections and workspaces than jobs that run at the same time.
    assert!(after.files <= before.files + CONCURRENT, "open files grow: {before:?}, then {after:?}");
    assert!(after.entries <= before.entries + CONCURRENT, "files on disk grow: {before:?}, then {after:?}");
    life::check_world(&bench, CONCURRENT, (1..=all).map(JobId)).await;
}
