//! Machines to connect to.

use std::fmt;
use std::net::Ipv6Addr;
use std::time::Duration;

/// Address and credentials of a machine.
#[derive(Clone, PartialEq, Eq)]
pub struct Target {
    /// Name of the machine, for logs and for its host key.
    pub machine: String,
    /// Host name or IP address, optionally with a port, which overrides `port`.
    pub address: String,
    /// `ssh`, `winrm` or `winrm+https`. Empty means `ssh`.
    pub protocol: String,
    /// 0 means the default port of the protocol.
    pub port: u16,
    /// User name.
    pub username: String,
    /// Password.
    pub password: String,
    /// Content of a private key file, optionally with its certificate. Empty means no key. With a key, SSH sends no
    /// password.
    pub key: Vec<u8>,
    /// Interval between keepalives.
    pub keepalive: Duration,
    /// Timeout for establishing the connection.
    pub timeout: Duration,
    /// Unix time in seconds at which the credentials expire. `None` means never.
    pub expires: Option<i64>,
    /// Whether protocols that send the password in clear text are allowed.
    pub allow_unencrypted: bool,
}

impl Target {
    /// Returns the `host:port` to connect to.
    #[must_use]
    pub fn host_and_port(&self) -> String {
        let address = self.address.as_str();
        let port = match (self.port, self.protocol.as_str()) {
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
}

impl Default for Target {
    /// Returns an empty target with the timeouts of GitLab's fleeting protocol.
    fn default() -> Self {
        Self {
            machine: String::new(),
            address: String::new(),
            protocol: String::new(),
            port: 0,
            username: String::new(),
            password: String::new(),
            key: Vec::new(),
            keepalive: Duration::from_secs(30),
            timeout: Duration::from_secs(600),
            expires: None,
            allow_unencrypted: false,
        }
    }
}

impl fmt::Debug for Target {
    /// Omits the secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target")
            .field("machine", &self.machine)
            .field("address", &self.address)
            .field("protocol", &self.protocol)
            .field("port", &self.port)
            .field("username", &self.username)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host_and_port(address: &str, port: u16, protocol: &str) -> String {
        let target = Target { address: address.to_owned(), port, protocol: protocol.to_owned(), ..Target::default() };
        target.host_and_port()
    }

    #[test]
    fn c2_port_in_address_takes_precedence() {
        assert_eq!(host_and_port("10.0.0.5:2222", 22, ""), "10.0.0.5:2222");
        assert_eq!(host_and_port("10.0.0.5", 2022, ""), "10.0.0.5:2022");
        for (host, expected) in
            [("::1", "[::1]:22"), ("[::1]", "[::1]:22"), ("[::1]:2222", "[::1]:2222"), ("vm-1", "vm-1:22")]
        {
            assert_eq!(host_and_port(host, 0, ""), expected, "{host}");
        }
        assert_eq!(host_and_port("vm", 0, "winrm+https"), "vm:5986");
    }

    #[test]
    fn debug_output_omits_secrets() {
        let (password, key) = ("hunter2".to_owned(), b"KEY".to_vec());
        let text = format!("{:?}", Target { password, key, ..Target::default() });
        // 75 is the first byte of the key.
        assert!(!text.contains("hunter2") && !text.contains("75"), "{text}");
    }
}
