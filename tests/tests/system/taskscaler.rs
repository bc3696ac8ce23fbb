//! The taskscaler's driver with real plugin processes.

use std::sync::Arc;
use std::time::Duration;

use muster_executor::instance::PluginGroup;
use muster_fleeting::host::{Group, PluginSpec};
use muster_fleeting::model::InstanceId;
use muster_taskscaler::config::{Config, GroupConfig};
use muster_taskscaler::driver::{Buckets, FileLedger, InstanceGroupPort, LeaseHandle, ReadyWhenReachable, Scaler};
use muster_taskscaler::policy::{IdleTarget, Policies};
use muster_taskscaler::types::{SlotRequest, TaskKey};
use muster_tests::process::workspace_executable;
use serde_json::{Value, json};

/// Maximum time that a test waits for one event.
const TIMEOUT: Duration = Duration::from_secs(60);

fn unix_seconds() -> i64 {
    let duration = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    i64::try_from(duration.unwrap().as_secs()).unwrap()
}

/// Returns a configuration with which idle instances are deleted immediately. If `max_instances` is 0, the limit of
/// the plugin applies.
fn config(max_instances: u32, capacity: u32) -> Config {
    let mut config = Config::new(GroupConfig::new("main", max_instances));
    config.capacity = capacity.try_into().unwrap();
    config.policies = Policies::always(IdleTarget { idle_time: Duration::ZERO, ..IdleTarget::default() });
    config.update_interval_when_expecting = Duration::from_millis(200);
    config
}

async fn start_plugin(name: &str, settings: Value) -> Arc<dyn InstanceGroupPort> {
    let mut spec = PluginSpec::new(workspace_executable(name));
    spec.config = settings;
    PluginGroup::new(Group::start(spec).await.unwrap())
}

/// Starts `fleeting-plugin-script` with a shell script. Its instances are files in `directory`, which outlive the
/// plugin.
async fn start_script_plugin(directory: &std::path::Path, cases: &str) -> Arc<dyn InstanceGroupPort> {
    let path = directory.join("group");
    std::fs::write(
        &path,
        format!("cd {}\ncall=$1; shift\ncase $call in\n{cases}\n*) exit 64;;\nesac\n", directory.display()),
    )
    .unwrap();
    start_plugin("fleeting-plugin-script", json!({"command": ["sh", path]})).await
}

async fn start_scaler(config: Config, group: Arc<dyn InstanceGroupPort>, ledger: &std::path::Path) -> Scaler {
    let store = Box::new(FileLedger::new(ledger));
    Scaler::start(config, vec![group], Arc::new(ReadyWhenReachable), store, &Buckets::default(), unix_seconds)
        .await
        .unwrap()
}

async fn acquire_slot(scaler: &Scaler, name: &str) -> LeaseHandle {
    scaler.admit(TaskKey::new(name)).acquire(SlotRequest::default(), TIMEOUT).await.unwrap()
}

