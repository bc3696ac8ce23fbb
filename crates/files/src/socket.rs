//! Sockets that only their owner can connect to.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;

use rustix::fs::{Mode, fchmod};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// Listens at a socket with mode 0600, without blocking. No socket must exist at the path.
///
/// # Errors
/// The error of the system.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    let socket = bound(path)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Binds a socket. Its file has the mode of the socket, which is set before: the file is never open to others, and no path is
/// used that another process could have replaced.
fn bound(path: &Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_socket_is_private_from_the_moment_it_exists() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("socket");
        // Another process can look between any two calls, so the file is looked at as `bind` made it.
        let socket = bound(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        UnixStream::connect(&path).unwrap_err();
        drop(socket);
        assert_eq!(listen(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        std::fs::remove_file(&path).unwrap();
        let _listener = listen(&path).unwrap();
        UnixStream::connect(&path).unwrap();
    }
}
