//! Binding of the server's address.

use tokio::net::TcpListener;

/// Error that prevents the server from listening.
#[derive(Debug, thiserror::Error)]
#[error("failed to listen on {address} for metrics; if another process uses the port, set another listen_address")]
pub struct ListenError {
    address: String,
    source: std::io::Error,
}

/// Listens on a port of `host`. An empty `host` means all addresses of the machine.
pub(super) async fn listen(host: &str, port: u16) -> Result<TcpListener, ListenError> {
    let bound = if host.is_empty() {
        // Both IPv6 and IPv4, or IPv4 alone if the system has no IPv6.
        match TcpListener::bind(("::", port)).await {
            Ok(listener) => Ok(listener),
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => Err(error),
            Err(_) => TcpListener::bind(("0.0.0.0", port)).await,
        }
    } else {
        TcpListener::bind((host, port)).await
    };
    let address = || if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    bound.map_err(|source| ListenError { address: address(), source })
}
