//! A listener on the loopback interface, for systems without Unix sockets.
//! The host sets the range of ports (docs/spec/fleeting.md, section 1.2).
//!
//! Any account of the machine can connect, because the protocol cannot authenticate the host.

use std::io;
use std::num::ParseIntError;
use std::ops::RangeInclusive;

use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;

use super::Endpoint;

#[derive(Debug, thiserror::Error)]
pub(crate) enum PortError {
    #[error("failed to listen on 127.0.0.1 on a port from {first} to {last} (PLUGIN_MIN_PORT, PLUGIN_MAX_PORT)")]
    Listen { first: u16, last: u16, source: io::Error },
    #[error("{name} is {value:?}, but the host must set it to a port")]
    Port { name: &'static str, value: String, source: ParseIntError },
    #[error("PLUGIN_MIN_PORT is {min}, above PLUGIN_MAX_PORT {max}; the host must set a valid range")]
    EmptyRange { min: u16, max: u16 },
}

/// Listens at the first free port of a range. Port 0 stands for any free port.
///
/// # Errors
/// [`PortError::Listen`] if no port is free.
pub(crate) async fn listen_at(ports: RangeInclusive<u16>) -> Result<(TcpListenerStream, Endpoint), PortError> {
    let (first, last) = (*ports.start(), *ports.end());
    let mut source = io::Error::from(io::ErrorKind::AddrInUse);
    for port in ports {
        let listener = TcpListener::bind(("127.0.0.1", port)).await;
        match listener.and_then(|listener| Ok((listener.local_addr()?.to_string(), listener))) {
            Ok((address, listener)) => {
                return Ok((TcpListenerStream::new(listener), Endpoint { network: "tcp", address, socket: None }));
            }
            Err(error) => source = error,
        }
    }
    Err(PortError::Listen { first, last, source })
}

/// Parses the values of `PLUGIN_MIN_PORT` and `PLUGIN_MAX_PORT`.
/// If both are missing or empty, any port is allowed.
///
/// # Errors
/// [`PortError::Port`] or [`PortError::EmptyRange`].
pub(crate) fn parse_port_range(min: Option<&str>, max: Option<&str>) -> Result<RangeInclusive<u16>, PortError> {
    let port = |name, text: Option<&str>| match text {
        None | Some("") => Ok(0),
        Some(text) => text.parse::<u16>().map_err(|source| PortError::Port { name, value: text.to_owned(), source }),
    };
    let (min, max) = (port("PLUGIN_MIN_PORT", min)?, port("PLUGIN_MAX_PORT", max)?);
    if min > max { Err(PortError::EmptyRange { min, max }) } else { Ok(min..=max) }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;
    use tokio::net::TcpStream;

    use super::*;

    #[tokio::test]
    async fn next_port_is_used_if_one_is_taken() {
        // Ports that other programs use are skipped and do not affect the test.
        let (_taken, first) = listen_at(0..=0).await.unwrap();
        let port: u16 = first.address.rsplit_once(':').unwrap().1.parse().unwrap();
        let (mut listener, endpoint) = listen_at(port..=u16::MAX).await.unwrap();
        assert_eq!(endpoint.network, "tcp");
        assert!(endpoint.address.starts_with("127.0.0.1:") && endpoint.address != first.address, "{endpoint:?}");
        let (_client, server) = tokio::join!(TcpStream::connect(&endpoint.address), listener.next());
        assert!(server.unwrap().unwrap().peer_addr().unwrap().ip().is_loopback());
        let error = listen_at(port..=port).await.err().unwrap().to_string();
        assert!(error.contains(&format!("from {port} to {port} (PLUGIN_MIN_PORT")), "{error}");
    }

    #[test]
    fn invalid_port_range_is_an_error() {
        assert_eq!(parse_port_range(Some("10000"), Some("25000")).unwrap(), 10_000..=25_000);
        assert_eq!(parse_port_range(None, Some("")).unwrap(), 0..=0, "an empty variable allows any port");
        // As in go-plugin, a missing variable is 0.
        assert_eq!(parse_port_range(None, Some("25000")).unwrap(), 0..=25_000);
        assert!(parse_port_range(Some("10000"), None).is_err());
        let error = |min, max| parse_port_range(min, max).unwrap_err().to_string();
        assert!(error(Some("3"), Some("2")).contains("PLUGIN_MIN_PORT is 3"));
        assert!(error(Some("x"), None).contains("PLUGIN_MIN_PORT is \"x\""));
        assert!(error(None, Some("70000")).contains("PLUGIN_MAX_PORT"));
    }
}
