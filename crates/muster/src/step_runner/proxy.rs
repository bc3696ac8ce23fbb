//! `muster step-runner proxy`: connects standard input and output to the socket or the TCP address of `serve`.

use std::error::Error;
use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use muster_agent_api::tls::TlsFiles;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;

/// Maximum time to connect.
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

/// Runs `muster step-runner proxy`.
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
            Err(error) => super::fail(format!(
                "dialing: dial tcp {address}: {}; start `serve` with this --listen address, and use certificates of the authority that each end names",
                muster_job::error_chain(error.as_ref())
            )),
        }
    })
}

/// Copies in both directions until either end is closed. Prints only the bytes of the socket.
pub(super) fn connect(socket: &Path) -> ExitCode {
    match UnixStream::connect(socket) {
        Ok(stream) => crate::agent::bridge(stream),
        Err(error) => super::fail(format!(
            "dialing: dial unix {}: {error}; start `serve` with this socket first",
            socket.display()
        )),
    }
}

/// Connects to an address with mutual TLS.
async fn dial(address: &str, files: &TlsFiles) -> Result<TlsStream<TcpStream>, Box<dyn Error>> {
    let (host, _) = address.rsplit_once(':').ok_or("the address must have a port, as HOST:PORT")?;
    // An IPv6 address has brackets in front of a port, and none in a certificate.
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let connector = TlsConnector::from(Arc::new(files.client()?));
    let name = ServerName::try_from(host)?;
    let connecting = async {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        connector.connect(name, stream).await
    };
    let connected = tokio::time::timeout(CONNECT_TIMEOUT, connecting).await;
    Ok(connected.map_err(|_| format!("no answer within {} s", CONNECT_TIMEOUT.as_secs()))??)
}

/// Copies between standard input and output and the server until either end is closed.
async fn bridge(stream: TlsStream<TcpStream>) -> ExitCode {
    let (mut from_server, mut to_server) = tokio::io::split(stream);
    let (mut input, mut output) = (tokio::io::stdin(), tokio::io::stdout());
    let ended = tokio::select! {
        _ = tokio::io::copy(&mut input, &mut to_server) => return ExitCode::SUCCESS,
        ended = tokio::io::copy(&mut from_server, &mut output) => ended,
    };
    match ended {
        // With TLS 1.3, a server rejects the certificate of a client after the handshake of the client.
        Err(error) if error.kind() == ErrorKind::InvalidData => super::fail(format!(
            "the server ended the connection: {error}; use a certificate of the server's --tls-client-ca"
        )),
        // However the connection ends, its end is not an error of the proxy.
        _ => ExitCode::SUCCESS,
    }
}
