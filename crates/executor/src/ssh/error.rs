//! Errors in the settings of a machine, and in connecting to it.

use std::io;
use std::path::PathBuf;

use muster_remote::{DialError, KnownHostsFileError};

/// Reason why a machine cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SshError {
    /// The value of `port` is not a valid port.
    #[error("[runners.ssh] port = {port:?} is not a valid port; write a number from 1 to 65535")]
    Port {
        /// Value in the configuration.
        port: String,
    },
    /// Neither a password nor a key is configured.
    #[error("[runners.ssh] has no credentials; set identity_file or password")]
    NoCredentials,
    /// The private key cannot be read.
    #[error("failed to read identity_file {} of [runners.ssh]; the manager's user must be able to read it", path.display())]
    IdentityFile {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// No file with host keys is configured, and the manager's user has no home directory.
    #[error(
        "the manager's user has no home directory, and so no .ssh/known_hosts; set known_hosts_file in [runners.ssh]"
    )]
    NoKnownHosts,
    /// The file with host keys cannot be read.
    #[error(transparent)]
    KnownHosts(#[from] KnownHostsFileError),
    /// The file with host keys has no key of the machine.
    #[error(
        "the host key of {address} is {found}, and {} has no key for `{entry}`; no credentials were sent; compare the key with \
         that of the machine (`ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` there), then run \
         `ssh-keyscan -p {port} {host} >> {}`", path.display(), path.display()
    )]
    UnknownHost {
        /// Address that was dialed.
        address: String,
        /// Fingerprint of the machine's key.
        found: String,
        /// File with host keys.
        path: PathBuf,
        /// Name of the machine in the file.
        entry: String,
        /// Host name of the machine.
        host: String,
        /// Port of the machine.
        port: u16,
    },
    /// The machine has another key than the file with host keys.
    #[error(
        "the host key of {address} is {found}, but {} has {known}; possibly another machine has this address now, so no \
         credentials were sent; if the machine was reinstalled, run `ssh-keygen -R '{entry}' -f {}` and add its new key", path.display(), path.display()
    )]
    WrongHostKey {
        /// Address that was dialed.
        address: String,
        /// Fingerprint of the machine's key.
        found: String,
        /// Fingerprints in the file.
        known: String,
        /// File with host keys.
        path: PathBuf,
        /// Name of the machine in the file.
        entry: String,
    },
    /// The machine cannot be dialed.
    #[error("failed to connect to the machine of [runners.ssh]")]
    Dial {
        /// Cause.
        source: DialError,
    },
}
