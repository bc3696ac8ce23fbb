//! Parses `nesting_host`, the address of the daemon (docs/spec/fleeting.md, section 8.3).

/// Address of the daemon, on its machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DaemonAddress {
    /// Kind of address, with Go's name: `unix` or `tcp`.
    pub(super) network: String,
    /// Path of a Unix socket, or `HOST:PORT`.
    pub(super) address: String,
}

impl DaemonAddress {
    /// Parses a URL, `unix:PATH` or a TCP address.
    /// The network of a URL is its scheme. The address is the path of the URL, or host and port if the URL has no path.
    pub(super) fn parse(text: &str) -> Self {
        let (network, address) = match text.split_once(":/") {
            Some((scheme, rest)) => {
                // `unix:///a b`, `unix:/a b` or `tcp://host:port`.
                let address = match rest.strip_prefix('/') {
                    None => format!("/{rest}"),
                    Some(authority) => match authority.find('/') {
                        Some(path_start) => authority.get(path_start..).unwrap_or_default().to_owned(),
                        None => authority.to_owned(),
                    },
                };
                (scheme, address)
            }
            None => match text.split_once(':') {
                Some(("unix", path)) => ("unix", path.to_owned()),
                _ => ("tcp", text.to_owned()),
            },
        };
        Self { network: network.to_owned(), address }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nesting_host_formats_match_the_go_host() {
        for (text, network, address) in [
            (
                "unix:///Users/ec2-user/Library/Application Support/nesting.sock",
                "unix",
                "/Users/ec2-user/Library/Application Support/nesting.sock",
            ),
            ("unix:/run/nesting.sock", "unix", "/run/nesting.sock"),
            ("unix:nesting.sock", "unix", "nesting.sock"),
            ("tcp://10.0.0.1:7000", "tcp", "10.0.0.1:7000"),
            ("10.0.0.1:7000", "tcp", "10.0.0.1:7000"),
        ] {
            assert_eq!(
                DaemonAddress::parse(text),
                DaemonAddress { network: network.to_owned(), address: address.to_owned() },
                "{text}"
            );
        }
    }
}
