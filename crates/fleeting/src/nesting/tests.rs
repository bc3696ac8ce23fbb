//! Tests with a fake daemon, and with GitLab's daemon if `scripts/test` could build it.

use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;

use super::fake::{FakeDaemon, Hypervisor};
use super::*;
use muster_remote::local::LocalSession;

#[derive(Default)]
struct StubHypervisor {
    hangs: bool,
}

#[async_trait]
impl Hypervisor for StubHypervisor {
    async fn create(&self, _: &str, image: &str) -> Result<String, String> {
        if image == "missing" { Err("no such image".to_owned()) } else { Ok("192.168.64.2".to_owned()) }
    }

    async fn delete(&self, _: &str) -> Result<(), String> {
        Ok(())
    }

    async fn before_list(&self) {
        if self.hangs {
            std::future::pending().await
        }
    }
}

async fn connect(socket: &Path, timeouts: NestingTimeouts) -> Result<Nesting, NestingError> {
    let host = format!("unix://{}", socket.display());
    Nesting::connect(Arc::new(LocalSession), &host, &json!({"image_directory": "/i"}), timeouts).await
}

/// Starts a daemon and connects to it. The daemon runs until the first value of the result is dropped.
async fn start(
    hypervisor: StubHypervisor,
    loses_init_race: bool,
    timeouts: NestingTimeouts,
) -> ((tempfile::TempDir, FakeDaemon), Nesting) {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("nesting.sock");
    let daemon = FakeDaemon::start(&socket, Arc::new(hypervisor), loses_init_race).unwrap();
    let nesting = connect(&socket, timeouts).await.unwrap();
    ((directory, daemon), nesting)
}

#[tokio::test]
async fn n1_n2_n3_daemon_is_initialized_and_creates_machines_in_slots() {
    let (guard, nesting) = start(StubHypervisor::default(), false, NestingTimeouts::default()).await;
    let first = nesting.create("macos", Some(0)).await.unwrap();
    assert_eq!((first.machine.address.as_str(), &first.stomped), ("192.168.64.2", &None));
    let second = nesting.create("macos", Some(0)).await.unwrap();
    assert_eq!(second.stomped, Some(first.machine.id), "0 is a valid slot");
    assert_eq!(nesting.create("macos", None).await.unwrap().stomped, None);
    assert_eq!(nesting.create("macos", None).await.unwrap().stomped, None);
    assert_eq!(nesting.list().await.unwrap().len(), 3);
    assert_eq!(
        guard.1.init_calls(),
        (1, br#"{"image_directory":"/i"}"#.to_vec()),
        "the daemon must be initialized once, with this configuration"
    );
    let error = nesting.create("missing", Some(1)).await.unwrap_err().to_string();
    assert!(error.ends_with("Create failed: no such image"), "{error}");
    let is_second = |id: &str| id == second.machine.id;
    assert!(
        nesting
            .clear(is_second)
            .await
            .unwrap()
            .iter()
            .all(|(machine, removed)| !is_second(&machine.id) && removed.is_ok())
    );
    assert_eq!(nesting.list().await.unwrap().len(), 1);
    nesting.clear(|_| false).await.unwrap();
    assert_eq!(nesting.list().await.unwrap(), []);
    let error = nesting.delete(&second.machine.id).await.unwrap_err();
    assert!(matches!(error, NestingError::Refused { call: "Delete", .. }), "{error}");
}

#[tokio::test]
async fn n4_daemon_initialized_by_another_client_is_used() {
    let (_guard, nesting) = start(StubHypervisor::default(), true, NestingTimeouts::default()).await;
    assert_eq!(nesting.list().await.unwrap(), []);
}

#[tokio::test]
async fn hanging_or_missing_daemon_is_an_error() {
    let timeouts = NestingTimeouts { list: Duration::from_millis(100), ..NestingTimeouts::default() };
    let ((directory, _daemon), nesting) = start(StubHypervisor { hangs: true }, false, timeouts).await;
    let error = nesting.list().await.unwrap_err();
    assert!(matches!(error, NestingError::Timeout { call: "List", .. }), "{error}");
    let error = connect(&directory.path().join("none"), timeouts).await.unwrap_err().to_string();
    assert!(error.contains("nesting_host is correct"), "{error}");
}

/// Script that replaces the program `tart`, which the daemon uses as its hypervisor. Its machines are files.
const TART: &str = r#"#!/bin/sh
set -eu
cd "$(dirname "$0")"
case $1 in
clone) echo "$2" >"vm-$3" ;;
run) exec sleep 600 ;;
ip) [ -e "vm-$2" ] && echo 192.168.64.7 ;;
list) echo "Source Name"; for vm in vm-*; do [ ! -e "$vm" ] || echo "local ${vm#vm-}"; done ;;
delete) rm "vm-$2" ;;
esac
"#;

#[tokio::test]
async fn gitlabs_daemon_creates_and_deletes_machines() {
    let Some(daemon) = muster_test_prerequisites::variable("MUSTER_TEST_NESTING", "GitLab's nesting daemon") else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("nesting.sock");
    let tart = directory.path().join("tart");
    muster_test_prerequisites::create_program(&tart, TART);
    let path = format!("{}:{}", directory.path().display(), std::env::var("PATH").unwrap_or_default());
    let mut child = tokio::process::Command::new(daemon)
        .args(["serve", "-hypervisor", "tart"])
        .env("NESTING_SOCKET", &socket)
        .env("PATH", path)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    let nesting = loop {
        match connect(&socket, NestingTimeouts::default()).await {
            Ok(nesting) => break nesting,
            Err(error) => assert!(tokio::time::Instant::now() < deadline, "the daemon must serve: {error}"),
        }
        assert_eq!(child.try_wait().unwrap(), None, "the daemon must not exit");
        // The daemon does not signal that it is ready, so it is polled.
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let first = nesting.create("macos", Some(0)).await.unwrap();
    assert_eq!(first.machine.address, "192.168.64.7");
    let second = nesting.create("macos", Some(0)).await.unwrap();
    assert_eq!(second.stomped, Some(first.machine.id));
    assert_eq!(nesting.list().await.unwrap().len(), 1);
    nesting.clear(|_| false).await.unwrap();
    let error = nesting.delete(&second.machine.id).await.unwrap_err();
    assert!(matches!(error, NestingError::Refused { .. }), "{error}");
    let group = rustix::process::Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()).unwrap();
    rustix::process::kill_process_group(group, rustix::process::Signal::KILL).unwrap();
    child.wait().await.unwrap();
}
