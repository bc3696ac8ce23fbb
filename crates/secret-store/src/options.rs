//! Options of the connection to servers, from variables of the manager's environment as in gitlab-runner.

use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_job::GoDuration;
use reqwest::{Certificate, ClientBuilder, Identity};

use crate::VaultError;

const CA_FILE: &str = "VAULT_CACERT";
const CA_DIRECTORY: &str = "VAULT_CAPATH";
const CLIENT_CERTIFICATE: &str = "VAULT_CLIENT_CERT";
const CLIENT_KEY: &str = "VAULT_CLIENT_KEY";
const SKIP_VERIFY: &str = "VAULT_SKIP_VERIFY";
const TIMEOUT: &str = "VAULT_CLIENT_TIMEOUT";
const MAX_RETRIES: &str = "VAULT_MAX_RETRIES";

/// Options of the connection to servers.
#[derive(Debug, Clone)]
pub struct VaultOptions {
    /// Authorities to trust, in addition to the machine's certificates.
    pub ca_file: Option<PathBuf>,
    /// Directory with files like `ca_file`. Ignored if `ca_file` is set.
    pub ca_directory: Option<PathBuf>,
    /// Files with the certificate and the private key of the client.
    pub client_certificate: Option<(PathBuf, PathBuf)>,
    /// Whether to skip the verification of the server's certificate.
    pub skip_verify: bool,
    /// Timeout of one request. Defaults to 60 s.
    pub timeout: Duration,
    /// Maximum number of retries if the server is not available. Defaults to 2.
    pub max_retries: u32,
    /// Delay before the first retry, which doubles before each further retry. Defaults to 1 s.
    pub retry_delay: Duration,
}

impl Default for VaultOptions {
    fn default() -> Self {
        Self {
            ca_file: None,
            ca_directory: None,
            client_certificate: None,
            skip_verify: false,
            timeout: Duration::from_secs(60),
            max_retries: 2,
            retry_delay: Duration::from_secs(1),
        }
    }
}

impl VaultOptions {
    /// Reads the options. `variable` returns the value of an environment variable.
    ///
    /// # Errors
    /// [`VaultError::Option`] if a value is not valid, [`VaultError::Incomplete`] if a certificate is set without its
    /// key or a key without its certificate.
    pub fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Result<Self, VaultError> {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let path = |name: &str| variable(name).map(PathBuf::from);
        let invalid = |name: &'static str, value: String| VaultError::Option { name, value };
        let mut options = Self { ca_file: path(CA_FILE), ca_directory: path(CA_DIRECTORY), ..Self::default() };
        options.client_certificate = match (path(CLIENT_CERTIFICATE), path(CLIENT_KEY)) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            (Some(_), None) => return Err(VaultError::Incomplete { name: CLIENT_CERTIFICATE, missing: CLIENT_KEY }),
            (None, Some(_)) => return Err(VaultError::Incomplete { name: CLIENT_KEY, missing: CLIENT_CERTIFICATE }),
        };
        if let Some(value) = variable(SKIP_VERIFY) {
            options.skip_verify = match value.as_str() {
                "1" | "t" | "T" | "TRUE" | "true" | "True" => true,
                "0" | "f" | "F" | "FALSE" | "false" | "False" => false,
                _ => return Err(invalid(SKIP_VERIFY, value)),
            };
        }
        if let Some(value) = variable(TIMEOUT) {
            let timeout = match GoDuration::parse(&value) {
                Some(GoDuration::NonNegative(timeout)) => Some(timeout),
                _ => value.parse().ok().map(Duration::from_secs),
            };
            options.timeout = timeout.filter(|timeout| !timeout.is_zero()).ok_or_else(|| invalid(TIMEOUT, value))?;
        }
        if let Some(value) = variable(MAX_RETRIES) {
            options.max_retries = value.parse().map_err(|_| invalid(MAX_RETRIES, value))?;
        }
        Ok(options)
    }

    /// Creates a client. The files are read again for each client, because they may change.
    pub(crate) async fn client(&self) -> Result<reqwest::Client, VaultError> {
        let builder = reqwest::Client::builder().http1_only().timeout(self.timeout);
        // [`crate::transport`] follows redirects, because it knows where a token may be sent.
        let mut builder = builder.redirect(reqwest::redirect::Policy::none());
        if let Some(path) = &self.ca_file {
            builder = trust(builder, CA_FILE, &read(CA_FILE, path).await?)?;
        } else if let Some(directory) = &self.ca_directory {
            for path in files(directory).await.map_err(|source| failed(CA_DIRECTORY, directory, source))? {
                builder = trust(builder, CA_DIRECTORY, &read(CA_DIRECTORY, &path).await?)?;
            }
        }
        if let Some((certificate, key)) = &self.client_certificate {
            let mut pem = read(CLIENT_KEY, key).await?;
            pem.push(b'\n');
            pem.extend(read(CLIENT_CERTIFICATE, certificate).await?);
            let identity = Identity::from_pem(&pem);
            builder = builder
                .identity(identity.map_err(|source| VaultError::Certificate { name: CLIENT_CERTIFICATE, source })?);
        }
        builder.danger_accept_invalid_certs(self.skip_verify).build().map_err(VaultError::Client)
    }
}

