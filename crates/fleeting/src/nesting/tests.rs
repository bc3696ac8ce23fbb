//! Against a daemon of the tests, and against the real one where `scripts/test` could build it.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use serde_json::json;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

use super::*;
use crate::connector::local::LocalSession;
use crate::protocol::nesting::nesting_server::{Nesting as Service, NestingServer};

/// Machines by id, and slots.
#[derive(Default)]
struct State {
    config: Option<Vec<u8>>,
    made: u32,
    machines: BTreeMap<String, String>,
    slots: BTreeMap<i32, String>,
}

#[derive(Default)]
struct Fake {
    state: Mutex<State>,
    /// It is initialised by another one between the question and the answer.
    raced: bool,
    hangs: bool,
}

impl Fake {
    fn ready(&self) -> Result<std::sync::MutexGuard<'_, State>, Status> {
        let state = self.state.lock().unwrap();
        if state.config.is_none() { Err(Status::failed_precondition(NOT_INITIALISED)) } else { Ok(state) }
    }
}

#[tonic::async_trait]
impl Service for Fake {
    async fn init(&self, request: Request<wire::InitRequest>) -> Result<Response<wire::InitResponse>, Status> {
        let mut state = self.state.lock().unwrap();
        if state.config.replace(request.into_inner().config).is_some() || self.raced {
            return Err(Status::failed_precondition(INITIALISED));
        }
        Ok(Response::new(wire::InitResponse {}))
    }

    async fn create(&self, request: Request<wire::CreateRequest>) -> Result<Response<wire::CreateResponse>, Status> {
        let mut state = self.ready()?;
        let wire::CreateRequest { name, slot } = request.into_inner();
        if name == "none" {
            return Err(Status::unknown("no such image"));
        }
        let stomped = slot.and_then(|slot| state.slots.remove(&slot));
        if let Some(id) = &stomped {
            state.machines.remove(id);
        }
        state.made += 1;
        let id = format!("nesting-{}", state.made);
        state.machines.insert(id.clone(), name.clone());
        if let Some(slot) = slot {
            state.slots.insert(slot, id.clone());
        }
        let vm = Some(wire::VirtualMachine { id, name, addr: "192.168.64.2".to_owned() });
        Ok(Response::new(wire::CreateResponse { vm, stomped_vm_id: stomped }))
    }

    async fn delete(&self, request: Request<wire::DeleteRequest>) -> Result<Response<wire::DeleteResponse>, Status> {
        let id = request.into_inner().id;
        let removed = self.ready()?.machines.remove(&id);
        removed
            .map(|_| Response::new(wire::DeleteResponse {}))
            .ok_or_else(|| Status::unknown(format!("no vm ({id}) found")))
    }

    async fn list(&self, _: Request<wire::ListRequest>) -> Result<Response<wire::ListResponse>, Status> {
        if self.hangs {
            std::future::pending::<()>().await;
        }
        let machine = |(id, name): (&String, &String)| wire::VirtualMachine {
            id: id.clone(),
            name: name.clone(),
            addr: String::new(),
        };
        let vms = self.ready()?.machines.iter().map(machine).collect();
        Ok(Response::new(wire::ListResponse { vms }))
    }

    async fn shutdown(&self, _: Request<wire::ShutdownRequest>) -> Result<Response<wire::ShutdownResponse>, Status> {
        Ok(Response::new(wire::ShutdownResponse {}))
    }
}

async fn connect(socket: &Path, limits: NestingLimits) -> Result<Nesting, NestingError> {
    let host = format!("unix://{}", socket.display());
    Nesting::connect(Arc::new(LocalSession), &host, &json!({"image_directory": "/i"}), limits).await
}

