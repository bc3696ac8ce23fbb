//! Tests of GitLab Runner's metrics for autoscaled machines.

use std::num::NonZeroU32;

use super::*;
use crate::types::{SlotRequest, TaskKey};

const STATES: &str = "gitlab_runner_autoscaling_machine_states";
const CREATION: &str = "gitlab_runner_autoscaling_machine_creation_duration_seconds";

/// Returns the machine states whose value is not 0, after checking that all six states have a value.
fn machines(scaler: &Scaler) -> Vec<(String, f64)> {
    let families = scaler.metrics().families();
    let states = families.iter().find(|family| family.name == STATES).unwrap_or_else(|| panic!("no {STATES}"));
    assert_eq!(states.samples.len(), 6, "{states:?}");
    let states = states.samples.iter().map(|sample| (sample.labels[0].1.clone(), sample.value));
    states.filter(|(_, value)| *value != 0.0).collect()
}

/// Returns the number of observed durations, their sum in seconds, and the finite upper bounds of the buckets.
fn creations(scaler: &Scaler) -> (u64, f64, Vec<f64>) {
    let families = scaler.metrics().families();
    let creation = families.iter().find(|family| family.name == CREATION).unwrap_or_else(|| panic!("no {CREATION}"));
    let sample = &creation.samples[0];
    let bounds = sample.buckets.iter().map(|(bound, _)| *bound).filter(|bound| bound.is_finite());
    (sample.buckets.last().unwrap().1, sample.value, bounds.collect())
}

fn state(name: &str, value: f64) -> Vec<(String, f64)> {
    vec![(name.to_owned(), value)]
}

/// Starts a scaler whose only instance is deleted after one job.
async fn one_use(cloud: &Arc<Cloud>) -> Scaler {
    let mut config = Config::new(GroupConfig::new("main", 1));
    config.max_uses = NonZeroU32::new(1);
    let host: Arc<dyn InstanceGroupPort> = Arc::<Cloud>::clone(cloud);
    let store = Box::new(MemoryLedger::default());
    Scaler::start(config, vec![host], Arc::new(ReadyWhenReachable), store, &Buckets::default(), || 0).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_machine_is_creating_then_used_then_removing_then_stuck() {
    let cloud = Cloud::new();
    *cloud.born.lock().unwrap() = InstanceState::Creating;
    cloud.keeps.store(true, Ordering::Relaxed);
    let scaler = one_use(&cloud).await;
    seconds(1).await;
    assert_eq!(machines(&scaler), []);

    let lease = scaler.reserve(TaskKey::new("job")).await.unwrap();
    let waiting = tokio::spawn(lease.acquire(SlotRequest::default(), Duration::from_secs(600)));
    seconds(45).await;
    assert_eq!(machines(&scaler), state("creating", 1.0));
    assert_eq!(creations(&scaler).0, 0, "it is not created yet");

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
async fn a_machine_without_a_job_is_idle() {
    let cloud = Cloud::new();
    let scaler = scaler(&cloud, 3).await;
    seconds(60).await;
    assert_eq!(machines(&scaler), state("idle", 3.0));
    assert_eq!(creations(&scaler).0, 3);
}
