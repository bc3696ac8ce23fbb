//! Where the wrapper listens.

use std::fmt;
use std::io;
use std::path::PathBuf;

use tokio::net::{TcpListener, UnixListener};
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

/// Listens. A socket that an earlier process left is replaced; one that somebody answers at is not.
pub(super) async fn bind(address: &Address) -> io::Result<Incoming> {
    match address {
        Address::Tcp(address) => Ok(Incoming::Tcp(TcpListener::bind(address).await?)),
        Address::Unix(path) => {
            match tokio::net::UnixStream::connect(path).await {
                Ok(_) => return Err(io::ErrorKind::AddrInUse.into()),
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path)?,
                Err(_) => {}
            }
            Ok(Incoming::Unix(UnixListener::bind(path)?))
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
                router.serve_with_incoming_shutdown(UnixListenerStream::new(listener), stop.cancelled()).await
            }
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
