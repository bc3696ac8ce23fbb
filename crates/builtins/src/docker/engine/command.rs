//! Connections through a command, such as `ssh HOST docker system dial-stdio`.

use std::ffi::OsString;
use std::io;
use std::pin::Pin;
use std::process::Stdio;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::task::JoinHandle;

/// Maximum number of bytes that are kept of the command's messages.
const MAX_MESSAGE: usize = 2048;

/// Connection through a running command, which is killed on drop.
pub(super) struct CommandStream {
    stdin: ChildStdin,
    stdout: ChildStdout,
    /// Task that returns the last messages of the command.
    messages: JoinHandle<String>,
    has_received: bool,
    _process: Child,
}

impl CommandStream {
    pub(super) fn open(command: &[OsString]) -> io::Result<Self> {
        let [program, arguments @ ..] = command else { return Err(io::Error::other("the command is empty")) };
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let failed = |error| io::Error::other(format!("failed to run {}: {error}", program.to_string_lossy()));
        let mut process = command.spawn().map_err(failed)?;
        let pipes = (process.stdin.take(), process.stdout.take(), process.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = pipes else {
            return Err(io::Error::other("the command has no pipes"));
        };
        let messages = tokio::spawn(read_last_messages(stderr));
        Ok(Self { stdin, stdout, messages, has_received: false, _process: process })
    }
}

impl Drop for CommandStream {
    fn drop(&mut self) {
        self.messages.abort();
    }
}

/// Returns the last bytes of the messages as one line.
async fn read_last_messages(mut stderr: ChildStderr) -> String {
    let mut end = Vec::new();
    while let Ok(1..) = stderr.read_buf(&mut end).await {
        end.drain(..end.len().saturating_sub(MAX_MESSAGE));
    }
    String::from_utf8_lossy(&end).trim().replace('\n', "; ")
}

impl AsyncRead for CommandStream {
    /// Reads what the other end sends. If the command ended without a connection, the error contains its messages.
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.stdout).poll_read(cx, buf))?;
        if buf.filled().len() > before || buf.capacity() == before {
            this.has_received = true;
        } else if !this.has_received {
            let messages = ready!(Pin::new(&mut this.messages).poll(cx)).unwrap_or_default();
            // Later reads report the end of the stream.
            this.has_received = true;
            return Poll::Ready(Err(io::Error::other(if messages.is_empty() {
                "the command ended without a connection".to_owned()
            } else {
                messages
            })));
        }
        Poll::Ready(Ok(()))
    }
}

impl CommandStream {
    /// Hides a broken pipe if the command ended without a connection, because the next read returns a better error.
    fn hide_broken_pipe<T>(&self, result: Poll<io::Result<T>>, if_hidden: T) -> Poll<io::Result<T>> {
        match result {
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::BrokenPipe && !self.has_received => {
                Poll::Ready(Ok(if_hidden))
            }
            result => result,
        }
    }
}

impl AsyncWrite for CommandStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stdin).poll_write(cx, buf);
        this.hide_broken_pipe(written, buf.len())
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.stdin).poll_flush(cx);
        this.hide_broken_pipe(flushed, ())
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let closed = Pin::new(&mut this.stdin).poll_shutdown(cx);
        this.hide_broken_pipe(closed, ())
    }
}
