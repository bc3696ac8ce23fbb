//! A plugin with configurable faults, for tests of code that runs plugins. [`Script::draw`] chooses random faults.
//!
//! The plugin's process prints a valid or invalid handshake ([`Script::start`]) and continues with [`Script::body`]. [`Script::behaviors`] defines
//! how the plugin's service ([`FaultyPlugin`]) reacts to each call.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::Stream;
use rand::Rng;
use rand::seq::IndexedRandom;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

use crate::protocol::group::instance_group_server::{InstanceGroup, InstanceGroupServer};
use crate::protocol::group::{
    ConnectInfoRequest, ConnectInfoResponse, ConnectorConfig, DecreaseRequest, DecreaseResponse, Empty,
    HeartbeatRequest, IncreaseRequest, IncreaseResponse, InitRequest, InitResponse, ResumeRequest, ResumeResponse,
    SuspendRequest, SuspendResponse, UpdateResponse,
};

/// What the plugin does when it receives a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behavior {
    /// Responds as it should.
    Normal,
    /// Responds as it should, after a delay.
    Slow,
    /// Never responds.
    Hangs,
    /// Returns an error.
    Fails,
    /// Returns an error with the code that gRPC uses for a failed transport.
    Unavailable,
    /// Does not implement the call.
    Unimplemented,
    /// Panics.
    Panics,
    /// Returns an invalid response, such as unknown or empty IDs, more instances than requested, negative states, or no connector.
    ///
    /// `Heartbeat`, `Resume` and `Shutdown` respond normally.
    InvalidResponse,
    /// Returns a response of 20 MiB for `Init`, `Update` and `ConnectInfo`. Other calls respond normally.
    HugeResponse,
    /// Returns an endless list for `Update`. Other calls respond normally.
    EndlessStream,
    /// For `Update`, lists the instances and then returns an error. Other calls return an error.
    TruncatedStream,
    /// Exits.
    Exits,
}

const BEHAVIORS: [Behavior; 12] = [
    Behavior::Normal,
    Behavior::Slow,
    Behavior::Hangs,
    Behavior::Fails,
    Behavior::Unavailable,
    Behavior::Unimplemented,
    Behavior::Panics,
    Behavior::InvalidResponse,
    Behavior::HugeResponse,
    Behavior::EndlessStream,
    Behavior::TruncatedStream,
    Behavior::Exits,
];

/// The calls whose behaviors are chosen separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// `Init`.
    Init,
    /// `Update`.
    Update,
    /// `Increase`.
    Increase,
    /// `Decrease`.
    Decrease,
    /// `ConnectInfo`.
    ConnectInfo,
    /// `Heartbeat`.
    Heartbeat,
    /// `Suspend` and `Resume`.
    Suspend,
    /// `Shutdown`.
    Shutdown,
}

/// Behavior of each [`Call`], in the order of the calls.
pub type Behaviors = [Behavior; 8];

/// First part of the shell script that the process runs: prints a valid handshake.
/// The shell variable `$socket` has the path of the socket.
pub const VALID_HANDSHAKE: &str = "echo \"1|0|unix|$socket|grpc|\"";
/// Rest of the script: only waits.
pub const IDLE_BODY: &str = "exec sleep 600";

/// Possible first parts of the script.
const STARTS: [&str; 9] = [
    VALID_HANDSHAKE,
    "head -c 3000 /dev/urandom",
    "printf '1|0|unix|'",
    "printf '1|0|unix|'; exit 0",
    "exec tr '\\0' x </dev/zero",
    "",
    "exit 7",
    "echo '1|5|unix|/x|grpc|'",
    "echo '1|0|unix|/nowhere/socket|grpc|'",
];

/// Possible rests of the script.
const BODIES: [&str; 4] = [
    IDLE_BODY,
    "while :; do echo garbage; done",
    "while :; do echo '{\"@level\":7' >&2; done",
    "trap '' TERM INT; sleep 600 & exec sleep 600",
];

/// A plugin: the shell script that its process runs, and the behaviors of its service.
#[derive(Debug, Clone)]
pub struct Script {
    /// First part of the shell script. [`VALID_HANDSHAKE`] prints a valid handshake.
    pub start: &'static str,
    /// Rest of the shell script.
    pub body: &'static str,
    /// Behavior of each [`Call`], in the order of the calls.
    pub behaviors: Behaviors,
}

