//! Plugins that mean ill, or are broken: the process is a script, and its service is a server of this test.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status as GrpcStatus};

use super::{CallError, Group, PluginSpec};
use crate::model::{InstanceId, InstanceState};
use crate::protocol::group::instance_group_server::{InstanceGroup, InstanceGroupServer};
use crate::protocol::group::{
    ConnectInfoRequest, ConnectInfoResponse, ConnectorConfig, DecreaseRequest, DecreaseResponse, Empty,
    HeartbeatRequest, IncreaseRequest, IncreaseResponse, InitRequest, InitResponse, ResumeRequest, ResumeResponse,
    SuspendRequest, SuspendResponse, UpdateResponse,
};

/// What a plugin does at each call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    Well,
    Hangs,
    Fails,
    Lacks,
    Panics,
    Nonsense,
    Huge,
    Endless,
    Exits,
}

const MANNERS: [Manner; 9] = [
    Manner::Well,
    Manner::Hangs,
    Manner::Fails,
    Manner::Lacks,
    Manner::Panics,
    Manner::Nonsense,
    Manner::Huge,
    Manner::Endless,
    Manner::Exits,
];

/// What its process does after the handshake.
const BODIES: [&str; 4] = [
    "exec sleep 600",
    "while :; do echo garbage; done",
    "while :; do echo '{\"@level\":7' >&2; done",
    "trap '' TERM INT; sleep 600 & exec sleep 600",
];

struct Hostile {
    manner: Manner,
    pid_file: PathBuf,
    asked: Asked,
}

/// The last `Init` that it was asked.
type Asked = Arc<std::sync::Mutex<Option<InitRequest>>>;

impl Hostile {
    async fn behave<T>(&self, well: T, nonsense: T) -> Result<Response<T>, GrpcStatus> {
        match self.manner {
            Manner::Well | Manner::Huge | Manner::Endless => Ok(Response::new(well)),
            Manner::Nonsense => Ok(Response::new(nonsense)),
            Manner::Hangs => std::future::pending().await,
            Manner::Fails => Err(GrpcStatus::unknown("quota exceeded")),
            Manner::Lacks => Err(GrpcStatus::unimplemented("no such call")),
            Manner::Panics => panic!("a defect of the plugin"),
            Manner::Exits => {
                let pid = std::fs::read_to_string(&self.pid_file).unwrap_or_default();
                if let Some(pid) = pid.trim().parse().ok().and_then(rustix::process::Pid::from_raw) {
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                }
                std::future::pending().await
            }
        }
    }

    fn text(&self) -> String {
        if self.manner == Manner::Huge { "x".repeat(20 * 1024 * 1024) } else { "i1".to_owned() }
    }
}

#[tonic::async_trait]
impl InstanceGroup for Hostile {
    type UpdateStream = Pin<Box<dyn Stream<Item = Result<UpdateResponse, GrpcStatus>> + Send>>;

    async fn init(&self, request: Request<InitRequest>) -> Result<Response<InitResponse>, GrpcStatus> {
        *self.asked.lock().unwrap() = Some(request.into_inner());
        let capabilities = vec!["suspend_resume".to_owned(), "flying".to_owned()];
        Ok(Response::new(InitResponse {
            id: "hostile".to_owned(),
            max_size: u32::MAX,
            capabilities,
            ..Default::default()
        }))
    }

    async fn update(&self, _: Request<Empty>) -> Result<Response<Self::UpdateStream>, GrpcStatus> {
        let one = UpdateResponse { instance: self.text(), state: 1 };
        let unknown = UpdateResponse { instance: "i2".to_owned(), state: 8 };
        let nameless = UpdateResponse { instance: String::new(), state: -7 };
        let stream: Self::UpdateStream = if self.manner == Manner::Endless {
            Box::pin(futures::stream::iter(0_u64..).map(|n| Ok(UpdateResponse { instance: format!("i{n}"), state: 1 })))
        } else {
            let well: Vec<_> = [one, unknown].into_iter().map(Ok).collect();
            let broken = vec![Ok(nameless), Err(GrpcStatus::internal("half way"))];
            let messages = self.behave(well, broken).await?.into_inner();
            Box::pin(futures::stream::iter(messages))
        };
        Ok(Response::new(stream))
    }

    async fn increase(&self, request: Request<IncreaseRequest>) -> Result<Response<IncreaseResponse>, GrpcStatus> {
        let succeeded = request.into_inner().n;
        self.behave(IncreaseResponse { succeeded }, IncreaseResponse { succeeded: u32::MAX }).await
    }

    async fn decrease(&self, request: Request<DecreaseRequest>) -> Result<Response<DecreaseResponse>, GrpcStatus> {
        let succeeded = request.into_inner().instances;
        let others = ["i1", "i1", "somebody else's", ""].map(str::to_owned).to_vec();
        self.behave(DecreaseResponse { succeeded }, DecreaseResponse { succeeded: others }).await
    }

    async fn connect_info(&self, _: Request<ConnectInfoRequest>) -> Result<Response<ConnectInfoResponse>, GrpcStatus> {
        let well = ConnectInfoResponse {
            connector: Some(ConnectorConfig { keepalive: -1, ..Default::default() }),
            external_addr: self.text(),
            ..Default::default()
        };
        self.behave(well, ConnectInfoResponse::default()).await
    }

    async fn heartbeat(&self, _: Request<HeartbeatRequest>) -> Result<Response<Empty>, GrpcStatus> {
        self.behave(Empty {}, Empty {}).await
    }

    async fn suspend(&self, request: Request<SuspendRequest>) -> Result<Response<SuspendResponse>, GrpcStatus> {
        let succeeded = request.into_inner().instances;
        self.behave(SuspendResponse { succeeded }, SuspendResponse { succeeded: vec!["?".to_owned()] }).await
    }

