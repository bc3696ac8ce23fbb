//! Tests of the host with faulty plugins: the process is a script, and a server in the test process is its service.

mod judged;
mod order;
mod seeded;
mod transport;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;

use super::{CallError, Group, PluginSpec};
use crate::hostile::{Asked, Call, Hostile, Manner, Manners, SLEEP, WELL, always};
use crate::model::{InstanceId, InstanceState};
use crate::protocol::plugin::grpc_controller_server::GrpcControllerServer;
use crate::protocol::plugin::grpc_stdio_server::GrpcStdioServer;

/// A plugin whose process is a script and whose service runs in the test process.
struct Fake {
    asked: Asked,
    directory: TempDir,
    server: JoinHandle<()>,
}

impl Fake {
    /// Creates a plugin that starts normally and then behaves in one way for all calls.
    fn new(manner: Manner) -> Self {
        Self::with(always(manner), WELL, SLEEP)
    }

    fn with(manners: Manners, begin: &str, body: &str) -> Self {
        Self::whole(manners, begin, body, None)
    }

    fn whole(manners: Manners, begin: &str, body: &str, beside: Option<order::Beside>) -> Self {
        let directory = TempDir::new().unwrap();
        let socket = directory.path().join("socket");
        let script = directory.path().join("fleeting-plugin-hostile");
        let pid_file = directory.path().join("pids");
        let text =
            format!("#!/bin/sh\necho $$ >> '{}'\nsocket='{}'\n{begin}\n{body}\n", pid_file.display(), socket.display());
        std::fs::write(&script, text).unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        let listener = UnixListener::bind(&socket).unwrap();
        let exit = move || {
            if let Some(pid) = pids(&pid_file).pop().and_then(rustix::process::Pid::from_raw) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        };
        let mut service = Hostile::new(manners, exit);
        service.has("i1", 1);
        service.has("i2", 8);
        let asked = Arc::clone(&service.asked);
        if let Some(beside) = &beside {
            service.around = Arc::new(beside.clone());
        }
        let server = tonic::transport::Server::builder()
            .add_service(service.into_service())
            .add_optional_service(beside.clone().map(GrpcControllerServer::new))
            .add_optional_service(beside.map(GrpcStdioServer::new));
        let serve = async { server.serve_with_incoming(UnixListenerStream::new(listener)).await.unwrap() };
        Self { asked, server: tokio::spawn(serve), directory }
    }

    /// Returns the settings to start it, with short timeouts.
    fn spec(&self) -> PluginSpec {
        let mut spec = PluginSpec::new(self.directory.path().join("fleeting-plugin-hostile"));
        let short = Duration::from_millis(500);
        spec.limits.update = Duration::from_secs(5);
        spec.limits.change = short;
        spec.limits.connect_info = short;
        spec.limits.heartbeat = short;
        spec.limits.shutdown = short;
        spec.limits.exit = short;
        spec.limits.restart_first = Duration::from_secs(60);
        spec
    }

    async fn start(&self) -> Group {
        Group::start(self.spec()).await.unwrap()
    }

    /// Returns whether any process of a start is alive. Each start has its own process group.
    fn is_alive(&self) -> bool {
        let groups = pids(&self.directory.path().join("pids"));
        let stats = std::fs::read_dir("/proc").unwrap().flatten();
        let mut stats = stats.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
        // `pid (name) state parent group ...`
        stats.any(|stat| {
            let Some((_, rest)) = stat.rsplit_once(") ") else { return false };
            let mut words = rest.split(' ');
            let (state, group) = (words.next(), words.nth(1).and_then(|group| group.parse().ok()));
            state != Some("Z") && group.is_some_and(|group: i32| groups.contains(&group))
        })
    }

    /// Waits until no process is alive, because killed processes take a moment to end.
    async fn ended(&self) {
        let wait = async {
            while self.is_alive() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), wait).await.expect("a process of the plugin is left");
    }
}

/// Returns the process ids of all starts, the latest last.
fn pids(file: &Path) -> Vec<i32> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.server.abort();
    }
}

fn id(name: &str) -> InstanceId {
    InstanceId::new(name)
}

