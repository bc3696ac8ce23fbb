//! Sessions with the machine of `[runners.ssh]`.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use muster_config::settings::SshSettings;
use muster_remote::{self as remote, DialError, Session, Target};

use super::error::SshError;
use super::host_keys::HostKeys;
use crate::deploy::{DeployError, Dial, Dialed};

/// Timeout for all attempts to connect with the key, and again for all attempts with the password.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, Clone)]
pub(super) struct SshMachine {
    settings: Arc<SshSettings>,
    port: u16,
    name: String,
}

impl SshMachine {
    /// # Errors
    /// [`SshError`] if the port is invalid, or if there are no credentials.
    pub(super) fn new(settings: &Arc<SshSettings>) -> Result<Self, SshError> {
        let port = settings.port.trim().parse().ok().filter(|port| *port > 0);
        let port = port.ok_or_else(|| SshError::Port { port: settings.port.clone() })?;
        if settings.password.is_none() && settings.identity_file.is_none() {
            return Err(SshError::NoCredentials);
        }
        let name = format!("{}@{}:{port}", settings.user, settings.host);
        Ok(Self { settings: Arc::clone(settings), port, name })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns a target with the key and then one with the password, which are tried in this order as in gitlab-runner.
    async fn targets(&self) -> Result<Vec<Target>, SshError> {
        let SshSettings { host, user, password, identity_file, .. } = &*self.settings;
        let target = || Target {
            machine: self.name.clone(),
            address: host.clone(),
            port: self.port,
            username: user.clone(),
            timeout: CONNECT_TIMEOUT,
            ..Target::default()
        };
        let mut targets = Vec::new();
        if let Some(path) = identity_file {
            let failed = |source| SshError::IdentityFile { path: path.clone(), source };
            targets.push(Target { key: tokio::fs::read(path).await.map_err(failed)?, ..target() });
        }
        if let Some(password) = password {
            targets.push(Target { password: password.expose().to_owned(), ..target() });
        }
        Ok(targets)
    }

    async fn open(&self) -> Result<Box<dyn Session>, SshError> {
        let keys = HostKeys::load(&self.settings, self.port).await?;
        let hosts = keys.known_hosts(&self.name);
        let mut rejected = None;
        for target in self.targets().await? {
            match remote::dial(&target, &hosts).await {
                Ok(session) => return Ok(session),
                Err(error @ DialError::Auth { .. }) => rejected = Some(error),
                Err(error) => return Err(keys.explain(error)),
            }
        }
        Err(rejected.map_or(SshError::NoCredentials, |source| SshError::Dial { source }))
    }
}

#[async_trait]
impl Dial for SshMachine {
    async fn dial(&self) -> Result<Dialed, DeployError> {
        let session = self.open().await.map_err(|error| DeployError::Session(Box::new(error)))?;
        Ok(Dialed { session, trace_lines: vec!["Using SSH executor...".to_owned()] })
    }
}
