//! Options of servers that also listen on a TCP address.

use std::path::PathBuf;

use muster_agent::TcpOptions;
use muster_agent_api::tls::TlsFiles;

/// Options of a TCP address. There is no TCP without TLS.
#[derive(Debug, clap::Args)]
pub(crate) struct ListenArgs {
    /// TCP address to listen on as well. Anyone with a certificate of the authority can run commands as this user.
    #[arg(long = "listen", value_name = "HOST:PORT", requires_all = ["tls_cert", "tls_key", "tls_client_ca"])]
    listen: Option<String>,
    /// Certificate of this server, in PEM format.
    #[arg(long, value_name = "FILE", requires = "listen")]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate, in PEM format.
    #[arg(long, value_name = "FILE", requires = "listen")]
    tls_key: Option<PathBuf>,
    /// Certificate of the authority that signs the certificates of clients, in PEM format.
    #[arg(long, value_name = "FILE", requires = "listen")]
    tls_client_ca: Option<PathBuf>,
}

impl ListenArgs {
    /// Returns `None` if there is no address.
    pub(crate) fn options(self) -> Option<TcpOptions> {
        let Self {
            listen: Some(address),
            tls_cert: Some(certificate),
            tls_key: Some(key),
            tls_client_ca: Some(authority),
        } = self
        else {
            return None;
        };
        Some(TcpOptions { address, tls: TlsFiles { certificate, key, authority } })
    }
}
