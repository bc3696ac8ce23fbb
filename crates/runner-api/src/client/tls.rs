//! Certificates of the runner's own: authorities beside the system's, and the client's identity (runner-config 2.9).

use std::path::{Path, PathBuf};

use reqwest::{Certificate, ClientBuilder, Identity};
use serde::{Deserialize, Serialize};

use super::{ClientError, chain};

/// `tls-ca-file`, `tls-cert-file`, `tls-key-file` of a runner; PEM all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TlsFiles {
    /// Certificates that are trusted beside those of the system.
    pub ca: Option<PathBuf>,
    /// The client's certificate.
    pub certificate: Option<PathBuf>,
    /// The client's key.
    pub key: Option<PathBuf>,
}

impl TlsFiles {
    /// Where a file is not named, `<host>.crt`, `<host>.auth.crt` and `<host>.auth.key` in `folder`, if they exist.
    #[must_use]
    pub fn or_from(self, folder: &Path, host: &str) -> Self {
        let found = |suffix: &str| Some(folder.join(format!("{host}{suffix}"))).filter(|path| path.is_file());
        Self {
            ca: self.ca.or_else(|| found(".crt")),
            certificate: self.certificate.or_else(|| found(".auth.crt")),
            key: self.key.or_else(|| found(".auth.key")),
        }
    }

    /// Whether no file is named.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn apply(&self, mut http: ClientBuilder) -> Result<ClientBuilder, ClientError> {
        if let Some(path) = &self.ca {
            let pem = read(path)?;
            let certificates = Certificate::from_pem_bundle(&pem).map_err(|error| unusable(path, &chain(&error)))?;
            if certificates.is_empty() {
                return Err(unusable(path, "it holds no certificate in PEM form"));
            }
            http = certificates.into_iter().fold(http, ClientBuilder::add_root_certificate);
        }
        match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => {
                let mut pem = read(certificate)?;
                pem.push(b'\n');
                pem.extend(read(key)?);
                let identity = Identity::from_pem(&pem).map_err(|error| unusable(certificate, &chain(&error)))?;
                Ok(http.identity(identity))
            }
            (None, None) => Ok(http),
            (Some(path), None) => Err(unusable(path, "the key to this certificate is missing: set tls-key-file")),
            (None, Some(path)) => Err(unusable(path, "the certificate to this key is missing: set tls-cert-file")),
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, ClientError> {
    std::fs::read(path).map_err(|error| unusable(path, &error.to_string()))
}

fn unusable(path: &Path, why: &str) -> ClientError {
    ClientError::Setup(format!("{}: {why}", path.display()))
}
