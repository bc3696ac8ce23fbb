//! Errors of starting a plugin.

use std::path::PathBuf;
use std::time::Duration;

use super::handshake::HandshakeError;
use super::sockets::SocketsError;
use crate::model::ConnectorConfigError;

/// Reason why a plugin could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The system cannot execute the file.
    #[error(
        "plugin {}: failed to start; {}", path.display(),
        remedy(source.raw_os_error(), "check that the file exists, is executable and was built for this system")
    )]
    Spawn {
        /// Path of the executable.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The directory for the plugin's socket cannot be created.
    #[error("plugin {}: failed to create a directory for its socket{}", path.display(), open_files_hint(source.raw_os_error()))]
    Directory {
        /// Path of the executable.
        path: PathBuf,
        /// Reason why no directory was created.
        source: SocketsError,
    },
    /// The process exited before it printed a handshake.
    #[error("plugin {}: exited before the handshake ({status}){stderr}", path.display())]
    Exited {
        /// Path of the executable.
        path: PathBuf,
        /// Exit status, or the reason why it is unknown.
        status: String,
        /// End of the plugin's log, formatted to be appended to the message; empty if it logged nothing.
        stderr: String,
    },
    /// The process closed stdout before it printed a handshake, and did not exit in time.
    #[error("plugin {}: closed stdout before the handshake, but did not exit within {} s{stderr}", path.display(), timeout.as_secs())]
    ClosedStdout {
        /// Path of the executable.
        path: PathBuf,
        /// Timeout of the exit.
        timeout: Duration,
        /// End of the plugin's log, formatted to be appended to the message; empty if it logged nothing.
        stderr: String,
    },
    /// The process did not print a handshake in time.
    #[error("plugin {}: timeout while waiting for plugin to start: no handshake within {} s{stderr}", path.display(), timeout.as_secs())]
    HandshakeTimeout {
        /// Path of the executable.
        path: PathBuf,
        /// Timeout of the start.
        timeout: Duration,
        /// End of the plugin's log, formatted to be appended to the message; empty if it logged nothing.
        stderr: String,
    },
    /// The first line on stdout is not a handshake that this host supports.
    #[error("plugin {} ({file}) printed no valid handshake", path.display())]
    Handshake {
        /// Path of the executable.
        path: PathBuf,
        /// Format, mode and owner of the file.
        file: String,
        /// Problem with the line.
        source: HandshakeError,
    },
    /// The host cannot connect to the address in the handshake.
    #[error("plugin {}: failed to connect to {address}", path.display())]
    Connect {
        /// Path of the executable.
        path: PathBuf,
        /// Address in the handshake.
        address: String,
        /// Error of the transport.
        source: tonic::transport::Error,
    },
    /// The plugin did not accept a connection in time.
    #[error("plugin {}: no connection to {address} within {} s", path.display(), timeout.as_secs())]
    ConnectTimeout {
        /// Path of the executable.
        path: PathBuf,
        /// Address in the handshake.
        address: String,
        /// Timeout of the start.
        timeout: Duration,
    },
    /// `connector_config` is invalid.
    #[error("plugin {}: invalid settings", path.display())]
    Settings {
        /// Path of the executable.
        path: PathBuf,
        /// Problem with the settings.
        source: ConnectorConfigError,
    },
    /// The call `Init` failed: the plugin rejected its settings, did not respond in time, or exited.
    #[error("plugin {}: Init failed: {message}", path.display())]
    Init {
        /// Path of the executable.
        path: PathBuf,
        /// Error message of the plugin, or the error of the call.
        message: String,
    },
    /// A restarted plugin returned a different group ID.
    #[error(
        "plugin {}: reports the group {found:?} after its restart, expected {expected:?}; the group is unavailable until the plugin \
         reports the expected ID", path.display()
    )]
    OtherGroup {
        /// Path of the executable.
        path: PathBuf,
        /// Group ID before the restart.
        expected: String,
        /// Group ID after the restart.
        found: String,
    },
}

/// Returns a hint for an error of the operating system: `default`, unless too many files are open.
fn remedy(code: Option<i32>, default: &'static str) -> &'static str {
    match code {
        Some(libc::EMFILE) => {
            "too many open files: raise the limit (`ulimit -n`, or LimitNOFILE of the service), and start again"
        }
        Some(libc::ENFILE) => {
            "too many open files in the whole system: lower the limits of its programs (`ulimit -n`), or raise fs.file-max"
        }
        _ => default,
    }
}

/// Returns the hint for too many open files, formatted to be appended to a message.
/// Empty for other errors.
fn open_files_hint(code: Option<i32>) -> String {
    match remedy(code, "") {
        "" => String::new(),
        remedy => format!("; {remedy}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_open_files_get_a_hint() {
        let spawn = |code| {
            let source = std::io::Error::from_raw_os_error(code);
            StartError::Spawn { path: "/bin/plugin".into(), source }.to_string()
        };
        for code in [libc::EMFILE, libc::ENFILE] {
            let error = spawn(code);
            assert!(error.contains("`ulimit -n`") && !error.contains("check that"), "{error}");
        }
        assert!(spawn(libc::ENOEXEC).contains("built for this system"));
        let source = std::io::Error::from_raw_os_error(libc::EMFILE);
        let source = SocketsError::Create { path: "/run/muster".into(), source };
        let error = StartError::Directory { path: "/bin/plugin".into(), source }.to_string();
        assert!(error.contains("`ulimit -n`"), "{error}");
    }
}
