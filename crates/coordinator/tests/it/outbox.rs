//! The outbox: events about each change of a job.

#![expect(clippy::expect_used, reason = "a failure in a helper fails its test")]

use muster_coordinator::outbox::{JobChange, JobEvent};
use muster_job::{FailureReason, JobId, JobStatus};

use crate::support::{Harness, job};

async fn all_events(harness: &Harness) -> Vec<JobEvent> {
    harness.coordinator.events_after(0, 1000).await.expect("failed to read")
}

fn event_types(events: &[JobEvent], job: JobId) -> Vec<&'static str> {
    let of_job = events.iter().filter(|event| event.job == job);
    of_job
        .map(|event| match event.change {
            JobChange::Created { .. } => "created",
            JobChange::Queued => "queued",
            JobChange::Assigned { .. } => "assigned",
            JobChange::Accepted => "accepted",
            JobChange::Ended { .. } => "ended",
            JobChange::Replaced { .. } => "replaced",
            JobChange::StatusChanged { .. } => "status_changed",
        })
        .collect()
}

#[tokio::test]
async fn events_report_all_changes_of_a_job_in_order() {
    let harness = Harness::open().await;
    let manager = harness.manager().await;
    let mut retried = job("a");
    retried.retry.max = 1;
    let id = harness.create(vec![vec![retried], vec![job("b")]]).await;
    let first = manager.next_job().await;
    manager.report_running(&first).await;
    manager.fail(&first, "script_failure", Some(3)).await;
    let retry = manager.next_job().await;
    manager.succeed(&retry).await;
    let second = manager.next_job().await;
    harness.coordinator.cancel_pipeline(id).await.expect("the pipeline does not exist");
    manager.fail(&second, "job_canceled", None).await;

    let events = all_events(&harness).await;
    let sequences: Vec<u64> = events.iter().map(|event| event.sequence).collect();
    assert!(sequences.is_sorted_by(|before, after| before < after), "{sequences:?}");
    assert_eq!(event_types(&events, first.id), ["created", "queued", "assigned", "accepted", "ended", "replaced"]);
    assert_eq!(event_types(&events, retry.id), ["created", "queued", "assigned", "accepted", "ended"]);
    // The cancellation moves the job to `canceling`. The job ends when its manager reports.
    assert_eq!(
        event_types(&events, second.id),
        ["created", "queued", "assigned", "status_changed", "accepted", "ended"]
    );
    let ends = events.iter().filter_map(|event| match &event.change {
        JobChange::Ended { status, reason, exit_code } => Some((event.job, *status, *reason, *exit_code)),
        _ => None,
    });
    let failed = (first.id, JobStatus::Failed, Some(FailureReason::ScriptFailure), Some(3));
    let expected = [failed, (retry.id, JobStatus::Success, None, None), (second.id, JobStatus::Canceled, None, None)];
    assert_eq!(ends.collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn events_survive_a_kill_until_they_are_acknowledged() {
    let before = Harness::open().await;
    let manager = before.manager().await;
    before.create(vec![vec![job("a")], vec![job("b")]]).await;
    let assigned = manager.next_job().await;
    let after = before.restart_after_kill().await;
    let events = all_events(&after).await;
    assert_eq!(events, all_events(&before).await, "a kill must lose no events");
    assert_eq!(event_types(&events, assigned.id), ["created", "queued", "assigned"]);
    let last = events.last().expect("no event").sequence;
    after.coordinator.acknowledge_events(last).await.expect("was not acknowledged");
    assert!(all_events(&after).await.is_empty());
    manager.connected_to(&after).succeed(&assigned).await;
    let later = all_events(&after).await;
    assert!(later.iter().all(|event| event.sequence > last), "numbers must not be reused: {later:?}");
    assert_eq!(event_types(&later, assigned.id), ["accepted", "ended"]);
    assert_eq!(after.coordinator.events_after(last, 1).await.expect("failed to read"), later[..1]);
}

#[tokio::test]
async fn job_that_is_not_accepted_is_reported_as_queued_again() {
    let harness = Harness::open().await;
    let manager = harness.manager().await;
    harness.create(vec![vec![job("a")]]).await;
    let silent = manager.next_job().await;
    harness.clock.advance(std::time::Duration::from_secs(60));
    let second = manager.next_job().await;
    assert_eq!((silent.id, silent.token == second.token), (second.id, false));
    let events = all_events(&harness).await;
    assert_eq!(event_types(&events, second.id), ["created", "queued", "assigned", "queued", "assigned"]);
    let numbers = events.iter().filter_map(|event| match event.change {
        JobChange::Assigned { assignment, .. } => Some(assignment),
        _ => None,
    });
    assert_eq!(numbers.collect::<Vec<_>>(), [1, 2]);
}

fn status_from_events(events: &[JobEvent], job: JobId) -> Option<JobStatus> {
    events.iter().rev().filter(|event| event.job == job).find_map(|event| match event.change {
        JobChange::Created { .. } => Some(JobStatus::Created),
        JobChange::Queued => Some(JobStatus::Pending),
        JobChange::Assigned { .. } => Some(JobStatus::Running),
        JobChange::Ended { status, .. } => Some(status),
        JobChange::StatusChanged { to } => Some(to),
        JobChange::Accepted | JobChange::Replaced { .. } => None,
    })
}

#[tokio::test]
async fn events_and_rows_agree_after_a_kill() {
    let harness = Harness::open().await;
    let manager = harness.manager().await;
    let (mut retried, mut manual) = (job("a"), job("c"));
    retried.retry.max = 1;
    manual.when = muster_pipeline::model::When::Manual;
    let id = harness.create(vec![vec![retried, manual], vec![job("b")]]).await;
    let check_agreement = async || {
        let restarted = harness.restart_after_kill().await;
        let events = all_events(&restarted).await;
        for row in restarted.view(id).await.jobs {
            assert_eq!(status_from_events(&events, row.id), Some(row.status), "job {} (`{}`)", row.id, row.name);
        }
        restarted.coordinator.shutdown().await;
    };
    check_agreement().await;
    let first = manager.next_job().await;
    check_agreement().await;
    manager.fail(&first, "script_failure", Some(1)).await;
    check_agreement().await;
    let retry = manager.next_job().await;
    manager.report_running(&retry).await;
    check_agreement().await;
    manager.succeed(&retry).await;
    check_agreement().await;
    harness.coordinator.cancel_pipeline(id).await.expect("the pipeline does not exist");
    check_agreement().await;
}

/// The option exists because the events would fill the disk if no reader acknowledges them.
#[tokio::test]
async fn no_events_are_stored_without_the_option() {
    let harness = Harness::with(|options| options.write_job_events = false).await;
    let manager = harness.manager().await;
    harness.create(vec![vec![job("a")]]).await;
    manager.succeed(&manager.next_job().await).await;
    assert!(all_events(&harness).await.is_empty());
}
