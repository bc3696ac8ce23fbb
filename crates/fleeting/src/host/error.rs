//! Why a plugin does not run.

use std::path::PathBuf;
use std::time::Duration;

use super::handshake::HandshakeError;
use super::sockets::SocketsError;
use crate::model::ConnectorConfigError;

/// Why a plugin could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The executable does not run.
    #[error("plugin {}: cannot be run; {}", path.display(), remedy(source.raw_os_error(), "is it there, executable, and made for this system?"))]
    Spawn {
        /// The executable.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A directory for its socket.
    #[error("plugin {}: no directory for its socket{}", path.display(), open_files(source.raw_os_error()))]
    Directory {
        /// The executable.
        path: PathBuf,
        /// The candidates and what is wrong with each.
        source: SocketsError,
    },
    /// It ended before it was ready.
    #[error("plugin {}: exited before the handshake ({status}){said}", path.display())]
    Exited {
        /// The executable.
        path: PathBuf,
        /// How it ended.
        status: String,
        /// Its last words, ready to be appended.
        said: String,
    },
    /// It said nothing in time.
    #[error("plugin {}: timeout while waiting for plugin to start: no handshake within {} s{said}", path.display(), limit.as_secs())]
    Silent {
        /// The executable.
        path: PathBuf,
        /// How long it had.
        limit: Duration,
        /// Its last words, ready to be appended.
        said: String,
    },
    /// Its first line is no handshake this host can use.
    #[error("plugin {} ({about})", path.display())]
    Handshake {
        /// The executable.
        path: PathBuf,
        /// What kind of file it is.
        about: String,
        /// What is wrong.
        source: HandshakeError,
    },
    /// Nobody answers where it says that it listens.
    #[error("plugin {}: cannot be reached at {address}: {cause}", path.display())]
    Connect {
        /// The executable.
        path: PathBuf,
        /// Where.
        address: String,
        /// Why.
        cause: String,
    },
    /// The settings cannot be given to any plugin.
    #[error("plugin {}", path.display())]
    Settings {
        /// The executable.
        path: PathBuf,
        /// What is wrong.
        source: ConnectorConfigError,
    },
    /// It refused its settings.
    #[error("plugin {}: Init failed: {message}", path.display())]
    Init {
        /// The executable.
        path: PathBuf,
        /// Its words.
        message: String,
    },
    /// After a restart it speaks for another group.
    #[error("plugin {}: after its restart it speaks for the group {found:?} instead of {wanted:?}; nothing is done until it is back", path.display())]
    OtherGroup {
        /// The executable.
        path: PathBuf,
        /// The group before.
        wanted: String,
        /// The group now.
        found: String,
    },
}

/// What helps against an error of the system: what is usual, unless there are too many open files.
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

/// The remedy against too few open files, ready to be appended; the source has that of all other errors.
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
