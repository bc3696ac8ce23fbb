//! A plugin's server: socket, handshake, go-plugin's services, and exit.

use std::io::Write as _;
use std::pin::Pin;
use std::process::ExitCode;
use std::time::Duration;

use futures::{Stream, StreamExt};
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

use super::erased::Plugin;
use super::host_liveness::PluginHost;
use super::service::Service;
use super::{Error, extension};
use crate::protocol::extension::instance_group_extension_server::InstanceGroupExtensionServer;
use crate::protocol::group::instance_group_server::InstanceGroupServer;
use crate::protocol::health::health_server::{Health, HealthServer};
use crate::protocol::health::{HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus};
use crate::protocol::plugin::grpc_broker_server::{GrpcBroker, GrpcBrokerServer};
use crate::protocol::plugin::grpc_controller_server::{GrpcController, GrpcControllerServer};
use crate::protocol::plugin::grpc_stdio_server::{GrpcStdio, GrpcStdioServer};
use crate::protocol::plugin::{ConnInfo, Empty, StdioData};
use crate::protocol::{APP_VERSION, CORE_VERSION};
use crate::sys::{self, Endpoint, Signals};

/// Maximum size of a message of the `InstanceGroup` service in bytes. The protocol allows 2 GiB.
const MAX_MESSAGE_BYTES: usize = 64 * 1024 * 1024;

/// Maximum time to send the response to the call that stops the process.
const LAST_RESPONSE_TIMEOUT: Duration = Duration::from_millis(100);
/// Exit status that shells report for a process that SIGTERM ended.
const SIGTERM_EXIT_STATUS: u8 = 143;

/// Serves until the host requests the exit, the host is lost, or SIGTERM arrives.
pub(super) async fn serve(plugin: Plugin) -> Result<ExitCode, Error> {
    let mut signals = Signals::new()?;
    let (listener, endpoint) = sys::listen().await?;
    let stop = CancellationToken::new();
    let host = PluginHost::default();
    let services = GoPluginServices { stop: stop.clone(), host: host.clone() };
    let group = Service::new(plugin);
    let server = Server::builder()
        .add_service(HealthServer::new(Healthy))
        .add_service(GrpcControllerServer::new(services.clone()))
        .add_service(GrpcStdioServer::new(services.clone()))
        .add_service(GrpcBrokerServer::new(services))
        .add_service(InstanceGroupExtensionServer::new(extension::Service { provider: group.provider_cell() }))
        .add_service(
            InstanceGroupServer::new(group)
                .max_decoding_message_size(MAX_MESSAGE_BYTES)
                .max_encoding_message_size(MAX_MESSAGE_BYTES),
        )
        .serve_with_incoming(listener);
    print_handshake(&endpoint)?;
    let lost = host.wait_lost();
    tokio::pin!(server, lost);
    // Pending calls are dropped: the process exits immediately, as Go plugins do (docs/spec/fleeting.md, section 1.11).
    tokio::select! {
        result = &mut server => Ok(result.map(|()| ExitCode::SUCCESS)?),
        () = stop.cancelled() => {
            // The response to the call that stopped the plugin has not been sent yet.
            let _ = tokio::time::timeout(LAST_RESPONSE_TIMEOUT, &mut server).await;
            Ok(ExitCode::SUCCESS)
        }
        () = &mut lost => {
            tracing::info!("host lost, exiting");
            Ok(ExitCode::SUCCESS)
        }
        () = signals.wait_termination() => Ok(ExitCode::from(SIGTERM_EXIT_STATUS)),
    }
}

/// Prints the handshake, the first and only line on stdout.
fn print_handshake(endpoint: &Endpoint) -> Result<(), Error> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{CORE_VERSION}|{APP_VERSION}|{}|{}|grpc|", endpoint.network, endpoint.address)?;
    stdout.flush()?;
    Ok(())
}

/// go-plugin's services.
/// After the handshake, the plugin prints nothing and opens no further connections, so the streams of stdio and broker
/// stay empty. They close when the host exits.
#[derive(Clone)]
struct GoPluginServices {
    stop: CancellationToken,
    host: PluginHost,
}

type EmptyStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl GoPluginServices {
    fn empty_stream<T: Send + 'static>(&self) -> EmptyStream<T> {
        // The guard counts the stream as open until the stream is dropped.
        let open_guard = self.host.count_open_stream();
        Box::pin(futures::stream::pending().map(move |never: Result<T, Status>| {
            let _ = &open_guard;
            never
        }))
    }
}

#[tonic::async_trait]
impl GrpcController for GoPluginServices {
    async fn shutdown(&self, _: Request<Empty>) -> Result<Response<Empty>, Status> {
        self.stop.cancel();
        Ok(Response::new(Empty {}))
    }
}

#[tonic::async_trait]
impl GrpcStdio for GoPluginServices {
    type StreamStdioStream = EmptyStream<StdioData>;

    async fn stream_stdio(&self, _: Request<()>) -> Result<Response<Self::StreamStdioStream>, Status> {
        Ok(Response::new(self.empty_stream()))
    }
}

#[tonic::async_trait]
impl GrpcBroker for GoPluginServices {
    type StartStreamStream = EmptyStream<ConnInfo>;

    async fn start_stream(&self, _: Request<Streaming<ConnInfo>>) -> Result<Response<Self::StartStreamStream>, Status> {
        Ok(Response::new(self.empty_stream()))
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
