//! A job that counts its starts and writes a known log, and checks of its result.

use muster_job::invariants::{self, LogExtent, Violation};
use muster_job::{JobId, JobStatus};
use muster_runner_api::test_support::Job;
use muster_tests::bench::{Bench, SECRET};
use rand::Rng;
use rand::rngs::StdRng;

/// Returns the seeds to run: `MUSTER_TEST_RUNS` of them from `MUSTER_TEST_SEED` on.
///
/// Without these variables, returns `sample` seeds from a random one on.
pub(crate) fn seeds(sample: u64) -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse().ok());
    let first = number("MUSTER_TEST_SEED").unwrap_or_else(|| u64::from(rand::random::<u32>()));
    let runs = number("MUSTER_TEST_RUNS").unwrap_or(sample);
    println!("MUSTER_TEST_SEED={first} MUSTER_TEST_RUNS={runs}");
    first..first + runs
}

/// Output of a script: lines of different length, some of them after a pause.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lines(u32);

impl Lines {
    pub(crate) fn any(rng: &mut StdRng) -> Self {
        Self(rng.random_range(5..60))
    }

    /// Returns a script that records its start, prints the secret, writes the lines and records its end.
    pub(crate) fn script(self) -> String {
        let count = self.0;
        format!(
            "echo \"$(date +%s%N)\" >> \"$MARKS/started-$CI_JOB_ID\"; echo \"[$SECRET]\"\n\
             i=0; while [ $i -lt {count} ]; do i=$((i + 1)); printf 'line %d %0*d\\n' $i $((i * 7 % 90 + 1)) 0\n\
             [ $((i % 5)) != 0 ] || sleep 0.01; done\n\
             date +%s%N > \"$MARKS/ended-$CI_JOB_ID\""
        )
    }

    /// Returns the output as it must be in the trace, byte for byte.
    pub(crate) fn text(self) -> String {
        let lines = (1..=self.0).map(|number| format!("line {number} {:0>1$}\n", 0, number as usize * 7 % 90 + 1));
        format!("[[MASKED]]\n{}", lines.collect::<String>())
    }
}

/// Checks J1, J2, J3 and J6 for one job that has ended.
pub(crate) fn check(bench: &Bench, id: JobId, job: &Job) -> Result<(), Violation> {
    invariants::reported_once(id, job.reports().count())?;
    invariants::started_at_most_once(id, bench.starts(id))?;
    let output = &job.reports().last().unwrap().output;
    let trace = LogExtent { bytes: job.trace.len() as u64, crc32: crc32fast::hash(&job.trace) };
    let told = output.checksum.as_ref().map(|told| u32::from_str_radix(told.trim_start_matches("crc32:"), 16).unwrap());
    // A manager that has lost the agent has no checksum of its log.
    let log = LogExtent { bytes: output.bytesize.unwrap(), crc32: told.unwrap_or(trace.crc32) };
    invariants::trace_is_log(id, log, trace)?;
    invariants::no_secret(&format!("the trace of job {id}"), &job.trace, [SECRET.as_bytes()])
}

/// Checks that a job succeeded, started once, and has its complete log.
pub(crate) fn check_success(bench: &Bench, id: JobId, job: &Job, lines: Lines) {
    assert_eq!(job.status, JobStatus::Success, "{}\n{}", job.text(), bench.log());
    check(bench, id, job).unwrap();
    assert_eq!(bench.starts(id), 1, "{}", job.text());
    assert!(job.text().contains(&lines.text()), "the log is not what the script wrote:\n{}", job.text());
}

/// Checks J1, J4, J5 and J6 for a whole environment in which all jobs have ended.
///
/// J4 is checked for the jobs whose scripts recorded their end.
pub(crate) async fn check_world(bench: &Bench, concurrent: usize, jobs: impl IntoIterator<Item = JobId>) {
    let (assigned, ended) = bench.coordinator.assigned_and_ended();
    println!("{assigned} jobs assigned, {ended} ended");
    assert_eq!(assigned, ended, "each job is assigned once and ends: J1\n{}", bench.log());
    invariants::nothing_left(bench.leftovers().await).unwrap();
    for (place, content) in bench.readable() {
        invariants::no_secret(&place, &content, [SECRET.as_bytes()]).unwrap();
    }
    let read = |name: String| std::fs::read_to_string(bench.path(&name)).ok()?.trim().parse::<u128>().ok();
    let spans = jobs.into_iter().filter_map(|id| {
        let ended = read(format!("ended-{id}"))?;
        Some((read(format!("started-{id}"))?, Some(ended)))
    });
    invariants::at_most(concurrent, spans).unwrap();
}
