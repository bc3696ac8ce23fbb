//! Tests which faults make the host replace a plugin's process.

use std::time::Duration;

use super::{Behavior, IDLE_BODY, TestPlugin, VALID_HANDSHAKE, always, id, pids};
use crate::host::{CallError, Group, PluginStatus};

fn start_count(plugin: &TestPlugin) -> usize {
    pids(&plugin.directory.path().join("pids")).len()
}

#[tokio::test]
async fn unavailable_status_is_not_a_broken_connection() {
    let plugin = TestPlugin::new(Behavior::Unavailable);
    let group = plugin.start().await;
    let status = group.status();
    for _ in 0..2 {
        let error = group.increase(1).await.unwrap_err();
        assert_eq!(error.to_string(), "plugin faulty: Increase failed: the provider's API is down");
    }
    assert!(matches!(&*status.borrow(), PluginStatus::Up { .. }));
    assert_eq!(start_count(&plugin), 1);
    group.stop().await;
    plugin.wait_dead().await;
}

#[tokio::test]
async fn hanging_instance_does_not_restart_the_plugin() {
    let mut behaviors = always(Behavior::Normal);
    behaviors[super::Call::Heartbeat as usize] = Behavior::Hangs;
    let plugin = TestPlugin::with_script(behaviors, VALID_HANDSHAKE, IDLE_BODY);
    let group = plugin.start().await;
    let mut status = group.status();
    for _ in 0..2 {
        for _ in 0..2 {
            let error = group.heartbeat(&id("i1")).await.unwrap_err();
            assert!(matches!(error, CallError::Timeout { call: "Heartbeat", .. }), "{error}");
        }
        // A response to another call shows that the plugin works.
        group.update().await.unwrap();
    }
    assert!(matches!(&*status.borrow(), PluginStatus::Up { .. }));
    // Three calls in a row without a response (`MAX_UNANSWERED_CALLS`) replace the process.
    for _ in 0..3 {
        let _ = group.heartbeat(&id("i1")).await;
    }
    status.wait_for(|status| matches!(status, PluginStatus::Down { .. })).await.unwrap();
    group.stop().await;
    plugin.wait_dead().await;
}

#[tokio::test]
async fn status_quotes_panic_of_a_dead_plugin() {
    let body = "while [ ! -e \"$socket.die\" ]; do sleep 0.01; done\n\
                echo starting >&2; echo 'panic: nil map' >&2\n\
                for n in 1 2 3 4 5 6 7 8 9; do echo \"frame $n\" >&2; done; exit 2";
    let plugin = TestPlugin::with_script(always(Behavior::Normal), VALID_HANDSHAKE, body);
    let group = plugin.start().await;
    let mut status = group.status();
    std::fs::write(plugin.directory.path().join("socket.die"), "").unwrap();
    let down = status.wait_for(|status| matches!(status, PluginStatus::Down { .. })).await.unwrap().clone();
    let PluginStatus::Down { cause, .. } = down else { unreachable!("wait_for returned this state") };
    assert!(cause.starts_with("plugin process exited (exit status: 2); stderr: panic: nil map / frame 1"), "{cause}");
    group.stop().await;
}

#[tokio::test]
async fn dropped_group_leaves_no_process() {
    // The script starts a second process, as a wrapper script of a plugin does.
    let plugin = TestPlugin::with_script(always(Behavior::Normal), VALID_HANDSHAKE, "sleep 600 & sleep 600");
    drop(plugin.start().await);
    plugin.wait_dead().await;
}

#[tokio::test]
async fn canceled_start_leaves_no_process() {
    let plugin = TestPlugin::with_script(always(Behavior::Normal), "", "sleep 600 & sleep 600");
    let start = Group::start(plugin.spec());
    let process_started = async {
        while start_count(&plugin) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        started = start => panic!("the start ended, although the plugin prints no handshake: {started:?}"),
        () = process_started => {}
    }
    plugin.wait_dead().await;
}
