//! Tests of queued requests, their cancellation, and `max_use_count`.

use std::pin::pin;
use std::task::Poll;

use tokio::time::timeout;

use super::*;
use crate::operator::{OperatorAction, OperatorOutcome};
use crate::types::{LossReason, SlotRequest, TaskKey};

/// Longer than any test.
const LONG: Duration = Duration::from_secs(3600);

/// A `max_use_count` of 0 means no limit.
async fn scaler_with_limits(cloud: &Arc<Cloud>, max_instances: u32, idle_count: u32, max_use_count: u32) -> Scaler {
    let mut config = Config::new(GroupConfig::new("main", max_instances));
    config.max_uses = std::num::NonZeroU32::new(max_use_count);
    let preemptive = idle_count > 0;
    config.policies = Policies::always(IdleTarget { idle_count, idle_time: LONG, preemptive, ..IdleTarget::default() });
    let plugin: Arc<dyn InstanceGroupPort> = Arc::<Cloud>::clone(cloud);
    let store = Box::new(MemoryLedger::default());
    Scaler::start(config, vec![plugin], Arc::new(ReadyWhenReachable), store, &Buckets::default(), || 0).await.unwrap()
}

/// Requirement R014 (docs/requirements.md).
#[tokio::test(start_paused = true)]
async fn canceled_request_releases_its_reservation() {
    let cloud = Cloud::new();
    *cloud.initial_state.lock().unwrap() = InstanceState::Creating;
    let scaler = scaler_with_limits(&cloud, 1, 0, 0).await;
    sleep_seconds(60).await;
    let reservation = scaler.reserve(TaskKey::new("job")).await.unwrap();
    let waiting = tokio::spawn(reservation.acquire(SlotRequest::default(), LONG));
    sleep_seconds(600).await;
    assert!(scaler.reserve(TaskKey::new("next")).await.is_err(), "the only slot must be reserved");
    let keys = async || scaler.status().await.unwrap().waiting.into_iter().map(|waiting| waiting.key);
    assert_eq!(keys().await.collect::<Vec<_>>(), ["job"]);

    let mut capacity_changes = scaler.capacity_changes();
    capacity_changes.mark_unchanged();
    waiting.abort();
    timeout(Duration::from_secs(1), capacity_changes.changed())
        .await
        .expect("the reservation must be released")
        .unwrap();
    assert!(scaler.reserve(TaskKey::new("next")).await.is_ok(), "the slot must be available again");
    assert_eq!(keys().await.count(), 0);
}

/// Returns the value of a counter of `fleeting_taskscaler_task_operations_total`.
fn task_operations(scaler: &Scaler, operation: &str) -> f64 {
    let families = scaler.metrics().families();
    let name = "fleeting_taskscaler_task_operations_total";
    let counters = families.iter().find(|family| family.name() == name).unwrap();
    let counters = counters.get_metric().iter();
    let matching = counters.filter(|metric| metric.get_label().iter().any(|label| label.value() == operation));
    matching.map(|metric| metric.get_counter().get_value()).sum()
}

#[tokio::test(start_paused = true)]
async fn request_that_times_out_counts_as_unreserved_once() {
    let cloud = Cloud::new();
    *cloud.initial_state.lock().unwrap() = InstanceState::Creating;
    let scaler = scaler_with_limits(&cloud, 1, 0, 0).await;
    let acquire = scaler.admit(TaskKey::new("job")).acquire(SlotRequest::default(), Duration::from_secs(10));
    assert!(matches!(acquire.await, Err(AcquireError::Timeout { .. })));
    assert_eq!(scaler.status().await.unwrap().waiting.len(), 0);
    assert_eq!((task_operations(&scaler, "acquire_timeout"), task_operations(&scaler, "unreserve")), (1.0, 1.0));
}

#[tokio::test(start_paused = true)]
async fn lease_reports_a_loss_that_the_same_batch_of_commands_caused() {
    let cloud = Cloud::new();
    let scaler = scaler_with_limits(&cloud, 1, 1, 0).await;
    sleep_seconds(60).await;
    let (id, delete) = (cloud.ids().remove(0), OperatorAction::Delete { force: true });
    // Both futures send their command before the scaler's task runs.
    let (lease, outcome) = tokio::join!(
        scaler.admit(TaskKey::new("job")).acquire(SlotRequest::default(), LONG),
        scaler.apply_operator_action(GroupId(0), Some(id), delete, "ann".to_owned()),
    );
    assert_eq!(outcome, Some(Ok(OperatorOutcome::Deleting { jobs: 1 })));
    let loss = timeout(Duration::from_secs(60), lease.unwrap().lost()).await.expect("the lease must report the loss");
    assert_eq!(loss, LossReason::Operator { by: "ann".to_owned() });
}

/// Returns the number of jobs on each instance, in order of first use (requirement R037).
async fn run_jobs(max_use_count: u32, jobs: usize) -> Vec<usize> {
    let cloud = Cloud::new();
    let scaler = scaler_with_limits(&cloud, 1, 0, max_use_count).await;
    let mut used: Vec<(InstanceId, usize)> = Vec::new();
    for job in 0..jobs {
        let admitted = scaler.admit(TaskKey::new(job.to_string()));
        let lease = admitted.acquire(SlotRequest::default(), LONG).await.unwrap();
        match used.last_mut() {
            Some((instance, uses)) if instance == lease.instance() => *uses += 1,
            _ => used.push((lease.instance().clone(), 1)),
        }
    }
    used.into_iter().map(|(_, uses)| uses).collect()
}

#[tokio::test(start_paused = true)]
async fn instance_runs_exactly_max_use_count_jobs() {
    assert_eq!(run_jobs(1, 3).await, [1, 1, 1]);
    assert_eq!(run_jobs(5, 12).await, [5, 5, 2]);
    assert_eq!(run_jobs(0, 12).await, [12], "without a limit");
}

/// Requirement R039 (docs/requirements.md).
#[tokio::test(start_paused = true)]
async fn acquire_queues_demand_and_creates_no_instance_itself() {
    let cloud = Cloud::new();
    let scaler = scaler_with_limits(&cloud, 10, 0, 0).await;
    sleep_seconds(60).await;
    let mut acquire = pin!(scaler.admit(TaskKey::new("job")).acquire(SlotRequest::default(), LONG));
    let is_waiting = std::future::poll_fn(|context| Poll::Ready(acquire.as_mut().poll(context).is_pending())).await;
    assert!(is_waiting);
    assert_eq!(cloud.created.load(Ordering::Relaxed), 0, "the request itself must create no instance");
    assert_eq!(scaler.status().await.unwrap().waiting.len(), 1, "the scaler must have the demand in its queue");
    acquire.await.unwrap();
    sleep_seconds(60).await;
    assert_eq!(cloud.created.load(Ordering::Relaxed), 1, "the job must get one instance, without an idle one");
}

/// Requirement R039 (docs/requirements.md).
#[tokio::test(start_paused = true)]
async fn idle_instances_are_created_without_a_request() {
    let cloud = Cloud::new();
    let scaler = scaler_with_limits(&cloud, 10, 3, 0).await;
    sleep_seconds(60).await;
    assert_eq!((cloud.created.load(Ordering::Relaxed), states(&scaler).await), (3, vec!["ready".to_owned(); 3]));
}
