use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use crate::git::Git;

/// Maximum number of bytes that are read from a file. Exceeds GitLab's limit, so that a caller notices an oversized
/// file.
pub const MAX_FILE_BYTES: u64 = 11 << 20;

/// A running `git cat-file --batch`.
#[derive(Debug)]
pub struct BlobReader {
    child: Child,
    requests: ChildStdin,
    responses: BufReader<ChildStdout>,
}

impl BlobReader {
    /// Starts git.
    ///
    /// # Errors
    /// If git cannot be started.
    pub fn start(git: &Git) -> io::Result<Self> {
        let mut command = git.command(&["cat-file", "--batch"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(requests), Some(responses)) => Ok(Self { child, requests, responses: BufReader::new(responses) }),
            _ => Err(io::Error::other("the process has no pipes")),
        }
    }

    /// Returns the content of a file by its git object name. `None` if the name does not exist or is not a file.
    ///
    /// # Errors
    /// If the pipe to git fails. Use a new reader for the next file.
    pub fn read(&mut self, name: &str) -> io::Result<Option<Vec<u8>>> {
        writeln!(self.requests, "{name}")?;
        let mut head = String::new();
        self.responses.read_line(&mut head)?;
        let mut fields = head.trim_end().rsplit(' ');
        let (size, kind) = (fields.next().and_then(|size| size.parse::<u64>().ok()), fields.next());
        let Some(size) = size else {
            return if head.is_empty() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(None) };
        };
        let mut bytes = Vec::new();
        self.responses.by_ref().take(size.min(MAX_FILE_BYTES)).read_to_end(&mut bytes)?;
        let rest = size.saturating_sub(MAX_FILE_BYTES) + 1; // Includes the line break after the content.
        io::copy(&mut self.responses.by_ref().take(rest), &mut io::sink())?;
        Ok((kind == Some("blob")).then_some(bytes))
    }
}

impl Drop for BlobReader {
    fn drop(&mut self) {
        // Waiting for the process avoids a zombie.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
