//! Tests an unmodified Go plugin: fleeting's own dummy.
//! `scripts/test` builds it through the Go module proxy.

use muster_fleeting::host::{CallError, Group, PluginSpec};
use muster_fleeting::model::Features;
use muster_fleeting::model::{InstanceId, InstanceState};
use serde_json::json;

#[tokio::test]
async fn go_dummy_runs_under_our_host() {
    let dummy = muster_test_prerequisites::variable("MUSTER_TEST_FLEETING_DUMMY", "fleeting-plugin-dummy");
    let Some(dummy) = dummy else { return };
    let mut spec = PluginSpec::new(&dummy);
    spec.config = json!({"MaxSize": 7, "Suspendable": true});
    let group = Group::start(spec.clone()).await.unwrap();
    assert_eq!(group.info().id, "dummy/dummy");
    assert_eq!(group.info().max_size, 7);
    assert!(group.info().can_suspend);
    assert_eq!(group.features(), Features::default(), "a plugin without the extension has no features");
    let error = group.offers().await.unwrap_err();
    assert!(matches!(error, CallError::NoCapability { capability: "offers", .. }), "{error}");
    group.prepare(&InstanceId::new("any"), "job").await.unwrap();

    assert_eq!(group.increase(2).await.unwrap(), 2);
    let mut ids: Vec<InstanceId> = group.update().await.unwrap().instances.into_keys().collect();
    ids.sort();
    assert_eq!(ids.len(), 2);
    let states = |snapshot: muster_fleeting::host::Snapshot| -> Vec<InstanceState> {
        ids.iter().map(|id| snapshot.instances.get(id).copied().unwrap_or(InstanceState::Deleted)).collect()
    };
    assert_eq!(states(group.update().await.unwrap()), [InstanceState::Running; 2]);
    group.heartbeat(&ids[0]).await.unwrap();
    let info = group.connect_info(&ids[0]).await.unwrap();
    assert_eq!(info.connector.keepalive, std::time::Duration::from_secs(30));

    assert_eq!(group.suspend(&ids[..1]).await.unwrap(), ids[..1]);
    assert_eq!(states(group.update().await.unwrap())[0], InstanceState::Suspended);
    assert_eq!(group.resume(&ids[..1]).await.unwrap(), ids[..1]);

    assert_eq!(group.decrease(&ids).await.unwrap(), ids);
    assert_eq!(states(group.update().await.unwrap()), [InstanceState::Deleted; 2]);
    // The message is the dummy's own, because the protocol has no error for a missing instance.
    let error = group.decrease(&[InstanceId::new("unknown")]).await.unwrap_err();
    assert!(matches!(&error, CallError::Refused { message, .. } if message.contains("not found")), "{error}");
    group.stop().await;

    // The host passes on Go's error about settings that the plugin cannot parse.
    spec.config = json!({"MaxSize": "seven"});
    let error = Group::start(spec).await.unwrap_err();
    assert!(error.to_string().contains("unmarshaling config"), "{error}");
}
