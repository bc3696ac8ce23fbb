//! Destinations of log lines: standard error, and optionally syslog.

use std::io::{ErrorKind, Write as _};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::filter::Level;

const SYSLOG: &str = "/dev/log";
/// Facility `daemon` of syslog(3), shifted above the bits of the severity.
const DAEMON: u8 = 3 << 3;

/// Error that prevents a connection to syslog.
#[derive(Debug, thiserror::Error)]
#[error("failed to connect to {path}; is a syslog daemon running?")]
pub struct SyslogError {
    path: String,
    source: std::io::Error,
}

/// Destination of log lines.
pub struct Sink {
    target: Target,
    syslog: Option<Syslog>,
}

/// Connection to the socket of a syslog daemon.
pub(super) struct Syslog {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Syslog {
    /// Sends a record. If the daemon was restarted with another socket, connects again. Ignores other errors.
    fn send(&self, record: &[u8]) {
        let Err(error) = self.socket.send(record) else { return };
        let is_disconnected = matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotConnected);
        if is_disconnected && self.socket.connect(&self.path).is_ok() {
            let _ = self.socket.send(record);
        }
    }
}

enum Target {
    Stderr,
    Memory(Arc<Mutex<Vec<u8>>>),
}

impl Sink {
    /// Creates a sink for standard error.
    #[must_use]
    pub fn stderr() -> Self {
        Self { target: Target::Stderr, syslog: None }
    }

    /// Creates a sink that appends to a buffer, for tests.
    #[must_use]
    pub fn memory(buffer: &Arc<Mutex<Vec<u8>>>) -> Self {
        Self { target: Target::Memory(Arc::clone(buffer)), syslog: None }
    }

    pub(super) fn with_syslog(mut self, syslog: Syslog) -> Self {
        self.syslog = Some(syslog);
        self
    }

    pub(super) fn is_stderr(&self) -> bool {
        matches!(self.target, Target::Stderr)
    }

    /// Writes a line with a single call, so that lines of processes that share a file do not mix.
    ///
    /// Ignores errors: standard error can be a file on a full disk, which must not stop the process.
    pub(super) fn write(&self, level: Level, line: &str) {
        match &self.target {
            Target::Stderr => {
                let _ = std::io::stderr().write_all(line.as_bytes());
            }
            Target::Memory(buffer) => buffer.lock().extend_from_slice(line.as_bytes()),
        }
        // Like gitlab-runner, do not send debug records to syslog.
        if let Some(syslog) = self.syslog.as_ref().filter(|_| level <= Level::Info) {
            syslog.send(&datagram(level, line));
        }
    }
}

pub(super) fn connect_syslog() -> Result<Syslog, SyslogError> {
    connect(Path::new(SYSLOG))
}

fn connect(path: &Path) -> Result<Syslog, SyslogError> {
    let connected = UnixDatagram::unbound().and_then(|socket| {
        // A blocked syslog must not block this process.
        socket.set_nonblocking(true)?;
        socket.connect(path)?;
        Ok(Syslog { socket, path: path.to_owned() })
    });
    connected.map_err(|source| SyslogError { path: path.display().to_string(), source })
}

fn datagram(level: Level, line: &str) -> Vec<u8> {
    let severity = match level {
        Level::Panic | Level::Fatal | Level::Error => 3,
        Level::Warning => 4,
        Level::Info => 6,
        Level::Debug | Level::Trace => 7,
    };
    format!("<{}>gitlab-runner[{}]: {}", DAEMON | severity, std::process::id(), line.trim_end()).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syslog_gets_records_from_info_up() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("log");
        let logger = UnixDatagram::bind(&path).unwrap();
        let buffer = Arc::default();
        let sink = Sink::memory(&buffer).with_syslog(connect(&path).unwrap());
        sink.write(Level::Debug, "quiet\n");
        sink.write(Level::Warning, "WARNING: loud\n");
        let mut bytes = [0; 100];
        let length = logger.recv(&mut bytes).unwrap();
        let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
        assert_eq!(text, format!("<28>gitlab-runner[{}]: WARNING: loud", std::process::id()));
        assert_eq!(*buffer.lock(), b"quiet\nWARNING: loud\n");
    }

    #[test]
    fn syslog_gets_records_after_its_daemon_was_restarted() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("log");
        let first = UnixDatagram::bind(&path).unwrap();
        let sink = Sink::memory(&Arc::default()).with_syslog(connect(&path).unwrap());
        drop(first);
        std::fs::remove_file(&path).unwrap();
        sink.write(Level::Warning, "without a daemon\n");
        sink.write(Level::Warning, "still without a daemon\n");
        let second = UnixDatagram::bind(&path).unwrap();
        second.set_nonblocking(true).unwrap();
        sink.write(Level::Warning, "again\n");
        let mut bytes = [0; 100];
        let length = second.recv(&mut bytes).unwrap();
        assert!(bytes[..length].ends_with(b": again"), "{}", String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn missing_syslog_is_an_error() {
        let error = connect(Path::new("/nowhere/log")).err().unwrap().to_string();
        assert_eq!(error, "failed to connect to /nowhere/log; is a syslog daemon running?");
    }
}
