//! Tests which faults make the host replace a plugin's process, and which do not.

use std::time::Duration;

use super::{Fake, Manner, SLEEP, WELL, always, id, pids};
use crate::host::{CallError, Group, Status};

/// Returns how often the plugin was started.
fn starts(fake: &Fake) -> usize {
    pids(&fake.directory.path().join("pids")).len()
}

#[tokio::test]
async fn a_cloud_that_is_down_is_the_plugins_word_and_no_broken_connection() {
    let fake = Fake::new(Manner::Unavailable);
    let group = fake.start().await;
    let status = group.status();
    for _ in 0..2 {
        let error = group.increase(1).await.unwrap_err();
        assert_eq!(error.to_string(), "plugin hostile: Increase failed: the cloud's API is down");
    }
    assert!(matches!(&*status.borrow(), Status::Up { .. }));
    assert_eq!(starts(&fake), 1);
    group.stop().await;
    fake.ended().await;
}

#[tokio::test]
async fn one_instance_that_hangs_is_not_the_whole_plugin() {
    let mut manners = always(Manner::Well);
    manners[super::Call::Heartbeat as usize] = Manner::Hangs;
    let fake = Fake::with(manners, WELL, SLEEP);
    let group = fake.start().await;
    let mut status = group.status();
    for _ in 0..2 {
        for _ in 0..2 {
            let error = group.heartbeat(&id("i1")).await.unwrap_err();
            assert!(matches!(error, CallError::Deadline { call: "Heartbeat", .. }), "{error}");
        }
        // A response to another call shows that the plugin works.
        group.update().await.unwrap();
    }
    assert!(matches!(&*status.borrow(), Status::Up { .. }));
    for _ in 0..3 {
        let _ = group.heartbeat(&id("i1")).await;
    }
    status.wait_for(|status| matches!(status, Status::Down { .. })).await.unwrap();
    group.stop().await;
    fake.ended().await;
}

#[tokio::test]
async fn the_last_words_of_a_plugin_that_dies_are_told() {
    let body = "while [ ! -e \"$socket.die\" ]; do sleep 0.01; done\n\
                echo starting >&2; echo 'panic: nil map' >&2\n\
                for n in 1 2 3 4 5 6 7 8 9; do echo \"frame $n\" >&2; done; exit 2";
    let fake = Fake::with(always(Manner::Well), WELL, body);
    let group = fake.start().await;
    let mut status = group.status();
    std::fs::write(fake.directory.path().join("socket.die"), "").unwrap();
    let down = status.wait_for(|status| matches!(status, Status::Down { .. })).await.unwrap().clone();
    let Status::Down { cause, .. } = down else { unreachable!("it was waited for") };
    assert!(cause.starts_with("plugin process exited (exit status: 2); it said: panic: nil map / frame 1"), "{cause}");
    group.stop().await;
}

#[tokio::test]
async fn a_group_that_is_dropped_leaves_nothing_of_its_plugin() {
    // The script wraps the plugin proper, which is a process of its own.
    let fake = Fake::with(always(Manner::Well), WELL, "sleep 600 & sleep 600");
    drop(fake.start().await);
    fake.ended().await;
}

#[tokio::test]
async fn a_start_that_is_given_up_leaves_nothing_of_the_plugin() {
    let fake = Fake::with(always(Manner::Well), "", "sleep 600 & sleep 600");
    let start = Group::start(fake.spec());
    let begun = async {
        while starts(&fake) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        started = start => panic!("it is silent, and not {started:?}"),
        () = begun => {}
    }
    fake.ended().await;
}
