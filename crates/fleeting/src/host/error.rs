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
    #[error("plugin {}: cannot be run; {}", path.display(), remedy(source.raw_os_error(), "is it there, executable, and made for this system?"))]
    Spawn {
        /// Path of the executable.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The directory for the plugin's socket cannot be created.
    #[error("plugin {}: no directory for its socket{}", path.display(), open_files(source.raw_os_error()))]
    Directory {
        /// Path of the executable.
        path: PathBuf,
        /// The candidates and what is wrong with each of them.
        source: SocketsError,
    },
    /// The process exited before it printed a handshake.
    #[error("plugin {}: exited before the handshake ({status}){said}", path.display())]
    Exited {
        /// Path of the executable.
        path: PathBuf,
        /// Exit status.
        status: String,
        /// End of the plugin's log, formatted to be appended to the message; empty if it logged nothing.
        said: String,
    },
    /// The process printed no handshake in time.
    #[error("plugin {}: timeout while waiting for plugin to start: no handshake within {} s{said}", path.display(), limit.as_secs())]
    Silent {
        /// Path of the executable.
        path: PathBuf,
        /// Time that the plugin had.
        limit: Duration,
        /// End of the plugin's log, formatted to be appended to the message; empty if it logged nothing.
        said: String,
    },
    /// The first line on stdout is not a handshake that this host supports.
    #[error("plugin {} ({about})", path.display())]
    Handshake {
        /// Path of the executable.
        path: PathBuf,
        /// Kind, mode and owner of the file.
        about: String,
        /// What is wrong with the line.
        source: HandshakeError,
    },
    /// The host cannot connect to the address in the handshake.
    #[error("plugin {}: cannot be reached at {address}: {cause}", path.display())]
    Connect {
        /// Path of the executable.
        path: PathBuf,
        /// Address in the handshake.
        address: String,
        /// Reason why the connection failed.
        cause: String,
    },
    /// `connector_config` is invalid.
    #[error("plugin {}", path.display())]
    Settings {
        /// Path of the executable.
        path: PathBuf,
        /// What is wrong with the settings.
        source: ConnectorConfigError,
    },
    /// The plugin rejected its settings.
    #[error("plugin {}: Init failed: {message}", path.display())]
    Init {
        /// Path of the executable.
        path: PathBuf,
        /// Error message of the plugin.
        message: String,
    },
    /// A restarted plugin returned a different group id.
    #[error("plugin {}: after its restart it speaks for the group {found:?} instead of {wanted:?}; nothing is done until it is back", path.display())]
    OtherGroup {
        /// Path of the executable.
        path: PathBuf,
        /// Group id before the restart.
        wanted: String,
        /// Group id after the restart.
        found: String,
    },
}

/// Returns a hint for an error of the system: `usual`, unless too many files are open.
fn remedy(code: Option<i32>, usual: &'static str) -> &'static str {
    match code {
        Some(libc::EMFILE) => {
            "too few open files are permitted: raise the limit (`ulimit -n`, or LimitNOFILE of the service), and start again"
        }
        Some(libc::ENFILE) => {
            "too many files are open in the whole system: lower what its programs may open (`ulimit -n`), or raise fs.file-max"
        }
        _ => usual,
    }
}

/// Returns the hint against too many open files, formatted to be appended; empty for other errors, whose source has the hint.
fn open_files(code: Option<i32>) -> String {
    match remedy(code, "") {
        "" => String::new(),
        remedy => format!("; {remedy}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_open_files_is_told_as_such() {
        let spawn = |code| {
            let source = std::io::Error::from_raw_os_error(code);
            StartError::Spawn { path: "/bin/plugin".into(), source }.to_string()
        };
        for code in [libc::EMFILE, libc::ENFILE] {
            let error = spawn(code);
            assert!(error.contains("`ulimit -n`") && !error.contains("is it there"), "{error}");
        }
        assert!(spawn(libc::ENOEXEC).contains("made for this system?"));
        let source = std::io::Error::from_raw_os_error(libc::EMFILE);
        let source = SocketsError::Create { path: "/run/muster".into(), source };
        let error = StartError::Directory { path: "/bin/plugin".into(), source }.to_string();
        assert!(error.contains("`ulimit -n`"), "{error}");
    }
}