fn trust(mut builder: ClientBuilder, name: &'static str, pem: &[u8]) -> Result<ClientBuilder, VaultError> {
    let certificates = Certificate::from_pem_bundle(pem).map_err(|source| VaultError::Certificate { name, source })?;
    for certificate in certificates {
        builder = builder.add_root_certificate(certificate);
    }
    Ok(builder)
}

/// Returns the files of a directory in a fixed order.
async fn files(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut entries = tokio::fs::read_dir(directory).await?;
    let mut files = Vec::new();
    while let Some(entry) = entries.next_entry().await? {
        if tokio::fs::metadata(entry.path()).await?.is_file() {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}

async fn read(name: &'static str, path: &Path) -> Result<Vec<u8>, VaultError> {
    tokio::fs::read(path).await.map_err(|source| failed(name, path, source))
}

fn failed(name: &'static str, path: &Path, source: std::io::Error) -> VaultError {
    VaultError::File { name, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(list: &[(&str, &str)]) -> Result<VaultOptions, String> {
        let value = |name: &str| list.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        VaultOptions::from_environment(value).map_err(|error| error.to_string())
    }

    #[test]
    fn options_are_read_from_the_variables_of_the_vault_client() {
        let read = options(&[(TIMEOUT, "90"), (MAX_RETRIES, "0"), (SKIP_VERIFY, "t"), (CA_FILE, "")]).unwrap();
        assert_eq!((read.timeout, read.max_retries, read.skip_verify), (Duration::from_secs(90), 0, true));
        assert_eq!(read.ca_file, None);
        assert_eq!(options(&[(TIMEOUT, "1m30s")]).unwrap().timeout, Duration::from_secs(90));
        let pair = options(&[(CLIENT_CERTIFICATE, "/c"), (CLIENT_KEY, "/k")]).unwrap().client_certificate;
        assert_eq!(pair, Some(("/c".into(), "/k".into())));
    }

    #[test]
    fn client_certificate_without_its_key_is_an_error() {
        for (name, missing) in [(CLIENT_CERTIFICATE, CLIENT_KEY), (CLIENT_KEY, CLIENT_CERTIFICATE)] {
            let error = options(&[(name, "/file"), (missing, "")]).unwrap_err();
            assert!(
                error.starts_with(&format!("{name} is set")) && error.contains(&format!("{missing} is not")),
                "{error}"
            );
        }
    }

    #[test]
    fn invalid_options_are_named() {
        for (name, value) in [(TIMEOUT, "soon"), (TIMEOUT, "0"), (MAX_RETRIES, "-1"), (SKIP_VERIFY, "yes")] {
            let error = options(&[(name, value)]).unwrap_err();
            assert!(error.contains(&format!("`{value}` is not a valid value of {name}")), "{error}");
        }
    }
}
