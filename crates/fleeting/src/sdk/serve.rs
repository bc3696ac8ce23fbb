//! A plugin's server: socket, handshake, the services beside the protocol's own, end.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::ExitCode;
use std::time::Duration;

use futures::{Stream, StreamExt};
use rand::Rng;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

use super::parent::Host;
use super::service::Service;
use super::{Error, Provider, extension};
use crate::protocol::extension::instance_group_extension_server::InstanceGroupExtensionServer;
use crate::protocol::group::instance_group_server::InstanceGroupServer;
use crate::protocol::health::health_server::{Health, HealthServer};
use crate::protocol::health::{HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus};
use crate::protocol::plugin::grpc_broker_server::{GrpcBroker, GrpcBrokerServer};
use crate::protocol::plugin::grpc_controller_server::{GrpcController, GrpcControllerServer};
use crate::protocol::plugin::grpc_stdio_server::{GrpcStdio, GrpcStdioServer};
use crate::protocol::plugin::{ConnInfo, Empty, StdioData};
use crate::protocol::{APP_VERSION, CORE_VERSION, SOCKET_DIR_KEY};

/// Far below the protocol's limit of 2 GiB, and far above what a message of a group holds.
const MESSAGE_MAX_BYTES: usize = 64 * 1024 * 1024;

/// How long the answer to the call that stops the process may take to leave.
const LAST_ANSWER: Duration = Duration::from_millis(100);
/// What a shell sees of a process that SIGTERM ended.
const TERMINATED: u8 = 143;

/// A listening socket; removed when it is dropped.
struct Socket(PathBuf);

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Serves until the host says so, is gone, or SIGTERM comes. SIGINT is no concern of a plugin's: at a terminal it goes
/// to the host too, which says what to do (P9).
pub(super) async fn serve<P: Provider>() -> Result<ExitCode, Error> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let (listener, socket) = listen()?;
    let stop = CancellationToken::new();
    let host = Host::default();
    let services = Services { stop: stop.clone(), host: host.clone() };
    let group = Service::<P>::default();
    let server = Server::builder()
        .add_service(HealthServer::new(Healthy))
        .add_service(GrpcControllerServer::new(services.clone()))
        .add_service(GrpcStdioServer::new(services.clone()))
        .add_service(GrpcBrokerServer::new(services))
        .add_service(InstanceGroupExtensionServer::new(extension::Service { provider: group.shared() }))
        .add_service(
            InstanceGroupServer::new(group)
                .max_decoding_message_size(MESSAGE_MAX_BYTES)
                .max_encoding_message_size(MESSAGE_MAX_BYTES),
        )
        .serve_with_incoming(UnixListenerStream::new(listener));
    announce(&socket.0)?;
    let gone = host.gone();
    tokio::pin!(server, gone);
    loop {
        // What is under way is dropped: the process stops hard, as Go plugins do (fleeting.md 1.11).
        tokio::select! {
            ended = &mut server => return Ok(ended.map(|()| ExitCode::SUCCESS)?),
            () = stop.cancelled() => {
                // The answer to the call that stopped it is still on its way.
                let _ = tokio::time::timeout(LAST_ANSWER, &mut server).await;
                return Ok(ExitCode::SUCCESS);
            }
            () = &mut gone => {
                tracing::info!("the host is gone");
                return Ok(ExitCode::SUCCESS);
            }
            _ = interrupt.recv() => tracing::debug!("SIGINT is left to the host"),
            _ = terminate.recv() => return Ok(ExitCode::from(TERMINATED)),
        }
    }
}

/// A socket with a name of its own where the host wants it.
fn listen() -> Result<(UnixListener, Socket), Error> {
    let directory = std::env::var_os(SOCKET_DIR_KEY).map_or_else(std::env::temp_dir, PathBuf::from);
    let mut last = None;
    for _ in 0..16 {
        let path = directory.join(format!("plugin{}", rand::rng().random::<u32>()));
        match UnixListener::bind(&path) {
            Ok(listener) => return Ok((listener, Socket(path))),
            Err(error) => last = Some(error),
        }
    }
    let cause = last.map(|error| error.to_string()).unwrap_or_default();
    Err(format!(
        "cannot listen on a socket in {}: {cause}; set TMPDIR to a directory that can be written",
        directory.display()
    )
    .into())
}

/// The handshake: the first and only line on stdout.
fn announce(socket: &Path) -> Result<(), Error> {
    let path = socket.to_str().filter(|path| !path.contains(['|', '\n']));
    let path = path.ok_or_else(|| {
        format!("the socket's path {} cannot stand in a handshake; set TMPDIR to a plain path", socket.display())
    })?;
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{CORE_VERSION}|{APP_VERSION}|unix|{path}|grpc|")?;
    stdout.flush()?;
    Ok(())
}

/// go-plugin's services. The plugin prints nothing and opens no further connections: two of them stay silent, and say
/// by their end that the host is gone.
#[derive(Clone)]
struct Services {
    stop: CancellationToken,
    host: Host,
}

type Silent<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Services {
    fn silent<T: Send + 'static>(&self) -> Silent<T> {
        let counted = self.host.stream();
        Box::pin(futures::stream::pending().map(move |never: Result<T, Status>| {
            let _ = &counted;
            never
        }))
    }
}

#[tonic::async_trait]
impl GrpcController for Services {
    async fn shutdown(&self, _: Request<Empty>) -> Result<Response<Empty>, Status> {
        self.stop.cancel();
        Ok(Response::new(Empty {}))
    }
}

#[tonic::async_trait]
impl GrpcStdio for Services {
    type StreamStdioStream = Silent<StdioData>;

    async fn stream_stdio(&self, _: Request<()>) -> Result<Response<Self::StreamStdioStream>, Status> {
        Ok(Response::new(self.silent()))
    }
}

#[tonic::async_trait]
impl GrpcBroker for Services {
    type StartStreamStream = Silent<ConnInfo>;

    async fn start_stream(&self, _: Request<Streaming<ConnInfo>>) -> Result<Response<Self::StartStreamStream>, Status> {
        Ok(Response::new(self.silent()))
    }
}

struct Healthy;

#[tonic::async_trait]
impl Health for Healthy {
    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        let service = request.into_inner().service;
        if !matches!(service.as_str(), "" | "plugin") {
            return Err(Status::not_found("unknown service"));
        }
        Ok(Response::new(HealthCheckResponse { status: ServingStatus::Serving as i32 }))
    }
}
