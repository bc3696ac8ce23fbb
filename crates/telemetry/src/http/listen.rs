//! The address to listen on, as a configuration has it.

use std::str::FromStr;

use tokio::net::TcpListener;

/// The port where the address has none.
pub(super) const PORT: u16 = 9252;

/// `host:port`, `host` or `:port`. No host is every address of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenAddress {
    host: String,
    port: u16,
}

/// Why the server cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The text is no address.
    #[error("`{0}` is not an address to listen on; it is like `127.0.0.1:9252`, `:9252` or `[::1]:9252`")]
    Address(String),
    /// The address cannot be taken.
    #[error("cannot listen on {address} for metrics; if another process has the port, set another listen_address")]
    Bind {
        /// The address.
        address: String,
        /// What the system says.
        source: std::io::Error,
    },
}

impl FromStr for ListenAddress {
    type Err = ListenError;

    fn from_str(text: &str) -> Result<Self, ListenError> {
        let wrong = || ListenError::Address(text.to_owned());
        let trimmed = text.trim();
        let (host, port) = match trimmed.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, "")) => (host, None),
            Some((host, rest)) => (host, Some(rest.strip_prefix(':').ok_or_else(wrong)?)),
            None => match trimmed.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (trimmed, None),
            },
        };
        let port = port.map_or(Ok(PORT), |port| port.parse().map_err(|_| wrong()))?;
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-._:%".contains(c);
        if trimmed.is_empty() || !host.chars().all(allowed) {
            return Err(wrong());
        }
        Ok(Self { host: host.to_owned(), port })
    }
}

impl std::fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (open, close) = if self.host.contains(':') { ("[", "]") } else { ("", "") };
        write!(f, "{open}{}{close}:{}", self.host, self.port)
    }
}

impl ListenAddress {
    /// The URL at which a program on the same machine reaches who listens here, without a slash at its end.
    #[must_use]
    pub fn url(&self) -> String {
        let (host, port) = (self.host.as_str(), self.port);
        match host {
            "" | "0.0.0.0" => format!("http://127.0.0.1:{port}"),
            "::" => format!("http://[::1]:{port}"),
            _ => format!("http://{self}"),
        }
    }

    pub(super) async fn bind(&self) -> Result<TcpListener, ListenError> {
        let bound = if self.host.is_empty() {
            // Both families where the system has both.
            match TcpListener::bind(("::", self.port)).await {
                Ok(listener) => Ok(listener),
                Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => Err(error),
                Err(_) => TcpListener::bind(("0.0.0.0", self.port)).await,
            }
        } else {
            TcpListener::bind((&*self.host, self.port)).await
        };
        bound.map_err(|source| ListenError::Bind { address: self.to_string(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_a_missing_port_is_9252() {
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
