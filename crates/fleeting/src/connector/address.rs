//! Which address, and which port (fleeting.md 4.1).

use std::net::Ipv6Addr;

use crate::model::ConnectInfo;

/// Why there is no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Only the other one is there.
    #[error(
        "it has only an external address; set use_external_addr = true in connector_config, or give it an internal one"
    )]
    OnlyExternal,
    /// None at all.
    #[error("the plugin gave no address")]
    None,
}

/// `host:port` to connect to. Internal, unless the external one is wanted and there, or is the only one that is wanted.
///
/// # Errors
/// [`AddressError`], at once: the Go host dials the empty address until its budget ends (C1).
pub fn address(info: &ConnectInfo, use_external: bool) -> Result<String, AddressError> {
    let (internal, external) = (info.internal_addr.as_str(), info.external_addr.as_str());
    let chosen = if use_external && !external.is_empty() { external } else { internal };
    match (chosen.is_empty(), external.is_empty()) {
        (false, _) => Ok(with_port(chosen, info.connector.protocol_port, &info.connector.protocol)),
        (true, false) => Err(AddressError::OnlyExternal),
        (true, true) => Err(AddressError::None),
    }
}

/// The address's own port, else the configured one, else the protocol's.
fn with_port(address: &str, port: u16, protocol: &str) -> String {
    let port = match (port, protocol) {
        (0, "winrm") => 5985,
        (0, "winrm+https") => 5986,
        (0, _) => 22,
        (port, _) => port,
    };
    if address.parse::<Ipv6Addr>().is_ok() {
        return format!("[{address}]:{port}");
    }
    let after_host = match address.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or("", |(_, after)| after),
        None => address,
    };
    let has_port = after_host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    if has_port { address.to_owned() } else { format!("{address}:{port}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ConnectorConfig;

    fn info(internal: &str, external: &str, port: u16) -> ConnectInfo {
        ConnectInfo {
            connector: ConnectorConfig { protocol_port: port, ..ConnectorConfig::default() },
            external_addr: external.to_owned(),
            internal_addr: internal.to_owned(),
            expires: None,
        }
    }

    #[test]
    fn c1_the_internal_address_unless_the_external_one_is_wanted() {
        let both = info("10.0.0.5", "192.0.2.1", 0);
        assert_eq!(address(&both, false), Ok("10.0.0.5:22".to_owned()));
        assert_eq!(address(&both, true), Ok("192.0.2.1:22".to_owned()));
        assert_eq!(address(&info("10.0.0.5", "", 0), true), Ok("10.0.0.5:22".to_owned()));
        let external = info("", "192.0.2.1", 0);
        assert_eq!(address(&external, true), Ok("192.0.2.1:22".to_owned()));
        assert_eq!(address(&external, false), Err(AddressError::OnlyExternal), "the Go host dials the empty address");
        assert_eq!(address(&info("", "", 0), true), Err(AddressError::None));
    }

    #[test]
    fn c2_the_addresss_own_port_wins() {
        assert_eq!(address(&info("10.0.0.5:2222", "", 22), false), Ok("10.0.0.5:2222".to_owned()));
        assert_eq!(address(&info("10.0.0.5", "", 2022), false), Ok("10.0.0.5:2022".to_owned()));
        for (host, wanted) in
            [("::1", "[::1]:22"), ("[::1]", "[::1]:22"), ("[::1]:2222", "[::1]:2222"), ("vm-1", "vm-1:22")]
        {
            assert_eq!(address(&info(host, "", 0), false), Ok(wanted.to_owned()), "the Go host makes [[::1]]:22");
        }
        let mut windows = info("vm", "", 0);
        windows.connector.protocol = "winrm+https".to_owned();
        assert_eq!(address(&windows, false), Ok("vm:5986".to_owned()));
    }
}
