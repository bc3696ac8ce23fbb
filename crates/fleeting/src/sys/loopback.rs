//! A listener on the loopback interface, for systems without Unix sockets.
//! The host sets the range of ports (docs/spec/fleeting.md, section 1.2).
//!
//! Any account of the machine can connect, because the protocol cannot authenticate the host.

use std::ops::RangeInclusive;

use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;

use super::Endpoint;

/// Listens at the first free port of a range. Port 0 stands for any free port.
///
/// # Errors
/// No port is free.
pub(crate) async fn listen_at(ports: RangeInclusive<u16>) -> Result<(TcpListenerStream, Endpoint), String> {
    let (first, last) = (*ports.start(), *ports.end());
    let mut cause = "there is none between them".to_owned();
    for port in ports {
        match TcpListener::bind(("127.0.0.1", port)).await {
            Ok(listener) => {
                let address = listener.local_addr().map_err(|error| error.to_string())?.to_string();
                return Ok((TcpListenerStream::new(listener), Endpoint { network: "tcp", address, socket: None }));
            }
            Err(error) => cause = error.to_string(),
        }
    }
    Err(format!(
        "cannot listen on 127.0.0.1 at a port from {first} to {last} (PLUGIN_MIN_PORT, PLUGIN_MAX_PORT): {cause}"
    ))
}

/// Returns the range in the host's two environment variables. Without both, any port.
///
/// # Errors
/// A value is not a port, or the range is empty.
pub(crate) fn range(min: Option<&str>, max: Option<&str>) -> Result<RangeInclusive<u16>, String> {
    let port = |name: &str, text: Option<&str>| match text {
        None | Some("") => Ok(0),
        Some(text) => {
            text.parse::<u16>().map_err(|_| format!("{name} is {text:?}, which is no port: the host sets it"))
        }
    };
    let (min, max) = (port("PLUGIN_MIN_PORT", min)?, port("PLUGIN_MAX_PORT", max)?);
    if min > max {
        return Err(format!("PLUGIN_MIN_PORT is {min}, and PLUGIN_MAX_PORT only {max}: the host sets them"));
    }
    Ok(min..=max)
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;
    use tokio::net::TcpStream;

    use super::*;

    #[tokio::test]
    async fn the_next_port_is_taken_where_one_is_in_use() {
        // Ports that other programs use make the range longer, but do not affect the test.
        let (_taken, first) = listen_at(0..=0).await.unwrap();
        let port: u16 = first.address.rsplit_once(':').unwrap().1.parse().unwrap();
        let (mut listener, endpoint) = listen_at(port..=u16::MAX).await.unwrap();
        assert_eq!(endpoint.network, "tcp");
        assert!(endpoint.address.starts_with("127.0.0.1:") && endpoint.address != first.address, "{endpoint:?}");
        let (_client, server) = tokio::join!(TcpStream::connect(&endpoint.address), listener.next());
        assert!(server.unwrap().unwrap().peer_addr().unwrap().ip().is_loopback());
        let error = listen_at(port..=port).await.err().unwrap();
        assert!(error.contains(&format!("from {port} to {port} (PLUGIN_MIN_PORT")), "{error}");
    }

    #[test]
    fn the_hosts_variables_are_a_range_or_told_to_be_none() {
        assert_eq!(range(Some("10000"), Some("25000")), Ok(10_000..=25_000));
        assert_eq!(range(None, Some("")), Ok(0..=0), "any port");
        assert!(range(Some("3"), Some("2")).unwrap_err().contains("PLUGIN_MIN_PORT is 3"));
        assert!(range(Some("x"), None).unwrap_err().contains("is no port"));
        assert!(range(None, Some("70000")).unwrap_err().contains("PLUGIN_MAX_PORT"));
    }
}
