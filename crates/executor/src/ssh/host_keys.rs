//! Accepted host keys of a machine.

use std::path::PathBuf;

use muster_config::settings::SshSettings;
use muster_remote::{DialError, HostKey, KnownHosts, known_hosts_file};

use super::error::SshError;

#[derive(Debug)]
pub(super) enum HostKeys {
    /// Any key is accepted.
    Any,
    /// Only these keys are accepted.
    Known { keys: Vec<HostKey>, path: PathBuf, host: String, port: u16 },
}

impl HostKeys {
    /// # Errors
    /// [`SshError`] if the file cannot be read, or if no file is configured and the user has no home directory. A
    /// missing file counts as empty.
    pub(super) async fn load(settings: &SshSettings, port: u16) -> Result<Self, SshError> {
        if settings.accepts_any_host_key {
            return Ok(Self::Any);
        }
        let default = || std::env::home_dir().map(|home| home.join(".ssh/known_hosts"));
        let path = settings.known_hosts_file.clone().or_else(default).ok_or(SshError::NoKnownHosts)?;
        let host = settings.host.clone();
        let keys = known_hosts_file::read(&path, &host, port).await?;
        Ok(Self::Known { keys, path, host, port })
    }

    /// Returns the known hosts for a connection to `machine`: they accept these keys for it.
    pub(super) fn known_hosts(&self, machine: &str) -> KnownHosts {
        let Self::Known { keys, .. } = self else { return KnownHosts::any() };
        let hosts = KnownHosts::default();
        hosts.pin_keys(machine, keys);
        hosts
    }

    /// If the host key was rejected, the message explains what an operator can do.
    pub(super) fn explain(&self, error: DialError) -> SshError {
        let Self::Known { path, host, port, .. } = self else { return SshError::Dial { source: error } };
        let (path, entry) = (path.clone(), known_hosts_file::entry(host, *port));
        match error {
            DialError::HostKey { address, found, known } if known.is_empty() => {
                SshError::UnknownHost { address, found, path, entry, host: host.clone(), port: *port }
            }
            DialError::HostKey { address, found, known } => {
                SshError::WrongHostKey { address, found, known, path, entry }
            }
            source => SshError::Dial { source },
        }
    }
}
