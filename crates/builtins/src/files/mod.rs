//! Files of a job's workspace: which ones a pattern means, packing them, and unpacking archives.

pub(crate) mod extract;
pub(crate) mod format;
pub(crate) mod pack;
pub(crate) mod select;

use std::io::{self, Read};

use muster_steps::failure::Failure;
use muster_steps::stop::Stop;

/// Content that ends with an error once the stop is asked for: a file may be larger than anyone wants to wait for.
struct UntilStopped<'a, R> {
    content: R,
    stop: &'a Stop,
}

impl<R: Read> Read for UntilStopped<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.stop.cause() {
            // Not `Interrupted`, which is tried again.
            Some(_) => Err(io::Error::other("stopped")),
            None => self.content.read(buffer),
        }
    }
}

/// The failure of a file: that it was stopped, where it was.
fn failure(doing: impl std::fmt::Display, stop: &Stop) -> impl FnOnce(io::Error) -> Failure {
    move |error| stop.cause().map_or_else(|| Failure::io(doing)(error), Failure::Stopped)
}
