//! `muster step-runner proxy`: connects standard input and output to the socket of `serve`.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;

/// Arguments of `muster step-runner proxy`.
#[derive(Debug, clap::Args)]
pub(super) struct ProxyArgs {}

/// Runs `muster step-runner proxy`.
pub(super) fn run(_: &ProxyArgs) -> ExitCode {
    connect(&super::default_socket())
}

/// Copies in both directions until either end is closed. Prints only the bytes of the socket.
pub(super) fn connect(socket: &Path) -> ExitCode {
    match UnixStream::connect(socket) {
        Ok(stream) => crate::agent::bridge(stream),
        Err(error) => super::fail(format!(
            "dialing: dial unix {}: {error}; start `serve` with this socket first",
            socket.display()
        )),
    }
}
