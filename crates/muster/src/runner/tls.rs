use std::path::PathBuf;

use muster_config::Runner;
use muster_runner_api::client::{Client, ClientError, TlsFiles};
use url::Url;

use crate::flags::{non_empty, path};

/// TLS files that override those of the configuration.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct TlsArgs {
    /// PEM file of certificate authorities to trust, in addition to the system's.
    #[arg(long, env = "CI_SERVER_TLS_CA_FILE", value_name = "FILE", hide_env_values = true, value_parser = path())]
    tls_ca_file: Option<PathBuf>,
    /// PEM file of the client certificate.
    #[arg(long, env = "CI_SERVER_TLS_CERT_FILE", value_name = "FILE", hide_env_values = true, value_parser = path())]
    tls_cert_file: Option<PathBuf>,
    /// PEM file of the client key.
    #[arg(long, env = "CI_SERVER_TLS_KEY_FILE", value_name = "FILE", hide_env_values = true, value_parser = path())]
    tls_key_file: Option<PathBuf>,
}

impl From<&TlsArgs> for TlsFiles {
    fn from(args: &TlsArgs) -> Self {
        Self {
            ca: non_empty(&args.tls_ca_file),
            certificate: non_empty(&args.tls_cert_file),
            key: non_empty(&args.tls_key_file),
        }
    }
}

impl TlsArgs {
    pub(super) fn client_of(&self, runner: &Runner) -> Result<Client, ClientError> {
        let tls = TlsFiles::from(self);
        if tls.is_empty() {
            return crate::config_file::client_of(runner);
        }
        let url = Url::parse(&runner.url).map_err(|error| {
            ClientError::Setup(format!("`{}`: {error}", muster_job::without_user_info(&runner.url)))
        })?;
        Client::with_tls(&url, &tls)
    }
}
