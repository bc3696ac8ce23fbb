//! Sockets for their owner only.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;

use rustix::fs::{Mode, fchmod};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};

/// Maximum number of unaccepted connections.
const BACKLOG: i32 = 1024;

/// Listens on a non-blocking socket with mode 0600. No file may exist at the path.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    let socket = bind_private(path)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Binds a socket whose file is never accessible to other users.
///
/// `bind` creates the file with the mode of the socket. Changing it later would be unsafe, because another process
/// could replace the file.
fn bind_private(path: &Path) -> io::Result<OwnedFd> {
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
        // Another process could connect directly after `bind`.
        let socket = bind_private(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        UnixStream::connect(&path).unwrap_err();
        drop(socket);
        assert_eq!(listen(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        std::fs::remove_file(&path).unwrap();
        let _listener = listen(&path).unwrap();
        UnixStream::connect(&path).unwrap();
    }
}