async fn with<T>(manner: Manner, calls: impl AsyncFnOnce(&Group) -> T) -> T {
    let fake = Fake::new(manner);
    let group = fake.start().await;
    let result = calls(&group).await;
    group.stop().await;
    // H10: the plugin has no controller service, so it is killed after its timeout.
    fake.ended().await;
    result
}

#[tokio::test]
async fn h18_settings_that_are_not_there_are_null_and_the_connectors_have_their_defaults() {
    let fake = Fake::new(Manner::Well);
    fake.start().await.stop().await;
    let request = fake.asked.lock().unwrap().take().unwrap();
    assert_eq!(request.config, b"null");
    let connector = request.settings.unwrap().connector_config.unwrap();
    assert_eq!((connector.keepalive, connector.timeout), (30_000_000_000, 600_000_000_000));
}

/// An incomplete list would mean that the other instances are missing. The Go host accepts it and removes nothing.
#[tokio::test]
async fn v13_a_list_that_breaks_off_is_no_list() {
    let mut manners = always(Manner::Well);
    manners[Call::Update as usize] = Manner::BreaksOff;
    let fake = Fake::with(manners, WELL, SLEEP);
    let group = fake.start().await;
    let error = group.update().await.unwrap_err();
    assert!(matches!(error, CallError::Refused { call: "Update", .. }), "{error}");
    assert!(error.to_string().ends_with("Update failed: the stream broke"), "{error}");
    group.stop().await;
    fake.ended().await;
}

#[tokio::test]
async fn h10_h12_calls_that_a_plugin_lacks_are_fine_where_the_protocol_says_so() {
    with(Manner::Lacks, async |group| {
        group.heartbeat(&id("i1")).await.unwrap();
        let error = group.suspend(&[id("i1")]).await.unwrap_err();
        assert!(matches!(error, CallError::NoCapability { .. }), "{error}");
        assert!(matches!(group.update().await, Err(CallError::Refused { .. })));
    })
    .await;
}

#[tokio::test]
async fn h14_a_state_that_nobody_knows_ends_nothing() {
    let snapshot = with(Manner::Well, async |group| group.update().await.unwrap()).await;
    let state = snapshot.instances[&id("i2")];
    assert_eq!((state.to_string().as_str(), state.is_gone()), ("8", false));
    assert_eq!(snapshot.instances[&id("i1")], InstanceState::Running);
}

#[tokio::test]
async fn h15_p13_answers_that_make_no_sense_are_told_or_cut() {
    with(Manner::Nonsense, async |group| {
        let error = group.connect_info(&id("i1")).await.unwrap_err();
        assert!(error.to_string().contains("no connector for i1"), "the Go host dies of it: {error}");
        assert_eq!(group.increase(3).await.unwrap(), 3, "more than was asked counts as asked");
        assert_eq!(group.decrease(&[id("i1")]).await.unwrap(), [id("i1")], "only what was asked, once");
        let error = group.update().await.unwrap_err();
        assert!(error.to_string().contains("an instance id of 0 bytes"), "{error}");
    })
    .await;
}

#[tokio::test]
async fn what_is_too_much_is_refused() {
    let error = with(Manner::Endless, async |group| group.update().await.unwrap_err()).await;
    assert!(error.to_string().contains("more than 100000 instances"), "{error}");
    let error = with(Manner::Huge, async |group| group.update().await.unwrap_err()).await;
    assert!(error.to_string().contains("message length too large"), "{error}");
}

#[tokio::test]
async fn a_call_without_an_answer_ends_the_process_that_owes_it() {
    let fake = Fake::new(Manner::Hangs);
    let group = fake.start().await;
    let error = group.increase(1).await.unwrap_err();
    assert!(matches!(error, CallError::Deadline { .. }), "{error}");
    let mut status = group.status();
    status.wait_for(|status| matches!(status, super::Status::Down { .. })).await.unwrap();
    let error = group.increase(1).await.unwrap_err();
    assert!(error.to_string().contains("is not running: it did not answer"), "{error}");
    fake.ended().await;
    group.stop().await;
}
