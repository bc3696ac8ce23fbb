//! Conformance cases of the provisioner that need a driver. `engine/tests/provisioner.rs` has the others.

use std::num::NonZeroU32;

use super::*;
use crate::types::{SlotRequest, TaskKey};

#[tokio::test]
async fn v01_max_instances_above_plugin_limit_is_rejected() {
    let cloud = Cloud::new();
    cloud.plugin.send_replace(PluginAvailability::Up { max_size: 10 });
    let config = Config::new(GroupConfig::new("main", 20));
    let plugin: Arc<dyn InstanceGroupPort> = Arc::<Cloud>::clone(&cloud);
    let store = Box::new(MemoryLedger::default());
    let error = Scaler::start(config, vec![plugin], Arc::new(ReadyWhenReachable), store, &Buckets::default(), || 0)
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("max_instances is 20, but the plugin supports at most 10"), "{error}");
    assert!(error.ends_with("; lower max_instances, or raise the plugin's limit"), "{error}");
}

/// Returns a scaler whose only instance is being deleted. The deletion has no effect.
async fn scaler_with_deleting_instance(cloud: &Arc<Cloud>) -> Scaler {
    cloud.ignores_deletions.store(true, Ordering::Relaxed);
    let mut config = Config::new(GroupConfig::new("main", 1));
    config.max_uses = NonZeroU32::new(1);
    let plugin: Arc<dyn InstanceGroupPort> = Arc::<Cloud>::clone(cloud);
    let store = Box::new(MemoryLedger::default());
    let scaler = Scaler::start(config, vec![plugin], Arc::new(ReadyWhenReachable), store, &Buckets::default(), || 0)
        .await
        .unwrap();
    let reservation = scaler.admit(TaskKey::new("job"));
    drop(reservation.acquire(SlotRequest::default(), Duration::from_secs(60)).await.unwrap());
    sleep_seconds(1).await;
    assert_eq!(states(&scaler).await, ["deleting"]);
    scaler
}

#[tokio::test(start_paused = true)]
async fn v14_shutdown_waits_for_slow_deletion() {
    let cloud = Cloud::new();
    let scaler = scaler_with_deleting_instance(&cloud).await;
    let shutdown = tokio::spawn(async move { scaler.shutdown(Duration::from_secs(600)).await });
    sleep_seconds(300).await;
    assert!(!shutdown.is_finished(), "the shutdown must wait for the deletion");
    cloud.machines.lock().unwrap().clear();
    assert_eq!(shutdown.await.unwrap().unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn v14_shutdown_returns_remaining_instances_after_timeout() {
    let cloud = Cloud::new();
    cloud.never_stops.store(true, Ordering::Relaxed);
    let scaler = scaler_with_deleting_instance(&cloud).await;
    let start = tokio::time::Instant::now();
    let remaining = scaler.shutdown(Duration::from_secs(600)).await.unwrap();
    assert_eq!(remaining.iter().map(|instance| &*instance.id).collect::<Vec<_>>(), ["i0"]);
    let elapsed = start.elapsed();
    assert!(
        elapsed <= Duration::from_secs(610),
        "must be at most the timeout of 600 s and 10 s for the plugins: {elapsed:?}"
    );
}
