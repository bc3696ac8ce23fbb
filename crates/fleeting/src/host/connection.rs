//! A connection to a plugin's process: the channel, and the streams that stay open.

use std::convert::Infallible;
use std::io;
use std::path::Path;

use futures::StreamExt;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::Status;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

use super::handshake::Address;
use super::mask::Mask;
use crate::protocol::extension::instance_group_extension_client::InstanceGroupExtensionClient;
use crate::protocol::group::instance_group_client::InstanceGroupClient;
use crate::protocol::plugin::grpc_broker_client::GrpcBrokerClient;
use crate::protocol::plugin::grpc_controller_client::GrpcControllerClient;
use crate::protocol::plugin::grpc_stdio_client::GrpcStdioClient;
use crate::protocol::plugin::{Empty, StdioData, stdio_data};

/// Maximum size of one message. A snapshot consists of many messages.
/// The protocol's own limit of 2 GiB would exhaust the manager's memory.
const MAX_MESSAGE_BYTES: usize = 16 * 1024 * 1024;

/// A connection to a plugin. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    channel: Channel,
}

#[derive(Debug)]
pub(crate) struct Streams {
    tasks: Vec<JoinHandle<()>>,
    /// Closed when the plugin has accepted or refused each stream.
    all_opened: mpsc::Receiver<Infallible>,
    /// Closes the host's side of the broker's stream when dropped. An open stream would keep the connection open.
    _broker: DropGuard,
}

impl Streams {
    /// Waits until the plugin has accepted or refused each stream.
    pub(crate) async fn wait_opened(&mut self) {
        let _ = self.all_opened.recv().await;
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Connection {
    pub(crate) async fn open(address: &Address) -> Result<Self, tonic::transport::Error> {
        // The Go host uses the same authority. The connector ignores the authority and connects to `address`.
        let endpoint = Endpoint::from_static("http://unused");
        let channel = match address.clone() {
            Address::Unix(path) => {
                let connector = service_fn(move |_| {
                    let path = path.clone();
                    async move { connect_if_same_user(&path).await.map(TokioIo::new) }
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
        Ok(Self { channel: channel? })
    }

    /// Opens go-plugin's streams: one for the plugin's output, which is read because the plugin would block otherwise,
    /// and one for its broker.
    /// A plugin may lack either service.
    pub(crate) fn open_streams(&self, plugin: &str, mask: Mask) -> Streams {
        let stop = CancellationToken::new();
        let (pending, all_opened) = mpsc::channel(1);
        let tasks = vec![
            tokio::spawn(copy_output(self.channel.clone(), plugin.to_owned(), mask, pending.clone())),
            tokio::spawn(keep_broker_stream_open(self.channel.clone(), stop.clone(), pending)),
        ];
        Streams { tasks, all_opened, _broker: stop.drop_guard() }
    }

    pub(crate) fn group(&self) -> InstanceGroupClient<Channel> {
        InstanceGroupClient::new(self.channel.clone())
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES)
    }

    pub(super) fn extension(&self) -> InstanceGroupExtensionClient<Channel> {
        InstanceGroupExtensionClient::new(self.channel.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES)
    }

    pub(crate) fn controller(&self) -> GrpcControllerClient<Channel> {
        GrpcControllerClient::new(self.channel.clone())
    }

    /// Asks the process to exit. Does nothing if the plugin lacks the service.
    pub(super) async fn request_exit(&self) {
        let _ = self.controller().shutdown(Empty {}).await;
    }
}

/// Connects to a socket if a process of this user or of root listens there.
/// In a shared directory, another user could have created the socket.
async fn connect_if_same_user(path: &Path) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(path).await?;
    let user = stream.peer_cred()?.uid();
    if [0, rustix::process::geteuid().as_raw()].contains(&user) {
        return Ok(stream);
    }
    let text = format!("the socket belongs to a process of another user ({user})");
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

async fn copy_output(channel: Channel, plugin: String, mask: Mask, pending: mpsc::Sender<Infallible>) {
    let Ok(answer) = GrpcStdioClient::new(channel).stream_stdio(()).await else { return };
    drop(pending);
    let mut output = answer.into_inner();
    while let Some(Ok(StdioData { channel, data })) = output.next().await {
        let from = if channel == stdio_data::Channel::Stderr as i32 { "stderr" } else { "stdout" };
        let text = mask.hide(String::from_utf8_lossy(&data).trim_end().to_owned());
        tracing::debug!(target: "muster_fleeting::plugin", plugin, from, "{text}");
    }
}

async fn keep_broker_stream_open(channel: Channel, stop: CancellationToken, pending: mpsc::Sender<Infallible>) {
    let no_messages = futures::stream::pending().take_until(stop.cancelled_owned());
    let Ok(answer) = GrpcBrokerClient::new(channel).start_stream(no_messages).await else { return };
    drop(pending);
    let mut stream = answer.into_inner();
    while let Some(Ok(_)) = stream.next().await {}
}

/// Returns whether the connection failed: tonic sets the error of the connection as the source of the status. A status
/// that the plugin sent has no source.
pub(crate) fn is_transport_failure(status: &Status) -> bool {
    std::error::Error::source(status).is_some()
}
