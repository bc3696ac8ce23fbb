//! `[runners.ssh]`: the machine of the ssh executor.

use std::path::PathBuf;

use muster_job::Secret;

/// Address and credentials of the machine on which the ssh executor runs jobs.
#[derive(Debug, Clone, PartialEq)]
pub struct SshSettings {
    /// Host name or IP address.
    pub host: String,
    /// Port, as it is written in the file. The executor rejects an invalid port.
    pub port: String,
    /// User name.
    pub user: String,
    /// Password. `None` means that only the key is offered.
    pub password: Option<Secret>,
    /// Path of the private key. `None` means that only the password is offered.
    pub identity_file: Option<PathBuf>,
    /// File with the host keys to accept. `None` means `~/.ssh/known_hosts` of the manager's user.
    pub known_hosts_file: Option<PathBuf>,
    /// Whether every host key is accepted (`disable_strict_host_key_checking`).
    pub accepts_any_host_key: bool,
}