async fn wait_for_instances(scaler: &Scaler, n: usize) {
    // The scaler emits no event for a deleted instance.
    let reached = async {
        while scaler.status().await.unwrap().instances.len() != n {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, reached)
        .await
        .unwrap_or_else(|_| panic!("the scaler did not reach {n} instances in time"));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_instance_is_left_after_a_thousand_jobs() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(20, 2);
    config.max_uses = std::num::NonZeroU32::new(7);
    let scaler =
        start_scaler(config, start_plugin("fleeting-plugin-toy", json!({})).await, &directory.path().join("ledger"))
            .await;
    let mut jobs = tokio::task::JoinSet::new();
    for job in 0..1000 {
        let scaler = scaler.clone();
        jobs.spawn(async move {
            let lease = acquire_slot(&scaler, &job.to_string()).await;
            assert!(lease.slot() < 2 && (1..=7).contains(&lease.use_number()));
            assert_eq!(lease.connect_info().await.unwrap().internal_addr, "127.0.0.1");
        });
    }
    while let Some(result) = jobs.join_next().await {
        result.unwrap();
    }
    wait_for_instances(&scaler, 0).await;
    let families = scaler.metrics().families();
    let counter = |name: &str, label: &str| {
        let family = families.iter().find(|family| family.name() == name).unwrap();
        let mut series = family.get_metric().iter();
        let metric = series.find(|metric| metric.get_label().iter().any(|pair| pair.value() == label)).unwrap();
        metric.get_counter().get_value()
    };
    assert_eq!(counter("fleeting_taskscaler_task_operations_total", "acquire"), 1000.0);
    assert_eq!(counter("fleeting_taskscaler_task_operations_total", "release"), 1000.0);
    let created = counter("fleeting_provisioner_instance_operations_total", "create");
    assert!(created >= 143.0, "1000 jobs with at most seven jobs per instance need 143 instances, not {created}");
    assert_eq!(scaler.shutdown(TIMEOUT).await.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_instance_is_reported_and_next_job_gets_a_new_one() {
    let directory = tempfile::tempdir().unwrap();
    let group = start_plugin("fleeting-plugin-local", json!({"isolation": "none"})).await;
    let scaler = start_scaler(config(3, 1), Arc::clone(&group), &directory.path().join("ledger")).await;
    let first = acquire_slot(&scaler, "one").await;
    let id: InstanceId = first.instance().clone();
    group.decrease(std::slice::from_ref(&id)).await.unwrap();
    first.report_connection_lost();
    let loss = tokio::time::timeout(TIMEOUT, first.lost()).await.expect("the loss was not reported");
    assert!(loss.to_string().starts_with("instance unexpectedly removed"), "{loss}");
    let second = acquire_slot(&scaler, "two").await;
    assert_ne!(*second.instance(), id);
    drop((first, second));
    wait_for_instances(&scaler, 0).await;
    drop(group);
    scaler.shutdown(TIMEOUT).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_scaler_continues_with_its_leases() {
    let directory = tempfile::tempdir().unwrap();
    let ledger = directory.path().join("ledger");
    let script = "update) for id in i-*; do [ ! -e $id ] || echo $id running; done;;
        increase) for n in $(seq $1); do mktemp i-XXXXXX; done >/dev/null;;
        decrease) rm -f $*;;
        connect-info) echo internal_addr 10.0.0.1;;";
    let start = |plugin: Arc<dyn InstanceGroupPort>| start_scaler(config(3, 2), plugin, &ledger);
    let first = start(start_script_plugin(directory.path(), script).await).await;
    let (claimed, unclaimed) = (acquire_slot(&first, "claimed").await, acquire_slot(&first, "unclaimed").await);
    let id = claimed.instance().clone();
    assert_eq!(*unclaimed.instance(), id);
    claimed.leave_to_next_start();
    unclaimed.leave_to_next_start();
    // The plugin exits, but its instances remain.
    assert_eq!(first.shutdown(Duration::ZERO).await.unwrap().len(), 1);

    let second = start(start_script_plugin(directory.path(), script).await).await;
    let lease = second.claim(TaskKey::new("claimed")).await.unwrap();
    assert_eq!((lease.instance(), lease.slot(), lease.use_number()), (&id, 0, 2));
    second.claims_complete();
    assert!(second.claim(TaskKey::new("unclaimed")).await.is_none());
    drop(lease);
    wait_for_instances(&second, 0).await;
    second.shutdown(TIMEOUT).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn plugin_cleans_up_at_shutdown_while_a_call_is_in_progress() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let script = "update|increase|decrease|connect-info) ;;
        heartbeat) touch called; while [ ! -e finish ]; do sleep 0.05; done;;
        shutdown) touch cleaned;;";
    let group = start_script_plugin(directory.path(), script).await;
    let scaler = start_scaler(config(1, 1), Arc::clone(&group), &path("ledger")).await;
    let heartbeat = tokio::spawn(async move { group.heartbeat(&InstanceId::new("i-1")).await });
    while !path("called").exists() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    scaler.shutdown(TIMEOUT).await;
    assert!(path("cleaned").exists(), "the plugin was killed before it handled the shutdown call");
    std::fs::write(path("finish"), "").unwrap();
    let _ = heartbeat.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn canceled_request_releases_its_reservation() {
    let directory = tempfile::tempdir().unwrap();
    let group = start_plugin("fleeting-plugin-toy", json!({"max_size": 1})).await;
    let scaler = start_scaler(config(1, 1), group, &directory.path().join("ledger")).await;
    let held = acquire_slot(&scaler, "held").await;
    let waiting = tokio::spawn(scaler.admit(TaskKey::new("waiting")).acquire(SlotRequest::default(), TIMEOUT));
    while scaler.explain_waiting(TaskKey::new("waiting")).await.is_none() {
        tokio::task::yield_now().await;
    }
    waiting.abort();
    let released = async {
        while scaler.status().await.unwrap().slots.reserved > 0 {
            tokio::task::yield_now().await;
        }
    };
    // R014 requires one second. The test allows ten, for busy machines.
    tokio::time::timeout(Duration::from_secs(10), released).await.expect("R014: the reservation was not released");
    let error = scaler
        .admit(TaskKey::new("late"))
        .acquire(SlotRequest::default(), Duration::from_millis(20))
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("unable to acquire instance within the configured timeout of 0s: 0 instances are booting"),
        "{error}"
    );
    assert!(error.contains("group main: instance limit of 1 reached"), "{error}");
    drop(held);
    scaler.shutdown(TIMEOUT).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn capacity_change_is_reported_after_a_rejected_reservation() {
    let directory = tempfile::tempdir().unwrap();
    let group = start_plugin("fleeting-plugin-toy", json!({"max_size": 1})).await;
    let scaler = start_scaler(config(1, 1), group, &directory.path().join("ledger")).await;
    let held = acquire_slot(&scaler, "held").await;
    let mut capacity = scaler.capacity_changes();
    scaler.reserve(TaskKey::new("next")).await.unwrap_err().expect("the rejection has a reason");
    assert!(!capacity.has_changed().unwrap());
    drop(held);
    tokio::time::timeout(TIMEOUT, capacity.changed()).await.expect("the change was not reported").unwrap();
    scaler.reserve(TaskKey::new("next")).await.unwrap();
    scaler.shutdown(TIMEOUT).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_scalers_with_separate_groups_are_independent() {
    let directory = tempfile::tempdir().unwrap();
    let mut scalers = Vec::new();
    for name in ["one", "two"] {
        let group = start_plugin("fleeting-plugin-toy", json!({ "name": name })).await;
        scalers.push(start_scaler(config(2, 1), group, &directory.path().join(name)).await);
    }
    let first = acquire_slot(&scalers[0], "job").await;
    assert_eq!(scalers[1].status().await.unwrap().instances, []);
    let second = acquire_slot(&scalers[1], "job").await;
    drop((first, second));
    for scaler in scalers {
        wait_for_instances(&scaler, 0).await;
        scaler.shutdown(TIMEOUT).await;
    }
}

/// Requirement R057: the plugin has no code for scaling.
#[tokio::test(flavor = "multi_thread")]
async fn plugin_without_scaling_code_follows_the_policies() {
    let directory = tempfile::tempdir().unwrap();
    let script = "init) echo max_size 1000;;
        update) for id in i-*; do [ ! -e $id ] || echo $id running; done;;
        increase) for n in $(seq $1); do mktemp i-XXXXXX; done >/dev/null;;
        decrease) rm -f $*;;
        connect-info) echo internal_addr 10.0.0.1;;";
    let policies = |idle_count, idle_time| {
        Policies::always(IdleTarget { idle_count, idle_time, preemptive: idle_count > 0, ..IdleTarget::default() })
    };
    let mut config = config(0, 1);
    config.policies = policies(2, TIMEOUT);
    let scaler =
        start_scaler(config, start_script_plugin(directory.path(), script).await, &directory.path().join("ledger"))
            .await;
    wait_for_instances(&scaler, 2).await;
    let mut leases = Vec::new();
    for job in 0..12 {
        leases.push(acquire_slot(&scaler, &job.to_string()).await);
    }
    wait_for_instances(&scaler, 14).await;
    scaler.set_policies(policies(0, Duration::ZERO));
    drop(leases);
    wait_for_instances(&scaler, 0).await;
    assert_eq!(scaler.shutdown(TIMEOUT).await.unwrap(), []);
}

/// Regression test: the call was repeated indefinitely.
#[tokio::test(flavor = "multi_thread")]
async fn call_that_ends_the_plugin_is_repeated_a_few_times() {
    let directory = tempfile::tempdir().unwrap();
    let calls = directory.path().join("calls");
    let command = format!("echo call >> {}; kill -9 $PPID", calls.display());
    let mut spec = PluginSpec::new(workspace_executable("fleeting-plugin-local"));
    spec.config = json!({ "isolation": "none", "prepare_command": ["sh", "-c", command] });
    spec.timeouts.restart_first = Duration::from_millis(1);
    let group = PluginGroup::new(Group::start(spec).await.unwrap());
    let prepared = tokio::time::timeout(TIMEOUT, group.prepare_job(&InstanceId::new("i-1"), "job")).await;
    let error = prepared.expect("the call must fail").unwrap_err();
    assert!(error.contains("connection lost during Prepare"), "{error}");
    let count = std::fs::read_to_string(calls).unwrap().lines().count();
    assert!((2..=5).contains(&count), "{count} calls");
    group.stop().await;
}