impl Script {
    /// Draws a plugin. Most plugins start correctly, because calls are only tested after a start.
    pub fn draw(random: &mut impl Rng) -> Self {
        let start =
            if random.random_ratio(3, 4) { VALID_HANDSHAKE } else { STARTS.choose(random).unwrap_or(&VALID_HANDSHAKE) };
        let mut behaviors: Behaviors =
            std::array::from_fn(|_| BEHAVIORS.choose(random).copied().unwrap_or(Behavior::Normal));
        if random.random_ratio(3, 4) {
            let [init, ..] = &mut behaviors;
            *init = Behavior::Normal;
        }
        Self { start, body: BODIES.choose(random).unwrap_or(&IDLE_BODY), behaviors }
    }

    /// Returns the behavior of a call.
    #[must_use]
    pub fn behavior(&self, call: Call) -> Behavior {
        self.behaviors.get(call as usize).copied().unwrap_or(Behavior::Normal)
    }
}

/// The last `Init` request.
pub(crate) type LastInit = Arc<Mutex<Option<InitRequest>>>;

/// Hooks with which a test observes or delays calls.
#[tonic::async_trait]
pub(crate) trait CallHooks: Send + Sync {
    /// Runs before `Update` responds.
    async fn before_update(&self) {}
    /// Runs when `Shutdown` is called.
    fn on_shutdown(&self) {}
}

struct NoHooks;
impl CallHooks for NoHooks {}

/// The gRPC service.
pub struct FaultyPlugin {
    behaviors: Behaviors,
    exit: Box<dyn Fn() + Send + Sync>,
    /// State number of each instance.
    instances: Mutex<BTreeMap<String, i32>>,
    pub(crate) last_init: LastInit,
    pub(crate) hooks: Arc<dyn CallHooks>,
}

impl FaultyPlugin {
    /// Creates a service with these behaviors. `exit` ends the process.
    pub fn new(behaviors: Behaviors, exit: impl Fn() + Send + Sync + 'static) -> Self {
        let (instances, last_init) = (Mutex::default(), LastInit::default());
        Self { behaviors, exit: Box::new(exit), instances, last_init, hooks: Arc::new(NoHooks) }
    }

    /// Serves until the future is dropped.
    ///
    /// # Errors
    /// An error of the transport.
    pub async fn serve(self, listener: UnixListener) -> Result<(), tonic::transport::Error> {
        let server = tonic::transport::Server::builder().add_service(self.into_service());
        server.serve_with_incoming(UnixListenerStream::new(listener)).await
    }

    /// Adds an instance that exists from the start.
    #[cfg(test)]
    pub(crate) fn add_instance(&self, name: &str, state: i32) {
        self.instances().insert(name.to_owned(), state);
    }

    pub(crate) fn into_service(self) -> InstanceGroupServer<Self> {
        let service = InstanceGroupServer::new(self);
        service.max_encoding_message_size(usize::MAX).max_decoding_message_size(usize::MAX)
    }

