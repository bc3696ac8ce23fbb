//! Tests of the driver with a simulated plugin, in paused time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use muster_fleeting::model::{ConnectInfo, ConnectorConfig, InstanceId, InstanceState};
use tokio::sync::watch;

use super::*;
use crate::config::{Config, GroupConfig};
use crate::policy::{IdleTarget, Policies};
use crate::types::GroupId;

mod machines;
mod provisioner;
mod store;
mod waiting;

struct Cloud {
    plugin: watch::Sender<PluginAvailability>,
    machines: Mutex<BTreeMap<InstanceId, InstanceState>>,
    created: AtomicU32,
    /// How many of the next `connect_info` calls crash the plugin.
    crashing_calls: AtomicU32,
    /// How many of the next `increase` calls panic.
    panicking_calls: AtomicU32,
    initial_state: Mutex<InstanceState>,
    ignores_deletions: AtomicBool,
    never_stops: AtomicBool,
}

const UP: PluginAvailability = PluginAvailability::Up { max_size: 0 };

impl Cloud {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            plugin: watch::Sender::new(UP),
            machines: Mutex::default(),
            created: AtomicU32::new(0),
            crashing_calls: AtomicU32::new(0),
            panicking_calls: AtomicU32::new(0),
            initial_state: Mutex::new(InstanceState::Running),
            ignores_deletions: AtomicBool::new(false),
            never_stops: AtomicBool::new(false),
        })
    }

    fn crash_plugin(&self) {
        self.plugin.send_replace(PluginAvailability::Down { cause: "the plugin crashed".to_owned() });
    }

    fn require_up(&self) -> Result<(), InstanceCallError> {
        match &*self.plugin.borrow() {
            PluginAvailability::Up { .. } => Ok(()),
            PluginAvailability::Down { cause } => Err(InstanceCallError::Plugin(cause.clone())),
        }
    }

    fn ids(&self) -> Vec<InstanceId> {
        self.machines.lock().unwrap().keys().cloned().collect()
    }
}

#[async_trait]
impl InstanceGroupPort for Cloud {
    fn status(&self) -> watch::Receiver<PluginAvailability> {
        self.plugin.subscribe()
    }

    async fn update(&self) -> Result<Vec<(InstanceId, InstanceState)>, String> {
        self.require_up().map_err(|error| error.to_string())?;
        Ok(self.machines.lock().unwrap().iter().map(|(id, state)| (id.clone(), *state)).collect())
    }

    async fn increase(&self, n: u32) -> Result<u32, String> {
        self.require_up().map_err(|error| error.to_string())?;
        let works = self
            .panicking_calls
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |remaining| remaining.checked_sub(1))
            .is_err();
        assert!(works, "simulated bug of the plugin adapter");
        for _ in 0..n {
            let id = InstanceId::new(format!("i{}", self.created.fetch_add(1, Ordering::Relaxed)));
            self.machines.lock().unwrap().insert(id, *self.initial_state.lock().unwrap());
        }
        Ok(n)
    }

    async fn decrease(&self, ids: &[InstanceId]) -> Result<Vec<InstanceId>, String> {
        self.require_up().map_err(|error| error.to_string())?;
        let ignored = self.ignores_deletions.load(Ordering::Relaxed);
        self.machines.lock().unwrap().retain(|id, _| ignored || !ids.contains(id));
        Ok(ids.to_vec())
    }

    async fn connect_info(&self, _: &InstanceId) -> Result<ConnectInfo, InstanceCallError> {
        self.require_up()?;
        if self
            .crashing_calls
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |remaining| remaining.checked_sub(1))
            .is_ok()
        {
            self.crash_plugin();
            return Err(InstanceCallError::Plugin("the plugin crashed".to_owned()));
        }
        let connector = ConnectorConfig::default();
        let (external_addr, internal_addr) = (String::new(), "10.0.0.1".to_owned());
        Ok(ConnectInfo { connector, external_addr, internal_addr, expires: None })
    }

    async fn heartbeat(&self, _: &InstanceId) -> Result<(), InstanceCallError> {
        self.require_up()
    }

    async fn stop(self: Arc<Self>) {
        if self.never_stops.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    }
}

async fn scaler(cloud: &Arc<Cloud>, idle: u32) -> Scaler {
    let mut config = Config::new(GroupConfig::new("main", 10));
    config.heartbeat_interval = Some(Duration::from_secs(4));
    config.ready_timeout = Duration::from_secs(60);
    config.policies = Policies::always(IdleTarget {
        idle_count: idle,
        idle_time: Duration::from_secs(3600),
        preemptive: true,
        ..IdleTarget::default()
    });
    let plugin: Arc<dyn InstanceGroupPort> = Arc::<Cloud>::clone(cloud);
    let store = Box::new(MemoryLedger::default());
    Scaler::start(config, vec![plugin], Arc::new(ReadyWhenReachable), store, &Buckets::default(), || 0).await.unwrap()
}

async fn states(scaler: &Scaler) -> Vec<String> {
    scaler.status().await.unwrap().instances.into_iter().map(|instance| instance.state.clone()).collect()
}

