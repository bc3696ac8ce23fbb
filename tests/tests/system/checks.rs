//! A script with a known log, and checks of jobs that ran it.

use muster_job::invariants::{self, LogExtent, Violation};
use muster_job::{JobId, JobStatus};
use muster_runner_api::test_support::Job;
use muster_tests::harness::{Harness, SECRET};
use rand::Rng;
use rand::rngs::StdRng;

/// Returns `MUSTER_TEST_RUNS` consecutive seeds from `MUSTER_TEST_SEED` on.
///
/// The defaults are `default_runs` seeds and a random first seed.
pub(crate) fn seeds(default_runs: u64) -> std::ops::Range<u64> {
    let variable = |name: &str| std::env::var(name).ok().and_then(|value| value.parse().ok());
    let first = variable("MUSTER_TEST_SEED").unwrap_or_else(|| u64::from(rand::random::<u32>()));
    let runs = variable("MUSTER_TEST_RUNS").unwrap_or(default_runs);
    println!("MUSTER_TEST_SEED={first} MUSTER_TEST_RUNS={runs}");
    first..first + runs
}

/// Prints the uptime in nanoseconds. Used on systems whose `date` has no nanoseconds.
const UPTIME: &str = r#"read -r up _ </proc/uptime; echo "${up%.*}${up#*.}0000000""#;

/// Number of lines that a script prints. The number determines the output: the lines have different lengths, and some
/// follow a pause.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lines(u32);

impl Lines {
    pub(crate) fn random(rng: &mut StdRng) -> Self {
        Self(rng.random_range(5..60))
    }

    /// Returns a script that records its start, prints the secret and the lines, and records its end.
    pub(crate) fn script(self) -> String {
        let count = self.0;
        format!(
            "now() {{ case $(date +%N) in *[!0-9]*) {UPTIME} ;; *) date +%s%N ;; esac; }}\n\
             now >> \"$MARKS/started-$CI_JOB_ID\"; echo \"[$SECRET]\"\n\
             i=0; while [ $i -lt {count} ]; do i=$((i + 1)); printf 'line %d %0*d\\n' $i $((i * 7 % 90 + 1)) 0\n\
             [ $((i % 5)) != 0 ] || sleep 0.01; done\n\
             now > \"$MARKS/ended-$CI_JOB_ID\""
        )
    }

    /// Returns the exact output that the trace must contain.
    pub(crate) fn text(self) -> String {
        let lines = (1..=self.0).map(|number| format!("line {number} {:0>1$}\n", 0, number as usize * 7 % 90 + 1));
        format!("[[MASKED]]\n{}", lines.collect::<String>())
    }
}

/// Checks the invariants J1, J2, J3 and J6 (ARCHITECTURE.md) for one finished job.
pub(crate) fn check_job(harness: &Harness, id: JobId, job: &Job) -> Result<(), Violation> {
    invariants::reported_once(id, job.reports().count())?;
    invariants::started_at_most_once(id, harness.start_count(id))?;
    let output = &job.reports().last().unwrap().output;
    let trace = LogExtent { bytes: job.trace.len() as u64, crc32: crc32fast::hash(&job.trace) };
    let checksum =
        output.checksum.as_ref().map(|text| u32::from_str_radix(text.trim_start_matches("crc32:"), 16).unwrap());
    // A manager that has lost its agent has no checksum of the log.
    let log = LogExtent { bytes: output.bytesize.unwrap(), crc32: checksum.unwrap_or(trace.crc32) };
    invariants::trace_equals_log(id, log, trace)?;
    invariants::no_secret(&format!("trace of job {id}"), &job.trace, [SECRET.as_bytes()])
}

pub(crate) fn check_success(harness: &Harness, id: JobId, job: &Job, lines: Lines) {
    assert_eq!(job.status, JobStatus::Success, "{}\n{}", job.text(), harness.log());
    check_job(harness, id, job).unwrap();
    assert_eq!(harness.start_count(id), 1, "{}", job.text());
    assert!(job.text().contains(&lines.text()), "the log differs from the output of the script:\n{}", job.text());
}

/// Checks the invariants J1, J4, J5 and J6 after all jobs have ended.
///
/// Checks J4 only for jobs whose scripts recorded their end.
pub(crate) async fn check_all_jobs(harness: &Harness, concurrent: usize, jobs: impl IntoIterator<Item = JobId>) {
    let (assigned, ended) = harness.coordinator.assigned_and_ended();
    println!("{assigned} jobs assigned, {ended} ended");
    assert_eq!(assigned, ended, "invariant J1: each job is assigned once and ends\n{}", harness.log());
    invariants::no_leftovers(harness.leftovers().await).unwrap();
    for (source, content) in harness.readable_by_others() {
        invariants::no_secret(&source, &content, [SECRET.as_bytes()]).unwrap();
    }
    let read_time = |name: String| std::fs::read_to_string(harness.path(&name)).ok()?.trim().parse::<u128>().ok();
    let spans = jobs.into_iter().filter_map(|id| {
        let ended = read_time(format!("ended-{id}"))?;
        Some((read_time(format!("started-{id}"))?, Some(ended)))
    });
    invariants::at_most(concurrent, spans).unwrap();
}