    fn instances(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, i32>> {
        self.instances.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn behavior(&self, call: Call) -> Behavior {
        self.behaviors.get(call as usize).copied().unwrap_or(Behavior::Normal)
    }

    async fn respond<T>(&self, call: Call, normal: T, invalid: T) -> Result<Response<T>, Status> {
        match self.behavior(call) {
            Behavior::Slow => {
                tokio::time::sleep(Duration::from_millis(30)).await;
                Ok(Response::new(normal))
            }
            Behavior::Normal | Behavior::HugeResponse | Behavior::EndlessStream => Ok(Response::new(normal)),
            Behavior::InvalidResponse => Ok(Response::new(invalid)),
            Behavior::Hangs => std::future::pending().await,
            Behavior::Fails | Behavior::TruncatedStream => Err(Status::unknown("quota exceeded")),
            Behavior::Unavailable => Err(Status::unavailable("the provider's API is down")),
            Behavior::Unimplemented => Err(Status::unimplemented("no such call")),
            #[expect(clippy::panic, reason = "this fault is a panic")]
            Behavior::Panics => panic!("a defect of the plugin"),
            Behavior::Exits => {
                (self.exit)();
                std::future::pending().await
            }
        }
    }

    /// Returns the text, or 20 MiB for [`Behavior::HugeResponse`].
    fn text(&self, call: Call, text: &str) -> String {
        if self.behavior(call) == Behavior::HugeResponse { "x".repeat(20 * 1024 * 1024) } else { text.to_owned() }
    }
}

#[tonic::async_trait]
impl InstanceGroup for FaultyPlugin {
    type UpdateStream = Pin<Box<dyn Stream<Item = Result<UpdateResponse, Status>> + Send>>;

    async fn init(&self, request: Request<InitRequest>) -> Result<Response<InitResponse>, Status> {
        *self.last_init.lock().unwrap_or_else(PoisonError::into_inner) = Some(request.into_inner());
        let capabilities = vec!["suspend_resume".to_owned(), "unknown_capability".to_owned()];
        let id = self.text(Call::Init, "faulty");
        let normal = InitResponse { id, max_size: u32::MAX, capabilities, ..Default::default() };
        self.respond(Call::Init, normal, InitResponse::default()).await
    }

    async fn update(&self, _: Request<Empty>) -> Result<Response<Self::UpdateStream>, Status> {
        self.hooks.before_update().await;
        if self.behavior(Call::Update) == Behavior::EndlessStream {
            let list = (0_u64..).map(|n| Ok(UpdateResponse { instance: format!("i{n}"), state: 1 }));
            return Ok(Response::new(Box::pin(futures::stream::iter(list))));
        }
        let instances = self.instances().clone();
        let mut normal: Vec<_> =
            instances.into_iter().map(|(instance, state)| Ok(UpdateResponse { instance, state })).collect();
        if self.behavior(Call::Update) == Behavior::TruncatedStream {
            normal.push(Err(Status::unavailable("the stream broke")));
            return Ok(Response::new(Box::pin(futures::stream::iter(normal))));
        }
        if self.behavior(Call::Update) == Behavior::HugeResponse {
            normal.push(Ok(UpdateResponse { instance: self.text(Call::Update, ""), state: 1 }));
        }
        let invalid_instance = UpdateResponse { instance: String::new(), state: -7 };
        let invalid = vec![Ok(invalid_instance), Err(Status::internal("the stream failed halfway"))];
        let messages = self.respond(Call::Update, normal, invalid).await?.into_inner();
        Ok(Response::new(Box::pin(futures::stream::iter(messages))))
    }

    async fn increase(&self, request: Request<IncreaseRequest>) -> Result<Response<IncreaseResponse>, Status> {
        let succeeded = request.into_inner().n;
        {
            // The instances are created even if the response is an error.
            let mut instances = self.instances();
            for _ in 0..succeeded.min(100) {
                let name = format!("h{}", instances.len());
                instances.insert(name, 1);
            }
        }
        self.respond(Call::Increase, IncreaseResponse { succeeded }, IncreaseResponse { succeeded: u32::MAX }).await
    }

    async fn decrease(&self, request: Request<DecreaseRequest>) -> Result<Response<DecreaseResponse>, Status> {
        let succeeded = request.into_inner().instances;
        if [Behavior::Normal, Behavior::Slow].contains(&self.behavior(Call::Decrease)) {
            self.instances().retain(|name, _| !succeeded.contains(name));
        }
        let others = ["i1", "i1", "another group's", ""].map(str::to_owned).to_vec();
        self.respond(Call::Decrease, DecreaseResponse { succeeded }, DecreaseResponse { succeeded: others }).await
    }

    async fn connect_info(&self, _: Request<ConnectInfoRequest>) -> Result<Response<ConnectInfoResponse>, Status> {
        let normal = ConnectInfoResponse {
            connector: Some(ConnectorConfig { keepalive: -1, ..Default::default() }),
            // No process listens there.
            internal_addr: "127.0.0.1:1".to_owned(),
            external_addr: self.text(Call::ConnectInfo, "127.0.0.1:1"),
            ..Default::default()
        };
        self.respond(Call::ConnectInfo, normal, ConnectInfoResponse::default()).await
    }

    async fn heartbeat(&self, _: Request<HeartbeatRequest>) -> Result<Response<Empty>, Status> {
        self.respond(Call::Heartbeat, Empty {}, Empty {}).await
    }

    async fn suspend(&self, request: Request<SuspendRequest>) -> Result<Response<SuspendResponse>, Status> {
        let succeeded = request.into_inner().instances;
        self.respond(Call::Suspend, SuspendResponse { succeeded }, SuspendResponse { succeeded: vec!["?".to_owned()] })
            .await
    }

    async fn resume(&self, _: Request<ResumeRequest>) -> Result<Response<ResumeResponse>, Status> {
        self.respond(Call::Suspend, ResumeResponse::default(), ResumeResponse::default()).await
    }

    async fn shutdown(&self, _: Request<Empty>) -> Result<Response<Empty>, Status> {
        self.hooks.on_shutdown();
        self.respond(Call::Shutdown, Empty {}, Empty {}).await
    }
}

/// Returns the same behavior for all calls except `Init`, which works.
#[cfg(test)]
pub(crate) fn always(behavior: Behavior) -> Behaviors {
    let mut behaviors = [behavior; 8];
    behaviors[Call::Init as usize] = Behavior::Normal;
    behaviors
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seeded runs draw from all behaviors, and every call has a behavior.
    #[test]
    fn lists_of_behaviors_are_complete() {
        assert_eq!(BEHAVIORS.len(), Behavior::Exits as usize + 1);
        assert_eq!(always(Behavior::Normal).len(), Call::Shutdown as usize + 1);
    }
}
