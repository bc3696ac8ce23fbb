//! Limits that all `[[runners]]` entries of one manager share.

use muster_job::{JobId, JobStatus};

use super::harness::Harness;

const ENTRIES: usize = 3;

/// Requirement R149.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_limits_the_jobs_of_all_entries_together() {
    let harness = Harness::start(ENTRIES).await;
    let entries: String = (0..ENTRIES)
        .map(|coordinator_index| {
            harness.entry(coordinator_index).replace("executor", "request_concurrency = 4\nexecutor")
        })
        .collect();
    harness.configure(&format!("concurrent = 3\ncheck_interval = 1\n{entries}"));
    // Three jobs for each entry, so that each entry could reach `concurrent` alone.
    let mut unfinished: Vec<(usize, i64)> = (0..ENTRIES)
        .flat_map(|coordinator_index| {
            (1..=3).map(move |n| (coordinator_index, i64::try_from(coordinator_index).unwrap() * 10 + n))
        })
        .collect();
    for (coordinator_index, id) in &unfinished {
        harness.push(*coordinator_index, *id);
    }
    let run = harness.run();
    let mut max_running = 0;
    while !unfinished.is_empty() {
        let running = crate::process::until(async || {
            let running: Vec<_> = unfinished
                .iter()
                .copied()
                .filter(|(coordinator_index, id)| has_begun(&harness, *coordinator_index, *id))
                .collect();
            assert!(running.len() <= 3, "at most `concurrent` jobs may run: {running:?}\n{}", run.log());
            // All slots must be in use while enough jobs remain.
            if running.len() == unfinished.len().min(3) {
                Ok(running)
            } else {
                Err(format!("{running:?} of {unfinished:?}\n{}", run.log()))
            }
        })
        .await;
        max_running = max_running.max(running.len());
        let (coordinator_index, id) = running[0];
        harness.release_job(id);
        assert_eq!(harness.wait_for_end(coordinator_index, id).await.status, JobStatus::Success);
        unfinished.retain(|job| *job != (coordinator_index, id));
    }
    assert_eq!(max_running, 3);
}

fn has_begun(harness: &Harness, coordinator_index: usize, id: i64) -> bool {
    harness.coordinator(coordinator_index).job(JobId(id)).is_some_and(|job| job.text().contains("begun\n"))
}
