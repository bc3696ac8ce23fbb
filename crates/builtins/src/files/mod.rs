//! Selects files of a job's workspace by patterns, packs them into archives, and unpacks archives.

pub(crate) mod extract;
pub(crate) mod format;
pub(crate) mod pack;
pub(crate) mod select;
mod zip;

use std::io::{self, Read};

use muster_steps::failure::Failure;
use muster_steps::stop::StopToken;

/// Reader that fails once the job is stopped, so that the job does not wait for the end of a large file.
struct UntilStopped<'a, R> {
    content: R,
    stop: &'a StopToken,
}

impl<R: Read> Read for UntilStopped<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.stop.cause() {
            // Not `Interrupted`, because readers retry after it.
            Some(_) => Err(io::Error::other("stopped")),
            None => self.content.read(buffer),
        }
    }
}

/// Returns a function that turns an I/O error into a failure: [`Failure::Stopped`] if the job was stopped,
/// otherwise an error of the machine.
fn failure(operation: impl std::fmt::Display, stop: &StopToken) -> impl FnOnce(io::Error) -> Failure {
    move |error| stop.cause().map_or_else(|| Failure::io(operation)(error), Failure::Stopped)
}
