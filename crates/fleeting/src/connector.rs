//! Converts a plugin's connection details to a target of `muster-remote`.
//! See docs/spec/fleeting.md, section 4.1.

use muster_remote::Target;

use crate::model::{ConnectInfo, InstanceId};

/// Settings of `connector_config` that the host uses itself. They are not sent to the plugin.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DialOptions {
    /// Whether to connect to the external address, if there is one, instead of the internal address.
    pub use_external_addr: bool,
    /// Whether the protocol `winrm` may send credentials over plain HTTP.
    /// Everyone who can read the network traffic can then read the credentials.
    pub allow_unencrypted: bool,
}

/// Reason why an instance has no address to connect to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The plugin returned only an external address, and the settings do not select it.
    #[error(
        "the instance has only an external address; set use_external_addr = true in connector_config, or give the instance an \
         internal address"
    )]
    OnlyExternal,
    /// The plugin returned no address.
    #[error("the plugin returned no address")]
    None,
}

/// Returns the target for a session with an instance.
///
/// # Errors
/// [`AddressError`]. The Go host instead dials the empty address until its timeout (case C1).
pub fn target(instance: &InstanceId, info: ConnectInfo, options: DialOptions) -> Result<Target, AddressError> {
    let address = address(&info, options.use_external_addr)?.to_owned();
    let connector = info.connector;
    Ok(Target {
        machine: instance.as_str().to_owned(),
        address,
        protocol: connector.protocol,
        port: connector.protocol_port,
        username: connector.username,
        password: connector.password,
        key: connector.key,
        keepalive: connector.keepalive,
        timeout: connector.timeout,
        expires: info.expires,
        allow_unencrypted: options.allow_unencrypted,
    })
}

/// Returns the external address if `use_external` is set and the plugin returned one, otherwise the internal address.
///
/// # Errors
/// [`AddressError`].
pub fn address(info: &ConnectInfo, use_external: bool) -> Result<&str, AddressError> {
    let (internal, external) = (info.internal_addr.as_str(), info.external_addr.as_str());
    let chosen = if use_external && !external.is_empty() { external } else { internal };
    match (chosen.is_empty(), external.is_empty()) {
        (false, _) => Ok(chosen),
        (true, false) => Err(AddressError::OnlyExternal),
        (true, true) => Err(AddressError::None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ConnectorConfig;

    fn info(internal: &str, external: &str) -> ConnectInfo {
        let connector = ConnectorConfig { protocol_port: 2022, ..ConnectorConfig::default() };
        ConnectInfo {
            connector,
            external_addr: external.to_owned(),
            internal_addr: internal.to_owned(),
            expires: Some(1),
        }
    }

    #[test]
    fn c1_internal_address_is_the_default() {
        let both = info("10.0.0.5", "192.0.2.1");
        assert_eq!(address(&both, false), Ok("10.0.0.5"));
        assert_eq!(address(&both, true), Ok("192.0.2.1"));
        assert_eq!(address(&info("10.0.0.5", ""), true), Ok("10.0.0.5"));
        let external = info("", "192.0.2.1");
        assert_eq!(address(&external, true), Ok("192.0.2.1"));
        assert_eq!(
            address(&external, false),
            Err(AddressError::OnlyExternal),
            "expected an error (the Go host dials the empty address)"
        );
        assert_eq!(address(&info("", ""), true), Err(AddressError::None));
    }

    #[test]
    fn target_combines_plugin_and_user_settings() {
        let options = DialOptions { use_external_addr: true, allow_unencrypted: true };
        let target = target(&InstanceId::new("i-1"), info("10.0.0.5", "192.0.2.1"), options).unwrap();
        assert_eq!((target.machine.as_str(), target.host_and_port().as_str()), ("i-1", "192.0.2.1:2022"));
        assert_eq!((target.expires, target.allow_unencrypted), (Some(1), true));
    }
}
