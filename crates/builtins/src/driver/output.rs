//! Collects the output of a driver's program, up to a limit.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::pin::pin;

use tokio::net::unix::pipe::Receiver;

/// Maximum number of reads at once, enough for a full pipe.
const MAX_READS: u32 = 16;
const BUFFER_BYTES: usize = 16 * 1024;

pub(super) struct OutputPipe {
    receiver: Receiver,
    /// Duplicate of `receiver`.
    file: File,
    bytes: Vec<u8>,
    max_bytes: usize,
    is_too_long: bool,
}

impl OutputPipe {
    /// Returns the reading end of a pipe, and the writing end for the program.
    pub(super) fn new(max_bytes: usize) -> io::Result<(Self, File)> {
        let (reader, writer) = io::pipe()?;
        let reader = OwnedFd::from(reader);
        let file = File::from(reader.try_clone()?);
        let receiver = Receiver::from_owned_fd(reader)?;
        let output = Self { receiver, file, bytes: Vec::new(), max_bytes, is_too_long: false };
        Ok((output, File::from(OwnedFd::from(writer))))
    }

    /// Collects the output until `program` ends, even if a background process keeps the pipe open.
    pub(super) async fn collect_during<T>(&mut self, program: impl Future<Output = T>) -> T {
        let mut program = pin!(program);
        let mut is_closed = false;
        let ended = loop {
            tokio::select! {
                ended = &mut program => break ended,
                readable = self.receiver.readable(), if !is_closed => is_closed = readable.is_err() || self.read_available(),
            }
        };
        self.read_rest();
        ended
    }

    /// Reads available output. Returns whether the pipe is closed.
    fn read_available(&mut self) -> bool {
        let mut buffer = [0; BUFFER_BYTES];
        for _ in 0..MAX_READS {
            match self.receiver.try_read(&mut buffer) {
                Ok(0) => return true,
                Ok(read) => self.keep(&buffer, read),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(_) => return true,
            }
        }
        false
    }

    /// Reads output of the ended program that tokio has not reported as readable yet.
    fn read_rest(&mut self) {
        let mut buffer = [0; BUFFER_BYTES];
        for _ in 0..MAX_READS {
            match self.file.read(&mut buffer) {
                Ok(0) | Err(_) => return,
                Ok(read) => self.keep(&buffer, read),
            }
        }
    }

    /// Keeps bytes up to the limit. The others are dropped, so that the program can end.
    fn keep(&mut self, buffer: &[u8], length: usize) {
        let free = self.max_bytes - self.bytes.len();
        self.is_too_long |= length > free;
        self.bytes.extend(buffer.iter().take(length.min(free)));
    }

    /// Returns the output. `None` means that it exceeds the limit.
    pub(super) fn into_bytes(self) -> Option<Vec<u8>> {
        (!self.is_too_long).then_some(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    async fn collect(text: &'static [u8]) -> Option<Vec<u8>> {
        let (mut output, mut writer) = OutputPipe::new(100_000).unwrap();
        let program = tokio::task::spawn_blocking(move || writer.write_all(text));
        output.collect_during(program).await.unwrap().unwrap();
        output.into_bytes()
    }

    #[tokio::test]
    async fn output_is_complete_or_known_to_be_too_long() {
        assert_eq!(collect(b"").await.unwrap(), b"");
        assert_eq!(collect(&[b'x'; 100_000]).await.unwrap(), [b'x'; 100_000]);
        assert_eq!(collect(&[b'x'; 1_000_000]).await, None);
    }

    #[tokio::test]
    async fn background_process_that_keeps_the_pipe_does_not_delay_the_end() {
        let (mut output, mut writer) = OutputPipe::new(100).unwrap();
        let kept = writer.try_clone().unwrap();
        output.collect_during(async move { writer.write_all(b"{}") }).await.unwrap();
        assert_eq!(output.into_bytes().unwrap(), b"{}");
        drop(kept);
    }
}
