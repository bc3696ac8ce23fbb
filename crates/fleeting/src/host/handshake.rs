//! The first line that a plugin prints, `CORE|APP|NETWORK|ADDRESS|PROTOCOL|CERT`.
//! See docs/spec/fleeting.md, section 1.4.

use std::path::PathBuf;

use crate::protocol::{APP_VERSION, CORE_VERSION};

/// Maximum number of bytes that are read of the first line.
/// Its longest part is the address: a path, or a host with a port.
pub(super) const MAX_LINE_BYTES: usize = 8 * 1024;
/// Length above which the sixth field is treated as a certificate.
const MIN_CERTIFICATE_CHARS: usize = 50;

/// Address on which the plugin listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// Path of a Unix socket.
    Unix(PathBuf),
    /// `host:port`.
    Tcp(String),
}

/// Content of a plugin's handshake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handshake {
    /// Address on which the plugin listens.
    pub address: Address,
}

/// Reason why a first line is not a valid handshake.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// The line does not have the form of a handshake.
    #[error(
        "unrecognized plugin message {line:?}: the first line on stdout must be the handshake CORE|APP|NETWORK|ADDRESS|grpc; \
         the plugin must print nothing before it and must log to stderr"
    )]
    Unrecognized {
        /// The line, shortened.
        line: String,
    },
    /// The plugin uses another version of the handshake.
    #[error("incompatible core API version {found:?}: this host supports {CORE_VERSION}; use a plugin built for it")]
    Core {
        /// Version that the plugin uses.
        found: String,
    },
    /// The plugin uses another version of the fleeting protocol.
    #[error(
        "incompatible API version with plugin. Plugin version: {found}, Client versions: [{APP_VERSION}]; use another \
         version of the plugin"
    )]
    App {
        /// Version that the plugin uses.
        found: String,
    },
    /// The address is neither a Unix socket nor TCP.
    #[error("unknown address type {found:?}: a plugin listens on \"unix\" or \"tcp\"")]
    Network {
        /// Address type in the handshake.
        found: String,
    },
    /// The handshake has no address.
    #[error("the plugin's handshake has no address")]
    NoAddress,
    /// The plugin uses another protocol than gRPC.
    #[error("unsupported plugin protocol {found:?}: only \"grpc\" is supported")]
    Protocol {
        /// Protocol in the handshake; `netrpc` if the field is missing.
        found: String,
    },
    /// The plugin requires TLS, which the host did not request.
    #[error(
        "the plugin requires TLS, which this host did not request; check whether the plugin's own settings set PLUGIN_CLIENT_CERT"
    )]
    Tls,
}

impl Handshake {
    /// Parses the line. Surrounding white space and a missing certificate field are accepted.
    ///
    /// # Errors
    /// [`HandshakeError`].
    pub fn parse(line: &str) -> Result<Self, HandshakeError> {
        let fields: Vec<&str> = line.trim().split('|').collect();
        let [core, app, network, address, rest @ ..] = fields.as_slice() else {
            return Err(HandshakeError::Unrecognized { line: shorten(line) });
        };
        if core.parse::<u32>().is_err() {
            return Err(HandshakeError::Unrecognized { line: shorten(line) });
        }
        if *core != CORE_VERSION {
            return Err(HandshakeError::Core { found: (*core).to_owned() });
        }
        if *app != APP_VERSION {
            return Err(HandshakeError::App { found: shorten(app) });
        }
        if address.is_empty() {
            return Err(HandshakeError::NoAddress);
        }
        let address = match *network {
            "unix" => Address::Unix(PathBuf::from(address)),
            "tcp" => Address::Tcp((*address).to_owned()),
            other => return Err(HandshakeError::Network { found: shorten(other) }),
        };
        match rest.first() {
            Some(&"grpc") => {}
            None => return Err(HandshakeError::Protocol { found: "netrpc".to_owned() }),
            Some(other) => return Err(HandshakeError::Protocol { found: shorten(other) }),
        }
        if rest.get(1).is_some_and(|certificate| certificate.len() > MIN_CERTIFICATE_CHARS) {
            return Err(HandshakeError::Tls);
        }
        Ok(Self { address })
    }
}

