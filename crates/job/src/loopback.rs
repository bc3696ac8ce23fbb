//! Addresses of the loopback interface.

use std::net::{IpAddr, SocketAddr};

/// Returns whether an address, with or without a port, belongs to the loopback interface.
///
/// An IPv6 address may be in brackets. The only name that matches is `localhost`.
#[must_use]
pub fn is_loopback(address: &str) -> bool {
    let with_port = address.parse::<SocketAddr>().map(|address| address.ip());
    let ip = with_port.or_else(|_| address.trim_matches(['[', ']']).parse::<IpAddr>());
    let name = address.split_once(':').map_or(address, |(name, _)| name);
    ip.map_or_else(|_| name.eq_ignore_ascii_case("localhost"), |ip| ip.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_the_loopback_interface_match() {
        for address in
            ["127.0.0.1", "127.1.2.3:80", "::1", "[::1]", "[::1]:22", "::ffff:127.0.0.1", "localhost", "LOCALHOST:80"]
        {
            assert!(is_loopback(address), "{address}");
        }
        for address in
            ["", ":80", "0.0.0.0", "10.0.0.5:22", "[::]", "2001:db8::1", "127.example", "localhost.example:80"]
        {
            assert!(!is_loopback(address), "{address}");
        }
    }
}
