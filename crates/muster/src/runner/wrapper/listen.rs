//! Where the wrapper listens.

use std::fmt;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;

use futures::StreamExt;
use muster_fleeting::host::{NoRuntimeDirectory, runtime_directory};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;

use super::service::Service;
use super::service::proto::process_wrapper_server::ProcessWrapperServer;

/// A place to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Address {
    Tcp(String),
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "tcp://{address}"),
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

/// Reads `tcp://host:port` or `unix:///path`.
pub(super) fn address(text: &str) -> Result<Address, String> {
    match text.split_once("://") {
        Some(("tcp", address)) if address.contains(':') => Ok(Address::Tcp(address.to_owned())),
        Some(("unix", path)) if path.starts_with('/') => Ok(Address::Unix(path.into())),
        _ => Err("write tcp://HOST:PORT or unix:///PATH".to_owned()),
    }
}

/// A socket that listens.
pub(super) enum Incoming {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// The socket's name in the runtime directory.
const SOCKET: &str = "wrapper.sock";

/// The address without `--grpc-listen`: a socket where only this user comes.
pub(super) fn default_address() -> Result<Address, NoRuntimeDirectory> {
    Ok(Address::Unix(runtime_directory(SOCKET.len())?.join(SOCKET)))
}

/// Listens. A socket that an earlier process left is replaced; one that somebody answers at is not.
pub(super) async fn bind(address: &Address) -> io::Result<Incoming> {
    match address {
        Address::Tcp(address) => Ok(Incoming::Tcp(TcpListener::bind(address).await?)),
        Address::Unix(path) => {
            match std::fs::symlink_metadata(path) {
                Ok(found) if !found.file_type().is_socket() => {
                    return Err(io::Error::new(io::ErrorKind::AlreadyExists, "it exists, and is not a socket"));
                }
                Ok(_) => match tokio::net::UnixStream::connect(path).await {
                    Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path)?,
                    _ => return Err(io::ErrorKind::AddrInUse.into()),
                },
                Err(_) => {}
            }
            Ok(Incoming::Unix(UnixListener::from_std(muster_files::listen(path)?)?))
        }
    }
}

impl Incoming {
    /// Answers until it is to stop.
    pub(super) async fn serve(self, service: Service, stop: CancellationToken) -> Result<(), tonic::transport::Error> {
        let router = Server::builder().add_service(ProcessWrapperServer::new(service));
        match self {
            Self::Tcp(listener) => {
                router.serve_with_incoming_shutdown(TcpListenerStream::new(listener), stop.cancelled()).await
            }
            Self::Unix(listener) => {
                let own = UnixListenerStream::new(listener)
                    .filter(|accepted| std::future::ready(accepted.as_ref().map_or(true, is_from_this_user)));
                router.serve_with_incoming_shutdown(own, stop.cancelled()).await
            }
        }
    }
}

/// Whether the process that connected is root's or this user's. The socket's mode may have been changed, and whoever reaches it can
/// stop the runner.
fn is_from_this_user(stream: &UnixStream) -> bool {
    let user = stream.peer_cred().map(|peer| peer.uid());
    match user {
        Ok(user) if user == 0 || user == rustix::process::geteuid().as_raw() => true,
        Ok(user) => {
            tracing::warn!(user, "[WRAPPER] connection of another user refused");
            false
        }
        Err(error) => {
            tracing::warn!(%error, "[WRAPPER] connection refused, its user is unknown");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_of_one_of_two_kinds() {
        assert_eq!(address("tcp://localhost:7777"), Ok(Address::Tcp("localhost:7777".to_owned())));
        assert_eq!(address("unix:///run/w.sock"), Ok(Address::Unix("/run/w.sock".into())));
        for wrong in ["localhost:7777", "tcp://localhost", "unix://relative", "http://a:1"] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
    }
}
