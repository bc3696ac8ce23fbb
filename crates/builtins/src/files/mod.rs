//! Selects, packs and unpacks files of a job's workspace.

pub(crate) mod extract;
pub(crate) mod format;
pub(crate) mod pack;
pub(crate) mod select;
mod zip;

use std::io::{self, Read};

use muster_steps::failure::Failure;
use muster_steps::stop::StopToken;

/// Reader that fails after a stop, even within a large file.
struct UntilStopped<'a, R> {
    content: R,
    stop: &'a StopToken,
}

impl<R: Read> Read for UntilStopped<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.stop.cause() {
            // Not `Interrupted`, because callers read again after it.
            Some(_) => Err(io::Error::other("stopped")),
            None => self.content.read(buffer),
        }
    }
}

/// Returns a function that converts an I/O error to [`Failure::Stopped`] after a stop, or else to [`Failure::System`].
fn failure(operation: impl std::fmt::Display, stop: &StopToken) -> impl FnOnce(io::Error) -> Failure {
    move |error| stop.cause().map_or_else(|| Failure::io(operation)(error), Failure::Stopped)
}
