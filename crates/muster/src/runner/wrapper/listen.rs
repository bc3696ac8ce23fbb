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

#[derive(Debug, PartialEq, thiserror::Error)]
#[error("expected tcp://HOST:PORT or unix:///PATH")]
pub(super) struct AddressError;

pub(super) fn address(text: &str) -> Result<Address, AddressError> {
    match text.split_once("://") {
        Some(("tcp", address)) if address.contains(':') => Ok(Address::Tcp(address.to_owned())),
        Some(("unix", path)) if path.starts_with('/') => Ok(Address::Unix(path.into())),
        _ => Err(AddressError),
    }
}

pub(super) enum Incoming {
    Tcp(TcpListener),
    Unix(UnixListener),
}

const SOCKET: &str = "wrapper.sock";

/// Returns the address of a socket that only this user can access.
pub(super) fn default_address() -> Result<Address, NoRuntimeDirectory> {
    Ok(Address::Unix(runtime_directory(SOCKET.len())?.join(SOCKET)))
}

/// Listens on the address. Replaces the socket of a process that has exited, but fails if a process listens on the
/// socket.
pub(super) async fn bind(address: &Address) -> io::Result<Incoming> {
    match address {
        Address::Tcp(address) => Ok(Incoming::Tcp(TcpListener::bind(address).await?)),
        Address::Unix(path) => {
            match std::fs::symlink_metadata(path) {
                Ok(found) if !found.file_type().is_socket() => {
                    return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the path exists and is not a socket"));
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
    pub(super) async fn serve(self, service: Service, stop: CancellationToken) -> Result<(), tonic::transport::Error> {
        let router = Server::builder().add_service(ProcessWrapperServer::new(service));
        match self {
            Self::Tcp(listener) => {
                router.serve_with_incoming_shutdown(TcpListenerStream::new(listener), stop.cancelled()).await
            }
            Self::Unix(listener) => {
                let accepted = UnixListenerStream::new(listener)
                    .filter(|stream| std::future::ready(stream.as_ref().map_or(true, is_from_this_user)));
                router.serve_with_incoming_shutdown(accepted, stop.cancelled()).await
            }
        }
    }
}

/// Returns whether the connected process belongs to root or to this user.
///
/// Other users are refused, because any client can stop the runner. The mode of the socket is not enough: it may have
/// been changed.
fn is_from_this_user(stream: &UnixStream) -> bool {
    let user = stream.peer_cred().map(|peer| peer.uid());
    match user {
        Ok(user) if user == 0 || user == rustix::process::geteuid().as_raw() => true,
        Ok(user) => {
            tracing::warn!(user, "[WRAPPER] refused connection of another user");
            false
        }
        Err(error) => {
            tracing::warn!(%error, "[WRAPPER] refused connection of an unknown user");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_tcp_or_unix() {
        assert_eq!(address("tcp://localhost:7777"), Ok(Address::Tcp("localhost:7777".to_owned())));
        assert_eq!(address("unix:///run/w.sock"), Ok(Address::Unix("/run/w.sock".into())));
        for invalid in ["localhost:7777", "tcp://localhost", "unix://relative", "http://a:1"] {
            assert!(address(invalid).is_err(), "{invalid}");
        }
    }
}
