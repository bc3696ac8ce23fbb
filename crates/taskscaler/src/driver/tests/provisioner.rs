//! Conformance cases of the provisioner that concern the driver. `engine/tests/provisioner.rs` has the others.

use std::num::NonZeroU32;

use super::*;
use crate::types::{SlotRequest, TaskKey};

#[tokio::test]
async fn v01_a_limit_beyond_the_plugins_is_refused() {
    let cloud = Cloud::new();
    cloud.plugin.send_replace(HostStatus::Up { max_size: 10 });
    let config = Config::new(GroupConfig::new("main", 20));
    let host: Arc<dyn InstanceGroupPort> = Arc::<Cloud>::clone(&cloud);
    let store = Box::new(MemoryLedger::default());
    let error = Scaler::start(config, vec![host], Arc::new(ReadyWhenReachable), store, &Buckets::default(), || 0)
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("max_instances 20 is greater than the 10"), "{error}");
    assert!(error.ends_with("max size option exceeds instance group's max size"), "{error}");
}

/// Starts a scaler whose only instance has had its one job and is being deleted without end.
async fn removing(cloud: &Arc<Cloud>) -> Scaler {
    cloud.keeps.store(true, Ordering::Relaxed);
    let mut config = Config::new(GroupConfig::new("main", 1));
    config.max_uses = NonZeroU32::new(1);
    let host: Arc<dyn InstanceGroupPort> = Arc::<Cloud>::clone(cloud);
    let store = Box::new(MemoryLedger::default());
    let scaler = Scaler::start(config, vec![host], Arc::new(ReadyWhenReachable), store, &Buckets::default(), || 0)
        .await
        .unwrap();
    let promise = scaler.admit(TaskKey::new("job"));
    drop(promise.acquire(SlotRequest::default(), Duration::from_secs(60)).await.unwrap());
    seconds(1).await;
    assert_eq!(states(&scaler).await, ["deleting"]);
    scaler
}

#[tokio::test(start_paused = true)]
async fn v14_a_shutdown_waits_for_a_slow_removal() {
    let cloud = Cloud::new();
    let scaler = removing(&cloud).await;
    let ending = tokio::spawn(async move { scaler.shutdown(Duration::from_secs(600)).await });
    seconds(300).await;
    assert!(!ending.is_finished(), "the peer returns after one interval of ten seconds");
    cloud.machines.lock().unwrap().clear();
    assert_eq!(ending.await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn v14_a_shutdown_that_waited_in_vain_says_what_is_left() {
    let cloud = Cloud::new();
    let scaler = removing(&cloud).await;
    let began = tokio::time::Instant::now();
    let left = scaler.shutdown(Duration::from_secs(600)).await;
    assert_eq!(left.iter().map(|instance| &*instance.id).collect::<Vec<_>>(), ["i0"]);
    assert!(began.elapsed() <= Duration::from_secs(610), "{:?}", began.elapsed());
}
