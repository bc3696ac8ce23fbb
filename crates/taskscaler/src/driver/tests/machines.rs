//! Tests of GitLab Runner's metrics for autoscaled machines.

use std::num::NonZeroU32;

use super::*;
use crate::types::{SlotRequest, TaskKey};

const STATES: &str = "gitlab_runner_autoscaling_machine_states";
const CREATION: &str = "gitlab_runner_autoscaling_machine_creation_duration_seconds";

/// Returns the machine states whose value is not 0, after checking that all six states have a value.
fn machines(scaler: &Scaler) -> Vec<(String, f64)> {
    let families = scaler.metrics().families();
    let states = families.iter().find(|family| family.name() == STATES).unwrap_or_else(|| panic!("no {STATES}"));
    assert_eq!(states.get_metric().len(), 6, "{states:?}");
    let states = states.get_metric().iter();
    let states = states.map(|metric| (metric.get_label()[0].value().to_owned(), metric.get_gauge().get_value()));
    states.filter(|(_, value)| *value != 0.0).collect()
}

/// Returns the number of observed durations, their sum in seconds, and the finite upper bounds of the buckets.
fn creations(scaler: &Scaler) -> (u64, f64, Vec<f64>) {
    let families = scaler.metrics().families();
    let creation = families.iter().find(|family| family.name() == CREATION).unwrap_or_else(|| panic!("no {CREATION}"));
    let histogram = creation.get_metric()[0].get_histogram();
    let bounds = histogram.get_bucket().iter().map(|bucket| bucket.upper_bound());
    (histogram.get_sample_count(), histogram.get_sample_sum(), bounds.collect())
}

fn state(name: &str, value: f64) -> Vec<(String, f64)> {
    vec![(name.to_owned(), value)]
}

/// Starts a scaler whose only instance is deleted after one job.
async fn single_use_scaler(cloud: &Arc<Cloud>) -> Scaler {
    let mut config = Config::new(GroupConfig::new("main", 1));
    config.max_uses = NonZeroU32::new(1);
    let host: Arc<dyn InstanceGroupPort> = Arc::<Cloud>::clone(cloud);
    let store = Box::new(MemoryLedger::default());
    Scaler::start(config, vec![host], Arc::new(ReadyWhenReachable), store, &Buckets::default(), || 0).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn machine_state_follows_its_instance() {
    let cloud = Cloud::new();
    *cloud.initial_state.lock().unwrap() = InstanceState::Creating;
    cloud.ignores_deletions.store(true, Ordering::Relaxed);
    let scaler = single_use_scaler(&cloud).await;
    seconds(1).await;
    assert_eq!(machines(&scaler), []);

    let lease = scaler.reserve(TaskKey::new("job")).await.unwrap();
    let waiting = tokio::spawn(lease.acquire(SlotRequest::default(), Duration::from_secs(600)));
    seconds(45).await;
    assert_eq!(machines(&scaler), state("creating", 1.0));
    assert_eq!(creations(&scaler).0, 0, "not created yet");

    cloud.machines.lock().unwrap().values_mut().for_each(|state| *state = InstanceState::Running);
    let lease = waiting.await.unwrap().unwrap();
    assert_eq!(machines(&scaler), state("used", 1.0));
    let (count, sum, bounds) = creations(&scaler);
    assert_eq!((count, (45.0..=47.0).contains(&sum)), (1, true), "45 s, and at most one list of 2 s: {sum}");
    assert_eq!((bounds.len(), bounds[0], bounds[1], bounds[9]), (10, 30.0, 37.5, 30.0 * 1.25_f64.powi(9)));

    drop(lease);
    seconds(1).await;
    assert_eq!(machines(&scaler), state("removing", 1.0));
    // Ten delete calls without effect, one a minute.
    seconds(600).await;
    assert_eq!(machines(&scaler), state("stuck-on-removing", 1.0));
    cloud.machines.lock().unwrap().clear();
    seconds(61).await;
    assert_eq!(machines(&scaler), []);
}

#[tokio::test(start_paused = true)]
async fn machine_without_job_is_idle() {
    let cloud = Cloud::new();
    let scaler = scaler(&cloud, 3).await;
    seconds(60).await;
    assert_eq!(machines(&scaler), state("idle", 3.0));
    assert_eq!(creations(&scaler).0, 3);
}
