//! Conversions between the model and the protocol's messages.

use std::time::Duration;

use crate::model::{ConnectorConfig, ConnectorConfigError};
use crate::protocol::group;

impl ConnectorConfig {
    pub(crate) fn to_wire(&self) -> group::ConnectorConfig {
        group::ConnectorConfig {
            os: self.os.clone(),
            arch: self.arch.clone(),
            protocol: self.protocol.clone(),
            username: self.username.clone(),
            password: self.password.clone(),
            key: self.key.clone(),
            use_static_credentials: self.use_static_credentials,
            keepalive: nanoseconds(self.keepalive),
            timeout: nanoseconds(self.timeout),
            protocol_port: i64::from(self.protocol_port),
        }
    }

    /// Converts from the protocol's message. Zero and negative durations become the defaults.
    pub(crate) fn from_wire(wire: group::ConnectorConfig) -> Result<Self, ConnectorConfigError> {
        let default = Self::default();
        let duration = |value: i64, default: Duration| match u64::try_from(value) {
            Ok(0) | Err(_) => default,
            Ok(value) => Duration::from_nanos(value),
        };
        let port = wire.protocol_port;
        Ok(Self {
            os: wire.os,
            arch: wire.arch,
            protocol: wire.protocol,
            protocol_port: u16::try_from(port).map_err(|_| ConnectorConfigError::Port { found: port })?,
            username: wire.username,
            password: wire.password,
            key: wire.key,
            use_static_credentials: wire.use_static_credentials,
            keepalive: duration(wire.keepalive, default.keepalive),
            timeout: duration(wire.timeout, default.timeout),
        })
    }
}

fn nanoseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}
