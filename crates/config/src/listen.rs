//! The address of `listen_address`, on which metrics are served.

use std::fmt;
use std::str::FromStr;

const DEFAULT_PORT: u16 = 9252;

/// `host:port`, `host` or `:port`. Without a host, metrics are served on every address of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenAddress {
    host: String,
    port: u16,
}

/// The text is not a valid listen address.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not a valid listen address; write it like `127.0.0.1:9252`, `:9252` or `[::1]:9252`")]
pub struct InvalidListenAddress(String);

impl FromStr for ListenAddress {
    type Err = InvalidListenAddress;

    fn from_str(text: &str) -> Result<Self, InvalidListenAddress> {
        let invalid = || InvalidListenAddress(text.to_owned());
        let trimmed = text.trim();
        let (host, port) = match trimmed.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, "")) => (host, None),
            Some((host, rest)) => (host, Some(rest.strip_prefix(':').ok_or_else(invalid)?)),
            None => match trimmed.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (trimmed, None),
            },
        };
        let port = port.map_or(Ok(DEFAULT_PORT), |port| port.parse().map_err(|_| invalid()))?;
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-._:%".contains(c);
        if trimmed.is_empty() || !host.chars().all(allowed) {
            return Err(invalid());
        }
        Ok(Self { host: host.to_owned(), port })
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (open, close) = if self.host.contains(':') { ("[", "]") } else { ("", "") };
        write!(f, "{open}{}{close}:{}", self.host, self.port)
    }
}

impl ListenAddress {
    /// Returns the URL at which a program on the same machine reaches the server, without a slash at its end.
    #[must_use]
    pub fn url(&self) -> String {
        let (host, port) = (self.host.as_str(), self.port);
        match host {
            "" | "0.0.0.0" => format!("http://127.0.0.1:{port}"),
            "::" => format!("http://[::1]:{port}"),
            _ => format!("http://{self}"),
        }
    }

    /// Returns the host. Empty means every address of the machine.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_and_port_are_optional() {
        let read = |text: &str| text.parse::<ListenAddress>().map(|address| address.to_string()).unwrap();
        assert_eq!(read("127.0.0.1:1234"), "127.0.0.1:1234");
        assert_eq!(read("localhost"), "localhost:9252");
        assert_eq!(read(":9000"), ":9000");
        assert_eq!(read("[::1]:80"), "[::1]:80");
        assert_eq!(read("[::]"), "[::]:9252");
        let url = |text: &str| text.parse::<ListenAddress>().unwrap().url();
        assert_eq!(url(":9000"), "http://127.0.0.1:9000");
        assert_eq!(url("[::]:80"), "http://[::1]:80");
        assert_eq!(url("runner.example"), "http://runner.example:9252");
        for wrong in ["", "host:port", "host:99999", "a b:1", "[::1", "[::1]80"] {
            wrong.parse::<ListenAddress>().unwrap_err();
        }
    }
}
