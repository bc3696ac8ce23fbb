//! Tests the protocol extension of the plugin with Muster's host.

use futures::StreamExt;
use muster_fleeting::extension::Notice;
use muster_fleeting::host::CallError;
use muster_fleeting::model::{InstanceId, InstanceState};
use muster_remote::{DialError, KnownHosts, RemoteCommand, dial};
use serde_json::json;

use super::{group, id, output, start_instance, wait_for_instances};

#[tokio::test]
async fn prices_and_stock_changes_are_reported() {
    let config =
        json!({"price_micros_per_hour": 96_000, "currency": "EUR", "capacity": 2, "preemptions_per_minute": 0.001});
    let group = group(config).await;
    let offer = group.offers().await.unwrap().remove(0);
    let price = offer.price.unwrap();
    assert_eq!((price.micros_per_hour, price.currency.as_str()), (96_000, "EUR"));
    assert_eq!((offer.available, offer.interruptible), (Some(2), true));

    let mut notices = group.notices().await.unwrap();
    assert_eq!(group.increase(5).await.unwrap(), 2);
    assert_eq!(notices.next().await, Some(Notice::StockChange { offer: "local".to_owned(), available: false }));
    let error = group.increase(1).await.unwrap_err().to_string();
    assert!(error.contains("the cloud is out of stock: capacity = 2"), "{error}");
    assert_eq!(group.offers().await.unwrap()[0].available, Some(0));
    let ids = wait_for_instances(&group, InstanceState::Running, 2).await;
    group.decrease(&ids[..1]).await.unwrap();
    assert_eq!(notices.next().await, Some(Notice::StockChange { offer: "local".to_owned(), available: true }));
    group.stop().await;
    assert_eq!(notices.next().await, None, "the stream ends with the plugin");
}

#[tokio::test]
async fn interruption_notice_precedes_preemption() {
    let group = group(json!({"preemptions_per_minute": 60_000.0, "preemption_notice_s": 1.0})).await;
    let mut notices = group.notices().await.unwrap();
    group.increase(1).await.unwrap();
    let Some(Notice::Interruption { instance, at, reason }) = notices.next().await else {
        panic!("expected a notice of an interruption")
    };
    assert!(at.is_some() && reason.contains("preemptions_per_minute"), "{at:?} {reason}");
    assert_eq!(
        group.update().await.unwrap().instances[&instance],
        InstanceState::Running,
        "the instance must still run after the notice"
    );
    wait_for_instances(&group, InstanceState::Running, 0).await;
    group.stop().await;
}

#[tokio::test]
async fn reports_resource_usage() {
    let (group, target, session) = start_instance(json!({})).await;
    let busy = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; exec sleep 600";
    let watch = async {
        loop {
            let resources = group.resource_usage(std::slice::from_ref(&id(&target))).await.unwrap().remove(0);
            if resources.cpu_seconds > 0.0 && resources.processes >= 2 {
                return resources;
            }
        }
    };
    let resources = tokio::select! {
        resources = watch => resources,
        outcome = session.run(RemoteCommand::new(busy)) => panic!("the command exited: {outcome:?}"),
    };
    assert!(resources.memory_bytes > 0, "{resources:?}");
    let none = group.resource_usage(&[InstanceId::new("unknown")]).await.unwrap();
    assert_eq!(none, []);
    group.stop().await;
}

#[tokio::test]
async fn host_key_reported_by_the_plugin_can_be_pinned() {
    let (group, target, session) = start_instance(json!({})).await;
    session.close().await;
    let keys = group.host_keys(&id(&target)).await.unwrap();
    assert!(keys[0].starts_with("SHA256:"), "{keys:?}");
    let hosts = KnownHosts::default();
    hosts.pin(&target.machine, &keys);
    dial(&target, &hosts).await.unwrap();
    hosts.pin(&target.machine, &["SHA256:another".to_owned()]);
    let error = dial(&target, &hosts).await.err().unwrap();
    assert!(matches!(error, DialError::HostKey { .. }), "{error}");
    assert!(error.to_string().contains("expected SHA256:another"), "{error}");
    group.stop().await;
}

#[tokio::test]
async fn prepare_command_runs_before_a_job_and_reports_failures() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("calls");
    let script = format!("echo \"$0 $1\" >>{}; case $1 in bad) echo disk is full >&2; exit 3;; esac", file.display());
    let (group, target, _session) = start_instance(json!({"prepare_command": ["sh", "-c", script]})).await;
    group.prepare(&id(&target), "17").await.unwrap();
    // `finish_command` is not set, so this call does nothing.
    group.cleanup(&id(&target), "17").await.unwrap();
    let error = group.prepare(&id(&target), "bad").await.unwrap_err();
    assert!(matches!(&error, CallError::Refused { call: "Prepare", .. }), "{error}");
    assert!(
        error.to_string().ends_with("Prepare failed: prepare_command failed (exit status: 3): disk is full"),
        "{error}"
    );
    let calls = std::fs::read_to_string(file).unwrap();
    assert_eq!(calls, format!("{0} 17\n{0} bad\n", target.machine));
    group.stop().await;
}

#[tokio::test]
async fn limits_apply_if_cgroups_can_be_created() {
    let (group, _, session) = start_instance(json!({"max_memory_mib": 64, "max_processes": 30, "max_cpus": 0.5})).await;
    let (_, groups, _) = output(&*session, "cat /proc/self/cgroup").await;
    if !muster_test_prerequisites::cgroups(groups.contains("/muster-local-")) {
        return group.stop().await;
    }
    let (_, byte_count, _) = output(&*session, "head -c 200m /dev/zero | tail -c 200m 2>/dev/null | wc -c").await;
    assert_ne!(byte_count.trim(), "209715200", "200 MiB exceed the limit of 64 MiB");
    let (_, process_count, _) =
        output(&*session, "for i in $(seq 60); do sleep 5 & done 2>/dev/null; jobs | wc -l; kill $(jobs -p)").await;
    assert!(
        process_count.trim().parse::<u32>().unwrap_or(0) < 30,
        "60 processes exceed the limit of 30: {process_count}"
    );
    group.stop().await;
}
