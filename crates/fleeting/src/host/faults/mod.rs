//! Tests of the host with faulty plugins.
//! The plugin's process is a script. Its service is a server in the test process.

mod go_plugin_services;
mod seeded;
mod supervision;
mod transport;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;

use super::{CallError, Group, PluginSpec};
use crate::faulty_plugin::{Behavior, Behaviors, Call, FaultyPlugin, IDLE_BODY, LastInit, VALID_HANDSHAKE, always};
use crate::model::{InstanceId, InstanceState};
use crate::protocol::plugin::grpc_controller_server::GrpcControllerServer;
use crate::protocol::plugin::grpc_stdio_server::GrpcStdioServer;

struct TestPlugin {
    last_init: LastInit,
    directory: TempDir,
    server: JoinHandle<()>,
}

impl TestPlugin {
    /// Creates a plugin that starts normally and then has the same behavior for all calls.
    fn new(behavior: Behavior) -> Self {
        Self::with_script(always(behavior), VALID_HANDSHAKE, IDLE_BODY)
    }

    fn with_script(behaviors: Behaviors, start: &str, body: &str) -> Self {
        Self::with_services(behaviors, start, body, None)
    }

    fn with_services(
        behaviors: Behaviors,
        start: &str,
        body: &str,
        services: Option<go_plugin_services::GoPluginServices>,
    ) -> Self {
        let directory = TempDir::new().unwrap();
        let socket = directory.path().join("socket");
        let script = directory.path().join("fleeting-plugin-faulty");
        let pid_file = directory.path().join("pids");
        let text =
            format!("#!/bin/sh\necho $$ >> '{}'\nsocket='{}'\n{start}\n{body}\n", pid_file.display(), socket.display());
        muster_test_prerequisites::create_program(&script, text);
        let listener = UnixListener::bind(&socket).unwrap();
        let exit = move || {
            if let Some(pid) = pids(&pid_file).pop().and_then(rustix::process::Pid::from_raw) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        };
        let mut service = FaultyPlugin::new(behaviors, exit);
        service.add_instance("i1", 1);
        service.add_instance("i2", 8);
        let last_init = Arc::clone(&service.last_init);
        if let Some(services) = &services {
            service.hooks = Arc::new(services.clone());
        }
        let server = tonic::transport::Server::builder()
            .add_service(service.into_service())
            .add_optional_service(services.clone().map(GrpcControllerServer::new))
            .add_optional_service(services.map(GrpcStdioServer::new));
        let serve = async { server.serve_with_incoming(UnixListenerStream::new(listener)).await.unwrap() };
        Self { last_init, server: tokio::spawn(serve), directory }
    }

    /// Returns the settings to start the plugin: short timeouts, and a long delay before a restart.
    fn spec(&self) -> PluginSpec {
        let mut spec = PluginSpec::new(self.directory.path().join("fleeting-plugin-faulty"));
        let short = Duration::from_millis(500);
        spec.timeouts.update = Duration::from_secs(5);
        spec.timeouts.change = short;
        spec.timeouts.connect_info = short;
        spec.timeouts.heartbeat = short;
        spec.timeouts.shutdown = short;
        spec.timeouts.exit = short;
        spec.timeouts.restart_first = Duration::from_secs(60);
        spec
    }

    async fn start(&self) -> Group {
        Group::start(self.spec()).await.unwrap()
    }

    /// Returns whether any process of the plugin is alive. Each start has its own process group.
    fn is_alive(&self) -> bool {
        let groups = pids(&self.directory.path().join("pids"));
        let stats = std::fs::read_dir("/proc").unwrap().flatten();
        let mut stats = stats.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
        // `pid (name) state parent group ...`
        stats.any(|stat| {
            let Some((_, rest)) = stat.rsplit_once(") ") else { return false };
            let mut fields = rest.split(' ');
            let (state, group) = (fields.next(), fields.nth(1).and_then(|group| group.parse().ok()));
            state != Some("Z") && group.is_some_and(|group: i32| groups.contains(&group))
        })
    }

    /// Waits until no process is alive, because killed processes need a moment to exit.
    async fn wait_dead(&self) {
        let wait = async {
            while self.is_alive() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), wait).await.expect("a process of the plugin is still running");
    }
}

/// Returns the process IDs of all starts in order.
fn pids(file: &Path) -> Vec<i32> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

impl Drop for TestPlugin {
    fn drop(&mut self) {
        self.server.abort();
    }
}

