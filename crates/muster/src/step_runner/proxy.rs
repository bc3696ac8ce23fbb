//! `muster step-runner proxy`: connects standard input and output to the socket or the TCP address of `serve`.

use std::io::{self, ErrorKind};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use muster_agent_api::tls::{TlsError, TlsFiles};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::{InvalidDnsNameError, ServerName};
use tokio_rustls::rustls::{self, AlertDescription, CertificateError};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Arguments of `muster step-runner proxy`.
#[derive(Debug, clap::Args)]
pub(super) struct ProxyArgs {
    /// TCP address of the server. Defaults to the socket in the directory for temporary files.
    #[arg(long, value_name = "HOST:PORT", requires_all = ["tls_cert", "tls_key", "tls_ca"])]
    connect: Option<String>,
    /// Certificate of this client, in PEM format.
    #[arg(long, value_name = "FILE", requires = "connect")]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate, in PEM format.
    #[arg(long, value_name = "FILE", requires = "connect")]
    tls_key: Option<PathBuf>,
    /// Certificate of the authority that signs the certificate of the server, in PEM format.
    #[arg(long, value_name = "FILE", requires = "connect")]
    tls_ca: Option<PathBuf>,
}

pub(super) fn run(args: ProxyArgs) -> ExitCode {
    let ProxyArgs { connect: Some(address), tls_cert: Some(certificate), tls_key: Some(key), tls_ca: Some(authority) } =
        args
    else {
        return connect(&super::default_socket());
    };
    let files = TlsFiles { certificate, key, authority };
    crate::runtime::block_on_one_thread(async {
        match dial(&address, &files).await {
            Ok(stream) => bridge(stream).await,
            Err(error) => super::fail(format!("dialing: dial tcp {address}: {error}; {}", error.remedy())),
        }
    })
}

pub(super) fn connect(socket: &Path) -> ExitCode {
    match UnixStream::connect(socket) {
        Ok(stream) => crate::agent::bridge(stream),
        Err(error) => super::fail(format!(
            "dialing: dial unix {}: {error}; start `serve` with this socket first",
            socket.display()
        )),
    }
}

#[derive(Debug, thiserror::Error)]
enum DialError {
    #[error("the address has no port")]
    NoPort,
    #[error(transparent)]
    Name(#[from] InvalidDnsNameError),
    #[error(transparent)]
    Files(#[from] TlsError),
    #[error("{0}")]
    Connect(io::Error),
    #[error("no answer within {} s", CONNECT_TIMEOUT.as_secs())]
    Timeout,
    #[error("{0}")]
    Handshake(io::Error),
}

impl DialError {
    fn remedy(&self) -> &'static str {
        match self {
            Self::NoPort | Self::Name(_) => "name the address as HOST:PORT",
            Self::Files(_) => "check the files of --tls-cert, --tls-key and --tls-ca",
            Self::Connect(error) if error.kind() == ErrorKind::ConnectionRefused => {
                "start `serve` with this --listen address"
            }
            Self::Connect(_) | Self::Timeout => {
                "check the host name and the firewalls between here and the --listen address of `serve`"
            }
            Self::Handshake(error) => remedy(error),
        }
    }
}

/// Returns what the user can do about a failed connection with TLS.
fn remedy(error: &io::Error) -> &'static str {
    let tls = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
    tls.map_or("check that `serve` listens on this address", tls_remedy)
}

fn tls_remedy(error: &rustls::Error) -> &'static str {
    use rustls::Error::{AlertReceived, InvalidCertificate};
    match error {
        InvalidCertificate(CertificateError::UnknownIssuer) => {
            "set --tls-ca to the authority that signed the certificate of `serve`"
        }
        InvalidCertificate(CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }) => {
            "connect to a name or address in the certificate of `serve`, or create a certificate for this one"
        }
        InvalidCertificate(
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. },
        ) => "renew the certificate of `serve`, or correct the clock of this machine",
        InvalidCertificate(_) => "use another certificate for `serve`",
        AlertReceived(alert) if rejects_certificate(*alert) => "use a certificate of the server's --tls-client-ca",
        _ => "check that `serve` listens on this address with TLS",
    }
}

/// Returns whether a server sends this alert because of the certificate of the client.
fn rejects_certificate(alert: AlertDescription) -> bool {
    use AlertDescription as Alert;
    matches!(
        alert,
        Alert::NoCertificate
            | Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::CertificateRequired
            | Alert::UnknownCA
            | Alert::AccessDenied
            // Sent if the signature of the certificate does not match the authority.
            | Alert::DecryptError
    )
}

async fn dial(address: &str, files: &TlsFiles) -> Result<TlsStream<TcpStream>, DialError> {
    let (host, _) = address.rsplit_once(':').ok_or(DialError::NoPort)?;
    // An IPv6 address before a port is in brackets. In a certificate, it is not.
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let connector = TlsConnector::from(Arc::new(files.client()?));
    let name = ServerName::try_from(host)?;
    let connecting = async {
        let stream = TcpStream::connect(address).await.map_err(DialError::Connect)?;
        stream.set_nodelay(true).map_err(DialError::Connect)?;
        connector.connect(name, stream).await.map_err(DialError::Handshake)
    };
    tokio::time::timeout(CONNECT_TIMEOUT, connecting).await.unwrap_or(Err(DialError::Timeout))
}

/// Copies standard input to the server, and the server's answers to standard output, until one of the two streams has
/// ended.
async fn bridge(stream: TlsStream<TcpStream>) -> ExitCode {
    let (mut from_server, mut to_server) = tokio::io::split(stream);
    let (mut input, mut output) = (tokio::io::stdin(), tokio::io::stdout());
    let ended = tokio::select! {
        // Check the server's side first, because only its error says why the server ended the connection. A write fails
        // at the same time.
        biased;
        ended = tokio::io::copy(&mut from_server, &mut output) => ended,
        _ = tokio::io::copy(&mut input, &mut to_server) => return ExitCode::SUCCESS,
    };
    match ended {
        // With TLS 1.3, a server rejects the certificate of a client after the handshake of the client.
        Err(error) if error.kind() == ErrorKind::InvalidData => {
            super::fail(format!("the server ended the connection: {error}; {}", remedy(&error)))
        }
        // Any other end of the connection is not an error of the proxy.
        _ => ExitCode::SUCCESS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_certificate_is_advised_only_after_alerts_about_certificates() {
        let advice = |alert| tls_remedy(&rustls::Error::AlertReceived(alert));
        for alert in [AlertDescription::UnknownCA, AlertDescription::CertificateRequired] {
            assert!(advice(alert).contains("--tls-client-ca"), "{alert:?}");
        }
        for alert in
            [AlertDescription::ProtocolVersion, AlertDescription::HandshakeFailure, AlertDescription::InternalError]
        {
            assert_eq!(advice(alert), "check that `serve` listens on this address with TLS", "{alert:?}");
        }
    }
}
