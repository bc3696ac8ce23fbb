//! The outbox: the life of jobs as events.

#![expect(clippy::expect_used, reason = "a failure in a helper fails its test")]

use muster_coordinator::outbox::{JobChange, JobEvent};
use muster_job::{FailureReason, JobId, JobStatus};

use crate::support::{Bench, job};

async fn all(bench: &Bench) -> Vec<JobEvent> {
    bench.coordinator.events_after(0, 1000).await.expect("readable")
}

/// Returns the types of the events of a job, in order.
fn life(events: &[JobEvent], job: JobId) -> Vec<&'static str> {
    let of_job = events.iter().filter(|event| event.job == job);
    of_job
        .map(|event| match event.change {
            JobChange::Created { .. } => "created",
            JobChange::Queued => "queued",
            JobChange::Assigned { .. } => "assigned",
            JobChange::Accepted => "accepted",
            JobChange::Ended { .. } => "ended",
            JobChange::Replaced { .. } => "replaced",
            JobChange::Moved { .. } => "moved",
        })
        .collect()
}

#[tokio::test]
async fn events_describe_the_life_of_a_job_in_order() {
    let bench = Bench::open().await;
    let manager = bench.manager().await;
    let mut retried = job("a");
    retried.retry.max = 1;
    let id = bench.create(vec![vec![retried], vec![job("b")]]).await;
    let first = manager.take().await;
    manager.running(&first).await;
    manager.fail(&first, "script_failure", Some(3)).await;
    let again = manager.take().await;
    manager.succeed(&again).await;
    let second = manager.take().await;
    bench.coordinator.cancel_pipeline(id).await.expect("known");
    manager.fail(&second, "job_canceled", None).await;

    let events = all(&bench).await;
    let sequences: Vec<u64> = events.iter().map(|event| event.sequence).collect();
    assert!(sequences.is_sorted_by(|before, after| before < after), "{sequences:?}");
    assert_eq!(life(&events, first.id), ["created", "queued", "assigned", "accepted", "ended", "replaced"]);
    assert_eq!(life(&events, again.id), ["created", "queued", "assigned", "accepted", "ended"]);
    // The cancellation moves the job to `canceling`. The job ends when its manager reports.
    assert_eq!(life(&events, second.id), ["created", "queued", "assigned", "moved", "accepted", "ended"]);
    let ends = events.iter().filter_map(|event| match &event.change {
        JobChange::Ended { status, reason, exit_code } => Some((event.job, *status, *reason, *exit_code)),
        _ => None,
    });
    let failed = (first.id, JobStatus::Failed, Some(FailureReason::ScriptFailure), Some(3));
    let expected = [failed, (again.id, JobStatus::Success, None, None), (second.id, JobStatus::Canceled, None, None)];
    assert_eq!(ends.collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn events_survive_a_kill_until_they_are_acknowledged() {
    let before = Bench::open().await;
    let manager = before.manager().await;
    before.create(vec![vec![job("a")], vec![job("b")]]).await;
    let taken = manager.take().await;
    let after = before.restart_after_kill().await;
    let events = all(&after).await;
    assert_eq!(events, all(&before).await, "a kill loses none");
    assert_eq!(life(&events, taken.id), ["created", "queued", "assigned"]);
    let last = events.last().expect("an event").sequence;
    after.coordinator.acknowledge_events(last).await.expect("acknowledged");
    assert!(all(&after).await.is_empty());
    manager.at(&after).succeed(&taken).await;
    let later = all(&after).await;
    assert!(later.iter().all(|event| event.sequence > last), "numbers are not given again: {later:?}");
    assert_eq!(life(&later, taken.id), ["accepted", "ended"]);
    assert_eq!(after.coordinator.events_after(last, 1).await.expect("readable"), later[..1]);
}

#[tokio::test]
async fn unaccepted_job_is_queued_again() {
    let bench = Bench::open().await;
    let manager = bench.manager().await;
    bench.create(vec![vec![job("a")]]).await;
    let silent = manager.take().await;
    bench.clock.advance(std::time::Duration::from_secs(60));
    let again = manager.take().await;
    assert_eq!((silent.id, silent.token == again.token), (again.id, false));
    let events = all(&bench).await;
    assert_eq!(life(&events, again.id), ["created", "queued", "assigned", "queued", "assigned"]);
    let numbers = events.iter().filter_map(|event| match event.change {
        JobChange::Assigned { assignment, .. } => Some(assignment),
        _ => None,
    });
    assert_eq!(numbers.collect::<Vec<_>>(), [1, 2]);
}

/// Returns the status of a job, derived from its events.
fn status_from_events(events: &[JobEvent], job: JobId) -> Option<JobStatus> {
    events.iter().rev().filter(|event| event.job == job).find_map(|event| match event.change {
        JobChange::Created { .. } => Some(JobStatus::Created),
        JobChange::Queued => Some(JobStatus::Pending),
        JobChange::Assigned { .. } => Some(JobStatus::Running),
        JobChange::Ended { status, .. } => Some(status),
        JobChange::Moved { to } => Some(to),
        JobChange::Accepted | JobChange::Replaced { .. } => None,
    })
}

#[tokio::test]
async fn events_and_rows_agree_after_a_kill() {
    let bench = Bench::open().await;
    let manager = bench.manager().await;
    let (mut retried, mut asked) = (job("a"), job("c"));
    retried.retry.max = 1;
    asked.when = muster_pipeline::model::When::Manual;
    let id = bench.create(vec![vec![retried, asked], vec![job("b")]]).await;
    let agree = async || {
        let killed = bench.restart_after_kill().await;
        let events = all(&killed).await;
        for row in killed.view(id).await.jobs {
            assert_eq!(status_from_events(&events, row.id), Some(row.status), "job {} (`{}`)", row.id, row.name);
        }
        killed.coordinator.shutdown().await;
    };
    agree().await;
    let first = manager.take().await;
    agree().await;
    manager.fail(&first, "script_failure", Some(1)).await;
    agree().await;
    let again = manager.take().await;
    manager.running(&again).await;
    agree().await;
    manager.succeed(&again).await;
    agree().await;
    bench.coordinator.cancel_pipeline(id).await.expect("known");
    agree().await;
}

/// Without a reader that acknowledges them, events would fill the disk.
#[tokio::test]
async fn no_events_are_stored_without_the_option() {
    let bench = Bench::with(|options| options.write_job_events = false).await;
    let manager = bench.manager().await;
    bench.create(vec![vec![job("a")]]).await;
    manager.succeed(&manager.take().await).await;
    assert!(all(&bench).await.is_empty());
}