/// Keeps the socket's directory.
async fn start(fake: Fake, limits: NestingLimits) -> (tempfile::TempDir, Nesting) {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("nesting.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let server = tonic::transport::Server::builder().add_service(NestingServer::new(fake));
    tokio::spawn(server.serve_with_incoming(UnixListenerStream::new(listener)));
    let nesting = connect(&socket, limits).await.unwrap();
    (directory, nesting)
}

#[tokio::test]
async fn n1_n2_n3_machines_are_made_in_slots_by_a_daemon_that_is_initialised_when_needed() {
    let (_directory, nesting) = start(Fake::default(), NestingLimits::default()).await;
    let first = nesting.create("macos", Some(0)).await.unwrap();
    assert_eq!((first.machine.address.as_str(), &first.stomped), ("192.168.64.2", &None));
    let second = nesting.create("macos", Some(0)).await.unwrap();
    assert_eq!(second.stomped, Some(first.machine.id), "slot 0 is a slot");
    assert_eq!(nesting.create("macos", None).await.unwrap().stomped, None);
    assert_eq!(nesting.create("macos", None).await.unwrap().stomped, None);
    assert_eq!(nesting.list().await.unwrap().len(), 3);
    let error = nesting.create("none", Some(1)).await.unwrap_err().to_string();
    assert!(error.ends_with("Create failed: no such image"), "{error}");
    assert_eq!(nesting.clear().await.unwrap().len(), 0);
    assert_eq!(nesting.list().await.unwrap(), []);
    let error = nesting.delete(&second.machine.id).await.unwrap_err();
    assert!(matches!(error, NestingError::Refused { call: "Delete", .. }), "{error}");
}

#[tokio::test]
async fn n4_a_daemon_that_another_one_initialised_is_used() {
    let (_directory, nesting) = start(Fake { raced: true, ..Fake::default() }, NestingLimits::default()).await;
    assert_eq!(nesting.list().await.unwrap(), []);
}

#[tokio::test]
async fn a_daemon_that_hangs_or_is_not_there_keeps_nobody() {
    let limits = NestingLimits { list: Duration::from_millis(100), ..NestingLimits::default() };
    let (directory, nesting) = start(Fake { hangs: true, ..Fake::default() }, limits).await;
    let error = nesting.list().await.unwrap_err();
    assert!(matches!(error, NestingError::Deadline { call: "List", .. }), "{error}");
    let error = connect(&directory.path().join("none"), limits).await.unwrap_err().to_string();
    assert!(error.contains("is nesting_host right?"), "{error}");
}

/// What the daemon's backend `tart` runs: machines are files.
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
async fn the_real_daemon_is_spoken_with() {
    let Some(daemon) = muster_test_needs::variable("MUSTER_TEST_NESTING", "GitLab's nesting daemon") else { return };
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("nesting.sock");
    let tart = directory.path().join("tart");
    std::fs::write(&tart, TART).unwrap();
    std::fs::set_permissions(&tart, std::fs::Permissions::from_mode(0o755)).unwrap();
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
        match connect(&socket, NestingLimits::default()).await {
            Ok(nesting) => break nesting,
            Err(error) => assert!(tokio::time::Instant::now() < deadline, "the daemon does not serve: {error}"),
        }
        assert_eq!(child.try_wait().unwrap(), None, "the daemon has ended");
        // The daemon tells nobody that it serves: there is no event.
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let first = nesting.create("macos", Some(0)).await.unwrap();
    assert_eq!(first.machine.address, "192.168.64.7");
    let second = nesting.create("macos", Some(0)).await.unwrap();
    assert_eq!(second.stomped, Some(first.machine.id));
    assert_eq!(nesting.list().await.unwrap().len(), 1);
    assert_eq!(nesting.clear().await.unwrap().len(), 0);
    let error = nesting.delete(&second.machine.id).await.unwrap_err();
    assert!(matches!(error, NestingError::Refused { .. }), "{error}");
    let group = rustix::process::Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()).unwrap();
    rustix::process::kill_process_group(group, rustix::process::Signal::KILL).unwrap();
    child.wait().await.unwrap();
}
