//! Tests of GitLab Runner's metrics for autoscaled machines.

use std::num::NonZeroU32;

use super::*;
use crate::types::{SlotRequest, TaskKey};

const STATES: &str = "gitlab_runner_autoscaling_machine_states";
const CREATION: &str = "gitlab_runner_autoscaling_machine_creation_duration_seconds";

/// Returns the states whose value is not 0. Panics unless all six states have a value.
fn nonzero_states(scaler: &Scaler) -> Vec<(String, f64)> {
    let families = scaler.metrics().families();
    let states = families
        .iter()
        .find(|family| family.name() == STATES)
        .unwrap_or_else(|| panic!("the metric {STATES} does not exist"));
    assert_eq!(states.get_metric().len(), 6, "{states:?}");
    let states = states.get_metric().iter();
    let states = states.map(|metric| (metric.get_label()[0].value().to_owned(), metric.get_gauge().get_value()));
    states.filter(|(_, value)| *value != 0.0).collect()
}

/// Returns the number of durations, their sum in seconds, and the buckets' upper bounds.
fn creations(scaler: &Scaler) -> (u64, f64, Vec<f64>) {
    let families = scaler.metrics().families();
    let creation = families
        .iter()
        .find(|family| family.name() == CREATION)
        .unwrap_or_else(|| panic!("the metric {CREATION} does not exist"));
    let histogram = creation.get_metric()[0].get_histogram();
    let bounds = histogram.get_bucket().iter().map(|bucket| bucket.upper_bound());
    (histogram.get_sample_count(), histogram.get_sample_sum(), bounds.collect())
}

fn state(name: &str, value: f64) -> Vec<(String, f64)> {
    vec![(name.to_owned(), value)]
}

async fn single_use_scaler(cloud: &Arc<Cloud>) -> Scaler {
    let mut config = Config::new(GroupConfig::new("main", 1));
    config.max_uses = NonZeroU32::new(1);
    let plugin: Arc<dyn InstanceGroupPort> = Arc::<Cloud>::clone(cloud);
    let store = Box::new(MemoryLedger::default());
    Scaler::start(config, vec![plugin], Arc::new(ReadyWhenReachable), store, &Buckets::default(), || 0).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn machine_state_follows_its_instance() {
    let cloud = Cloud::new();
    *cloud.initial_state.lock().unwrap() = InstanceState::Creating;
    cloud.ignores_deletions.store(true, Ordering::Relaxed);
    let scaler = single_use_scaler(&cloud).await;
    sleep_seconds(1).await;
    assert_eq!(nonzero_states(&scaler), []);

    let reservation = scaler.reserve(TaskKey::new("job")).await.unwrap();
    let waiting = tokio::spawn(reservation.acquire(SlotRequest::default(), Duration::from_secs(600)));
    sleep_seconds(45).await;
    assert_eq!(nonzero_states(&scaler), state("creating", 1.0));
    assert_eq!(creations(&scaler).0, 0, "the instance is not created yet");

    cloud.machines.lock().unwrap().values_mut().for_each(|state| *state = InstanceState::Running);
    let lease = waiting.await.unwrap().unwrap();
    assert_eq!(nonzero_states(&scaler), state("used", 1.0));
    let (count, sum, bounds) = creations(&scaler);
    assert_eq!((count, (45.0..=47.0).contains(&sum)), (1, true), "45 s, and at most one list interval of 2 s: {sum}");
    assert_eq!((bounds.len(), bounds[0], bounds[1], bounds[9]), (10, 30.0, 37.5, 30.0 * 1.25_f64.powi(9)));

    drop(lease);
    sleep_seconds(1).await;
    assert_eq!(nonzero_states(&scaler), state("removing", 1.0));
    // Ten delete calls, one per minute, have no effect.
    sleep_seconds(600).await;
    assert_eq!(nonzero_states(&scaler), state("stuck-on-removing", 1.0));
    cloud.machines.lock().unwrap().clear();
    sleep_seconds(61).await;
    assert_eq!(nonzero_states(&scaler), []);
}

#[tokio::test(start_paused = true)]
async fn machine_without_job_is_idle() {
    let cloud = Cloud::new();
    let scaler = scaler(&cloud, 3).await;
    sleep_seconds(60).await;
    assert_eq!(nonzero_states(&scaler), state("idle", 3.0));
    assert_eq!(creations(&scaler).0, 3);
}