fn shorten(text: &str) -> String {
    const MAX_CHARS: usize = 120;
    let text = text.trim();
    if text.chars().count() <= MAX_CHARS {
        text.to_owned()
    } else {
        text.chars().take(MAX_CHARS).chain(['…']).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unix(path: &str) -> Result<Handshake, HandshakeError> {
        Ok(Handshake { address: Address::Unix(path.into()) })
    }

    #[test]
    fn h1_handshake_contains_a_socket() {
        assert_eq!(Handshake::parse("1|0|unix|/tmp/p1|grpc|\n"), unix("/tmp/p1"));
    }

    #[test]
    fn h2_surrounding_whitespace_and_missing_field_are_accepted() {
        for line in ["1|0|unix|/tmp/p1|grpc|\r\n", "  1|0|unix|/tmp/p1|grpc|  ", "1|0|unix|/tmp/p1|grpc"] {
            assert_eq!(Handshake::parse(line), unix("/tmp/p1"), "{line:?}");
        }
        assert_eq!(
            Handshake::parse("1|0|unix|/tmp/p1|grpc||true"),
            unix("/tmp/p1"),
            "the multiplex flag must be ignored"
        );
    }

    #[test]
    fn h3_other_core_version_is_refused() {
        let error = Handshake::parse("2|0|unix|/tmp/p1|grpc|").unwrap_err();
        assert_eq!(error, HandshakeError::Core { found: "2".to_owned() });
        assert!(error.to_string().contains("incompatible core API version"), "{error}");
    }

    #[test]
    fn h4_other_app_version_is_refused() {
        let error = Handshake::parse("1|5|unix|/tmp/p1|grpc|").unwrap_err();
        assert!(error.to_string().contains("Plugin version: 5, Client versions: [0]"), "{error}");
    }

    #[test]
    fn h5_four_fields_mean_netrpc() {
        let error = Handshake::parse("1|0|unix|/tmp/p1").unwrap_err();
        assert!(error.to_string().contains("unsupported plugin protocol \"netrpc\""), "{error}");
    }

    #[test]
    fn h6_text_that_is_not_a_handshake_is_unrecognized() {
        for line in ["hello world", "", "a|b|c|d|e", "1|0|unix"] {
            let error = Handshake::parse(line).unwrap_err();
            assert!(matches!(error, HandshakeError::Unrecognized { .. }), "{line:?}: {error}");
        }
    }

    #[test]
    fn h7_other_network_is_refused() {
        let error = Handshake::parse("1|0|vsock|3:1024|grpc|").unwrap_err();
        assert!(error.to_string().contains("unknown address type"), "{error}");
    }

    #[test]
    fn h8_tcp_is_accepted_on_every_system() {
        let handshake = Handshake::parse("1|0|tcp|127.0.0.1:4711|grpc|");
        assert_eq!(handshake, Ok(Handshake { address: Address::Tcp("127.0.0.1:4711".to_owned()) }));
    }

    #[test]
    fn unrequested_certificate_is_refused() {
        let line = format!("1|0|unix|/tmp/p1|grpc|{}", "A".repeat(795));
        assert_eq!(Handshake::parse(&line), Err(HandshakeError::Tls));
    }

    #[test]
    fn long_line_is_shortened() {
        let error = Handshake::parse(&"é".repeat(5_000)).unwrap_err();
        assert!(error.to_string().chars().count() < 400, "{error}");
    }

    #[test]
    fn fuzz_plugin_output() {
        let samples: [&[u8]; 5] = [
            b"1|0|unix|/tmp/p1|grpc|",
            b"1|0|tcp|127.0.0.1:4711|grpc|AAAA",
            br#"{"@level":"warn","@message":"m","@timestamp":"2026-11-21T10:00:00.123456Z","key":{"a":[1]}}"#,
            b"2026-11-21T10:00:00.123Z [ERROR] plugin: words: key=value",
            b"panic: oh\ngoroutine 1 [running]:",
        ];
        let words = ["|", "1|0|", "unix", "grpc", "\"@level\":", "\"@timestamp\":", "{", "[", "panic: ", "\r", "\0"];
        muster_fuzz::fuzz("plugin output", muster_fuzz::Corpus { samples: &samples, words: &words }, |input| {
            let text = String::from_utf8_lossy(input);
            if let Err(error) = Handshake::parse(&text) {
                assert!(error.to_string().chars().count() < 500, "{error}");
            }
            let mut reader = crate::host::LogReader::default();
            for line in text.lines() {
                let _ = reader.read(line);
            }
        });
    }
}