    async fn resume(&self, _: Request<ResumeRequest>) -> Result<Response<ResumeResponse>, GrpcStatus> {
        self.behave(ResumeResponse::default(), ResumeResponse::default()).await
    }

    async fn shutdown(&self, _: Request<Empty>) -> Result<Response<Empty>, GrpcStatus> {
        self.behave(Empty {}, Empty {}).await
    }
}

/// A plugin whose process is a script and whose service is here.
struct Fake {
    asked: Asked,
    directory: TempDir,
    server: JoinHandle<()>,
}

impl Fake {
    fn new(manner: Manner, body: &str) -> Self {
        let directory = TempDir::new().unwrap();
        let socket = directory.path().join("socket");
        let script = directory.path().join("fleeting-plugin-hostile");
        let pid_file = directory.path().join("pid");
        let text = format!(
            "#!/bin/sh\necho $$ > '{}'\necho '1|0|unix|{}|grpc|'\n{body}\n",
            pid_file.display(),
            socket.display()
        );
        std::fs::write(&script, text).unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        let listener = UnixListener::bind(&socket).unwrap();
        let asked = Asked::default();
        let service = InstanceGroupServer::new(Hostile { manner, pid_file, asked: Arc::clone(&asked) })
            .max_encoding_message_size(usize::MAX)
            .max_decoding_message_size(usize::MAX);
        let server = tonic::transport::Server::builder().add_service(service);
        let serve = async { server.serve_with_incoming(UnixListenerStream::new(listener)).await.unwrap() };
        Self { asked, server: tokio::spawn(serve), directory }
    }

    async fn start(&self) -> Group {
        let mut spec = PluginSpec::new(self.directory.path().join("fleeting-plugin-hostile"));
        let short = Duration::from_millis(150);
        spec.limits.update = Duration::from_secs(5);
        spec.limits.change = short;
        spec.limits.connect_info = short;
        spec.limits.heartbeat = short;
        spec.limits.shutdown = short;
        spec.limits.exit = short;
        spec.limits.restart_first = Duration::from_secs(60);
        Group::start(spec).await.unwrap()
    }

    fn is_alive(&self) -> bool {
        let pid = std::fs::read_to_string(self.directory.path().join("pid")).unwrap_or_default();
        !pid.trim().is_empty() && Path::new("/proc").join(pid.trim()).exists()
    }
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
    let fake = Fake::new(manner, BODIES[0]);
    let group = fake.start().await;
    let result = calls(&group).await;
    group.stop().await;
    assert!(!fake.is_alive(), "H10: without a controller it is killed when its time is up");
    result
}

#[tokio::test]
async fn h18_settings_that_are_not_there_are_null_and_the_connectors_have_their_defaults() {
    let fake = Fake::new(Manner::Well, BODIES[0]);
    fake.start().await.stop().await;
    let request = fake.asked.lock().unwrap().take().unwrap();
    assert_eq!(request.config, b"null");
    let connector = request.settings.unwrap().connector_config.unwrap();
    assert_eq!((connector.keepalive, connector.timeout), (30_000_000_000, 600_000_000_000));
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
    let fake = Fake::new(Manner::Hangs, BODIES[0]);
    let group = fake.start().await;
    let error = group.increase(1).await.unwrap_err();
    assert!(matches!(error, CallError::Deadline { .. }), "{error}");
    let mut status = group.status();
    status.wait_for(|status| matches!(status, super::Status::Down { .. })).await.unwrap();
    let error = group.increase(1).await.unwrap_err();
    assert!(error.to_string().contains("is not running: it did not answer"), "{error}");
    assert!(!fake.is_alive());
    group.stop().await;
}

/// Any plugin, any order of calls: each call ends with an answer or an error, and no process is left.
#[tokio::test]
async fn hostile_plugins_are_contained() {
    let seed: u64 =
        std::env::var("MUSTER_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    let runs = if std::env::var_os("MUSTER_TEST_ALL").is_some() { 300 } else { 40 };
    eprintln!("seed {seed}, {runs} runs");
    let mut random = StdRng::seed_from_u64(seed);
    let plans: Vec<(Manner, &str, Vec<u8>)> = (0..runs)
        .map(|_| {
            let calls = (0..3).map(|_| random.random_range(0..6)).collect();
            (MANNERS[random.random_range(0..MANNERS.len())], BODIES[random.random_range(0..BODIES.len())], calls)
        })
        .collect();
    let plans = Arc::new(plans);
    let each = |run: usize| {
        let plans = Arc::clone(&plans);
        async move {
            let (manner, body, calls) = &plans[run];
            let fake = Fake::new(*manner, body);
            let group = fake.start().await;
            for call in calls {
                let ids = [id("i1"), id("i2")];
                let made_sense = match call {
                    0 => group.update().await.map(drop),
                    1 => group.increase(2).await.map(|n| assert!(n <= 2)),
                    2 => group.decrease(&ids).await.map(|done| assert!(done.iter().all(|id| ids.contains(id)))),
                    3 => group.connect_info(&ids[0]).await.map(drop),
                    4 => group.heartbeat(&ids[0]).await,
                    _ => group.suspend(&ids).await.map(|done| assert!(done.iter().all(|id| ids.contains(id)))),
                };
                if let Err(error) = made_sense {
                    assert!(error.to_string().starts_with("plugin hostile"), "run {run} of seed {seed}: {error}");
                }
            }
            group.stop().await;
            assert!(!fake.is_alive(), "run {run} of seed {seed}: {manner:?} left its process");
        }
    };
    futures::stream::iter(0..runs).map(each).buffer_unordered(8).collect::<Vec<()>>().await;
}
