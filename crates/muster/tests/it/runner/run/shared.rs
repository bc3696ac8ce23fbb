//! Limits that all `[[runners]]` entries of one manager share.

use muster_job::{JobId, JobStatus};

use super::bench::Bench;

const ENTRIES: usize = 3;

/// R149: with three entries and `concurrent = 3`, at most three jobs run, of any entries.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_limits_the_jobs_of_all_entries_together() {
    let bench = Bench::start(ENTRIES).await;
    let entries: String =
        (0..ENTRIES).map(|which| bench.entry(which).replace("executor", "request_concurrency = 4\nexecutor")).collect();
    bench.configure(&format!("concurrent = 3\ncheck_interval = 1\n{entries}"));
    // Three jobs for each entry, so that each entry could reach `concurrent` alone.
    let mut waiting: Vec<(usize, i64)> =
        (0..ENTRIES).flat_map(|which| (1..=3).map(move |n| (which, i64::try_from(which).unwrap() * 10 + n))).collect();
    for (which, id) in &waiting {
        bench.push(*which, *id);
    }
    let run = bench.run();
    let mut most = 0;
    while !waiting.is_empty() {
        let running = crate::process::until(async || {
            let running: Vec<_> =
                waiting.iter().copied().filter(|(which, id)| has_begun(&bench, *which, *id)).collect();
            assert!(running.len() <= 3, "more than `concurrent`: {running:?}\n{}", run.log());
            // All slots are in use while there are jobs for them.
            if running.len() == waiting.len().min(3) {
                Ok(running)
            } else {
                Err(format!("{running:?} of {waiting:?}\n{}", run.log()))
            }
        })
        .await;
        most = most.max(running.len());
        let (which, id) = running[0];
        bench.let_go(id);
        assert_eq!(bench.ended(which, id).await.status, JobStatus::Success);
        waiting.retain(|job| *job != (which, id));
    }
    assert_eq!(most, 3);
}

fn has_begun(bench: &Bench, which: usize, id: i64) -> bool {
    bench.coordinator(which).job(JobId(id)).is_some_and(|job| job.text().contains("begun\n"))
}
