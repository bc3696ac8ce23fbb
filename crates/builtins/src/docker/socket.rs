//! Connections to the agent's socket, without a process in the container for each connection.
//!
//! This process must be able to open the engine's volumes, as root or as the user of a rootless engine. Otherwise, the
//! agent is reached by `exec`.

use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use muster_agent_api::container::SOCKET_NAME;
use rustix::fs::{FileType, Mode, OFlags, fstat, open, openat};
use tokio::net::UnixStream;

/// Directory of the run volume on the engine's machine.
#[derive(Debug)]
pub(super) struct RunDirectory(pub(super) PathBuf);

impl RunDirectory {
    /// Connects to the agent.
    ///
    /// # Errors
    /// If the socket cannot be opened, or no agent listens.
    pub(super) async fn connect(&self) -> io::Result<UnixStream> {
        let directory = open(&self.0, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        // A job can replace the socket with a link to another socket of this machine.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let socket = openat(&directory, SOCKET_NAME, flags, Mode::empty())?;
        if FileType::from_raw_mode(fstat(&socket)?.st_mode) != FileType::Socket {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a socket"));
        }
        UnixStream::connect(format!("/proc/self/fd/{}", socket.as_raw_fd())).await
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn link_in_place_of_the_socket_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let other = UnixListener::bind(dir.path().join("other.sock")).unwrap();
        let run = RunDirectory(dir.path().join("run"));
        std::fs::create_dir(&run.0).unwrap();
        assert_eq!(run.connect().await.unwrap_err().kind(), io::ErrorKind::NotFound);
        std::os::unix::fs::symlink(dir.path().join("other.sock"), run.0.join(SOCKET_NAME)).unwrap();
        assert_eq!(run.connect().await.unwrap_err().to_string(), "it is not a socket");
        other.set_nonblocking(true).unwrap();
        assert_eq!(other.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        std::fs::remove_file(run.0.join(SOCKET_NAME)).unwrap();
        let own = UnixListener::bind(run.0.join(SOCKET_NAME)).unwrap();
        let _connection = run.connect().await.unwrap();
        own.accept().unwrap();
    }
}