fn id(name: &str) -> InstanceId {
    InstanceId::new(name)
}

async fn with_plugin<T>(behavior: Behavior, calls: impl AsyncFnOnce(&Group) -> T) -> T {
    let plugin = TestPlugin::new(behavior);
    let group = plugin.start().await;
    let result = calls(&group).await;
    group.stop().await;
    // Case H10: the plugin has no controller service, so it is killed after the exit timeout.
    plugin.wait_dead().await;
    result
}

#[tokio::test]
async fn h18_missing_config_is_null_and_connector_has_defaults() {
    let plugin = TestPlugin::new(Behavior::Normal);
    plugin.start().await.stop().await;
    let request = plugin.last_init.lock().unwrap().take().unwrap();
    assert_eq!(request.config, b"null");
    let connector = request.settings.unwrap().connector_config.unwrap();
    assert_eq!((connector.keepalive, connector.timeout), (30_000_000_000, 600_000_000_000));
}

/// Muster's host must reject an incomplete list, because Muster treats instances that a list omits as lost. The Go host accepts the
/// list, but deletes no instance because of it.
#[tokio::test]
async fn v13_truncated_list_is_an_error() {
    let mut behaviors = always(Behavior::Normal);
    behaviors[Call::Update as usize] = Behavior::TruncatedStream;
    let plugin = TestPlugin::with_script(behaviors, VALID_HANDSHAKE, IDLE_BODY);
    let group = plugin.start().await;
    let error = group.update().await.unwrap_err();
    assert!(matches!(error, CallError::Refused { call: "Update", .. }), "{error}");
    assert!(error.to_string().ends_with("Update failed: the stream broke"), "{error}");
    group.stop().await;
    plugin.wait_dead().await;
}

#[tokio::test]
async fn h10_h12_optional_calls_may_be_missing() {
    with_plugin(Behavior::Unimplemented, async |group| {
        group.heartbeat(&id("i1")).await.unwrap();
        let error = group.suspend(&[id("i1")]).await.unwrap_err();
        assert!(matches!(error, CallError::NoCapability { .. }), "{error}");
        assert!(matches!(group.update().await, Err(CallError::Refused { .. })));
    })
    .await;
}

#[tokio::test]
async fn h14_instance_with_unknown_state_is_not_deleted() {
    let snapshot = with_plugin(Behavior::Normal, async |group| group.update().await.unwrap()).await;
    let state = snapshot.instances[&id("i2")];
    assert_eq!((state.to_string().as_str(), state.is_deleted()), ("8", false));
    assert_eq!(snapshot.instances[&id("i1")], InstanceState::Running);
}

#[tokio::test]
async fn h15_p13_invalid_responses_are_rejected_or_corrected() {
    with_plugin(Behavior::InvalidResponse, async |group| {
        let error = group.connect_info(&id("i1")).await.unwrap_err();
        assert!(
            error.to_string().contains("no connector for i1"),
            "the host must report the missing connector (the Go host crashes): {error}"
        );
        assert_eq!(group.increase(3).await.unwrap(), 3, "no more instances than requested must be counted");
        assert_eq!(
            group.decrease(&[id("i1")]).await.unwrap(),
            [id("i1")],
            "only requested IDs must be returned, each of them once"
        );
        let error = group.update().await.unwrap_err();
        assert!(error.to_string().contains("an instance ID of 0 bytes"), "{error}");
    })
    .await;
}

#[tokio::test]
async fn oversized_responses_are_rejected() {
    let error = with_plugin(Behavior::EndlessStream, async |group| group.update().await.unwrap_err()).await;
    assert!(error.to_string().contains("more than 100000 instances"), "{error}");
    let error = with_plugin(Behavior::HugeResponse, async |group| group.update().await.unwrap_err()).await;
    assert!(error.to_string().contains("message length too large"), "{error}");
}

#[tokio::test]
async fn process_is_killed_when_it_does_not_respond() {
    let plugin = TestPlugin::new(Behavior::Hangs);
    let group = plugin.start().await;
    let error = group.increase(1).await.unwrap_err();
    assert!(matches!(error, CallError::Timeout { .. }), "{error}");
    let mut status = group.status();
    status.wait_for(|status| matches!(status, super::PluginStatus::Down { .. })).await.unwrap();
    let error = group.increase(1).await.unwrap_err();
    assert!(error.to_string().contains("is not running: no response"), "{error}");
    plugin.wait_dead().await;
    group.stop().await;
}
