//! A connection to a plugin's process: the channel, and the streams that are open all the time.

use futures::StreamExt;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

use super::handshake::Address;
use crate::protocol::extension::instance_group_extension_client::InstanceGroupExtensionClient;
use crate::protocol::group::instance_group_client::InstanceGroupClient;
use crate::protocol::plugin::grpc_broker_client::GrpcBrokerClient;
use crate::protocol::plugin::grpc_controller_client::GrpcControllerClient;
use crate::protocol::plugin::grpc_stdio_client::GrpcStdioClient;
use crate::protocol::plugin::{Empty, StdioData, stdio_data};

/// One message of a plugin; a snapshot is many. The protocol's own limit of 2 GiB would be the manager's memory.
const MESSAGE_MAX_BYTES: usize = 16 * 1024 * 1024;

/// A connection. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    channel: Channel,
}

/// The streams that are kept open; they end with this.
#[derive(Debug)]
pub(crate) struct Streams {
    tasks: Vec<JoinHandle<()>>,
    /// Ends this side's half of the broker's stream: dropped alone, it would keep the connection open.
    _broker: DropGuard,
}

impl Drop for Streams {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Connection {
    /// Connects.
    ///
    /// # Errors
    /// The cause, as text.
    pub(crate) async fn open(address: &Address) -> Result<Self, String> {
        // The Go host's authority; the connector goes to the socket.
        let endpoint = Endpoint::from_static("http://unused");
        let channel = match address.clone() {
            Address::Unix(path) => {
                let connector = service_fn(move |_| {
                    let path = path.clone();
                    async move { UnixStream::connect(path).await.map(TokioIo::new) }
                });
                endpoint.connect_with_connector(connector).await
            }
            Address::Tcp(address) => {
                let connector = service_fn(move |_| {
                    let address = address.clone();
                    async move { TcpStream::connect(address).await.map(TokioIo::new) }
                });
                endpoint.connect_with_connector(connector).await
            }
        };
        Ok(Self { channel: channel.map_err(|error| causes(&error))? })
    }

    /// Opens the streams that go-plugin opens: the plugin's output, which is logged (a plugin whose output nobody reads
    /// would stop), and the broker's, which stays silent. A plugin may lack both.
    pub(crate) fn open_streams(&self, plugin: &str) -> Streams {
        let stop = CancellationToken::new();
        let tasks = vec![
            tokio::spawn(copy_output(self.channel.clone(), plugin.to_owned())),
            tokio::spawn(hold_broker(self.channel.clone(), stop.clone())),
        ];
        Streams { tasks, _broker: stop.drop_guard() }
    }

    pub(crate) fn group(&self) -> InstanceGroupClient<Channel> {
        InstanceGroupClient::new(self.channel.clone())
            .max_decoding_message_size(MESSAGE_MAX_BYTES)
            .max_encoding_message_size(MESSAGE_MAX_BYTES)
    }

    pub(super) fn extension(&self) -> InstanceGroupExtensionClient<Channel> {
        InstanceGroupExtensionClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_MAX_BYTES)
    }

    /// The service that ends the process.
    pub(crate) fn controller(&self) -> GrpcControllerClient<Channel> {
        GrpcControllerClient::new(self.channel.clone())
    }

    /// Tells the process to end. A plugin may lack the service.
    pub(super) async fn end_process(&self) {
        let _ = self.controller().shutdown(Empty {}).await;
    }
}

async fn copy_output(channel: Channel, plugin: String) {
    let Ok(answer) = GrpcStdioClient::new(channel).stream_stdio(()).await else { return };
    let mut output = answer.into_inner();
    while let Some(Ok(StdioData { channel, data })) = output.next().await {
        let from = if channel == stdio_data::Channel::Stderr as i32 { "stderr" } else { "stdout" };
        tracing::debug!(target: "muster_fleeting::plugin", plugin, from, "{}", String::from_utf8_lossy(&data).trim_end());
    }
}

async fn hold_broker(channel: Channel, stop: CancellationToken) {
    let silence = futures::stream::pending().take_until(stop.cancelled_owned());
    let Ok(answer) = GrpcBrokerClient::new(channel).start_stream(silence).await else { return };
    let mut stream = answer.into_inner();
    while let Some(Ok(_)) = stream.next().await {}
}

/// The error with its causes, which tonic keeps out of its own text.
pub(crate) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