async fn sleep_seconds(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn healthy_instances_survive_plugin_downtime() {
    let cloud = Cloud::new();
    let scaler = scaler(&cloud, 4).await;
    sleep_seconds(60).await;
    let before = cloud.ids();
    assert_eq!(states(&scaler).await, ["ready"; 4]);
    // Each downtime is longer than `failure_threshold` health checks take.
    for _ in 0..3 {
        cloud.crash_plugin();
        sleep_seconds(30).await;
        cloud.plugin.send_replace(UP);
        sleep_seconds(3).await;
    }
    cloud.crash_plugin();
    // Longer than the ready timeout.
    sleep_seconds(600).await;
    cloud.plugin.send_replace(UP);
    sleep_seconds(60).await;
    assert_eq!((cloud.ids(), cloud.created.load(Ordering::Relaxed)), (before, 4));
    assert_eq!(states(&scaler).await, ["ready"; 4]);
}

#[tokio::test(start_paused = true)]
async fn preparation_waits_for_crashed_plugin() {
    let cloud = Cloud::new();
    cloud.crashing_calls.store(2, Ordering::Relaxed);
    let scaler = scaler(&cloud, 1).await;
    for _ in 0..2 {
        sleep_seconds(300).await;
        assert!(cloud.require_up().is_err(), "the call for the connection details must crash the plugin");
        assert_eq!(states(&scaler).await, ["preparing"]);
        cloud.plugin.send_replace(UP);
    }
    sleep_seconds(30).await;
    assert_eq!(states(&scaler).await, ["ready"]);
    assert_eq!(cloud.created.load(Ordering::Relaxed), 1, "the instance must not be replaced");
}

#[tokio::test(start_paused = true)]
async fn instance_that_always_crashes_plugin_is_replaced() {
    let cloud = Cloud::new();
    // All attempts to connect to the first instance crash the plugin.
    cloud.crashing_calls.store(5, Ordering::Relaxed);
    let scaler = scaler(&cloud, 1).await;
    for _ in 0..10 {
        sleep_seconds(10).await;
        cloud.plugin.send_replace(UP);
    }
    sleep_seconds(600).await;
    assert_eq!((cloud.ids(), states(&scaler).await), (vec![InstanceId::new("i1")], vec!["ready".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn panicking_call_counts_as_failed() {
    let cloud = Cloud::new();
    cloud.panicking_calls.store(1, Ordering::Relaxed);
    let scaler = scaler(&cloud, 2).await;
    sleep_seconds(600).await;
    assert_eq!(states(&scaler).await, ["ready"; 2]);
}

#[tokio::test(start_paused = true)]
async fn reservation_is_revoked_when_plugin_goes_down() {
    use crate::types::{SlotRequest, TaskKey};
    let cloud = Cloud::new();
    let scaler = scaler(&cloud, 0).await;
    sleep_seconds(60).await;
    let mut capacity_changes = scaler.capacity_changes();
    let [unused, used] =
        [scaler.reserve(TaskKey::new("a")).await.unwrap(), scaler.reserve(TaskKey::new("b")).await.unwrap()];
    cloud.crash_plugin();
    tokio::time::timeout(Duration::from_secs(60), capacity_changes.changed()).await.unwrap().unwrap();
    assert!(unused.is_revoked() && used.is_revoked());
    drop(unused);
    cloud.plugin.send_replace(UP);
    let lease = used.with_key(TaskKey::new("job")).acquire(SlotRequest::default(), Duration::from_secs(60)).await;
    assert!(lease.is_ok(), "{lease:?}");
}

#[tokio::test(start_paused = true)]
async fn deferred_group_has_the_status_of_its_attached_plugin() {
    let (cloud, deferred) = (Cloud::new(), DeferredGroup::new("not started yet".to_owned()));
    let mut status = deferred.status();
    let mut wait_for = async |expected: PluginAvailability| {
        let changed = status.wait_for(|status| *status == expected);
        tokio::time::timeout(Duration::from_secs(60), changed).await.unwrap().unwrap();
    };
    deferred.set_cause("failed again".to_owned());
    wait_for(PluginAvailability::Down { cause: "failed again".to_owned() }).await;
    deferred.attach(Arc::<Cloud>::clone(&cloud));
    wait_for(UP).await;
    cloud.crash_plugin();
    wait_for(PluginAvailability::Down { cause: "the plugin crashed".to_owned() }).await;
}

#[tokio::test(start_paused = true)]
async fn stop_of_deferred_group_ends_waiting_for_connection_details() {
    for is_attached in [false, true] {
        let (cloud, deferred) = (Cloud::new(), DeferredGroup::new("not started yet".to_owned()));
        cloud.crash_plugin();
        if is_attached {
            deferred.attach(Arc::<Cloud>::clone(&cloud));
        }
        let plugins: Vec<Arc<dyn InstanceGroupPort>> = vec![Arc::<DeferredGroup>::clone(&deferred)];
        let (commands, _) = tokio::sync::mpsc::unbounded_channel();
        let shared = context::DriverContext::new(plugins, commands, || 0);
        let waiting = tokio::spawn(async move { shared.connect_info(GroupId(0), &InstanceId::new("a")).await });
        sleep_seconds(60).await;
        assert!(!waiting.is_finished());
        deferred.stop().await;
        let result = tokio::time::timeout(Duration::from_secs(60), waiting).await.expect("the call must end").unwrap();
        assert_eq!(result.unwrap_err(), ConnectInfoError::PluginStopped);
    }
}
