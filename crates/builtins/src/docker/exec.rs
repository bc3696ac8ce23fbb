//! Commands that the engine runs in a container.

use std::io;

use bollard::Docker;
use bollard::container::LogOutput;
use bollard::errors::Error as ApiError;
use bollard::exec::{CreateExecOptions, StartExecResults};
use bollard::models::ExecConfig;
use futures::{StreamExt, TryStreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::io::StreamReader;

/// Maximum number of bytes of a command's output.
pub(super) const MAX_OUTPUT_BYTES: usize = 64 * 1024;

/// Maximum number of messages to log per connection.
const MAX_MESSAGES: u32 = 10;
/// Maximum number of bytes to log per message.
const MAX_MESSAGE_BYTES: usize = 1024;

#[derive(Debug)]
pub(super) struct ExecResult {
    /// Whether the command exited with status 0.
    pub(super) succeeded: bool,
    /// Output of both streams, cut after [`MAX_OUTPUT_BYTES`].
    pub(super) output: Vec<u8>,
}

/// Starts a command, and returns its stdin and stdout as one stream. Logs its stderr.
pub(super) async fn connect(
    engine: &Docker,
    container: &str,
    command: Vec<String>,
) -> Result<impl AsyncRead + AsyncWrite + Send + Unpin + use<>, ApiError> {
    let options = CreateExecOptions { attach_stdin: Some(true), cmd: Some(command), ..attached() };
    let exec = engine.create_exec(container, ExecConfig::from(options)).await?;
    let StartExecResults::Attached { output, input } = engine.start_exec(&exec.id, None).await? else {
        return Err(not_attached());
    };
    let mut messages = 0;
    let stdout = output.filter_map(move |chunk| {
        std::future::ready(match chunk {
            Ok(LogOutput::StdErr { message }) => {
                messages += 1;
                // Limits the log, because every process in the container can write to this stream.
                if messages <= MAX_MESSAGES {
                    let message = String::from_utf8_lossy(message.get(..MAX_MESSAGE_BYTES).unwrap_or(&message));
                    tracing::warn!(message = message.trim(), "connection to the agent in a container wrote to stderr");
                }
                None
            }
            chunk => Some(chunk.map(LogOutput::into_bytes)),
        })
    });
    Ok(tokio::io::join(StreamReader::new(Box::pin(stdout.map_err(io::Error::other))), input))
}

/// Runs a command to its end. An empty `user` means the user of the container.
pub(super) async fn run(
    engine: &Docker,
    container: &str,
    user: &str,
    command: Vec<String>,
) -> Result<ExecResult, ApiError> {
    let user = Some(user.to_owned()).filter(|user| !user.is_empty());
    let options = CreateExecOptions { cmd: Some(command), user, ..attached() };
    let exec = engine.create_exec(container, ExecConfig::from(options)).await?;
    let StartExecResults::Attached { output, .. } = engine.start_exec(&exec.id, None).await? else {
        return Err(not_attached());
    };
    let output = collect(output).await?;
    let ended = engine.inspect_exec(&exec.id).await?;
    Ok(ExecResult { succeeded: ended.exit_code == Some(0), output })
}

/// Collects the first [`MAX_OUTPUT_BYTES`] of an output.
pub(super) async fn collect(
    mut output: impl futures::Stream<Item = Result<LogOutput, ApiError>> + Unpin,
) -> Result<Vec<u8>, ApiError> {
    let mut bytes = Vec::new();
    while let Some(chunk) = output.try_next().await? {
        bytes.extend_from_slice(&chunk.into_bytes());
        bytes.truncate(MAX_OUTPUT_BYTES);
    }
    Ok(bytes)
}

/// Collects the last [`MAX_OUTPUT_BYTES`] of an output. Also returns whether earlier output is missing.
pub(super) async fn collect_end(
    mut output: impl futures::Stream<Item = Result<LogOutput, ApiError>> + Unpin,
) -> Result<(Vec<u8>, bool), ApiError> {
    let (mut bytes, mut is_cut) = (Vec::new(), false);
    while let Some(chunk) = output.try_next().await? {
        bytes.extend_from_slice(&chunk.into_bytes());
        // This limit amortizes the cost of moving the bytes.
        if bytes.len() > 2 * MAX_OUTPUT_BYTES {
            bytes.drain(..bytes.len() - MAX_OUTPUT_BYTES);
            is_cut = true;
        }
    }
    if bytes.len() > MAX_OUTPUT_BYTES {
        bytes.drain(..bytes.len() - MAX_OUTPUT_BYTES);
        is_cut = true;
    }
    Ok((bytes, is_cut))
}

fn attached() -> CreateExecOptions<String> {
    CreateExecOptions { attach_stdout: Some(true), attach_stderr: Some(true), ..CreateExecOptions::default() }
}

fn not_attached() -> ApiError {
    io::Error::other("the engine did not attach to the command").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn end_of_a_long_output_is_kept() {
        let chunk = |byte: u8, length: usize| Ok(LogOutput::StdOut { message: vec![byte; length].into() });
        let collect = |chunks: Vec<Result<LogOutput, ApiError>>| collect_end(futures::stream::iter(chunks));
        let (bytes, is_cut) = collect(vec![chunk(b'a', MAX_OUTPUT_BYTES)]).await.unwrap();
        assert!(bytes.len() == MAX_OUTPUT_BYTES && !is_cut);
        let many = (0..7).map(|_| chunk(b'a', 50_000)).chain([chunk(b'z', 10)]).collect();
        let (bytes, is_cut) = collect(many).await.unwrap();
        assert!(bytes.len() == MAX_OUTPUT_BYTES && bytes.ends_with(b"azzzzzzzzzz") && is_cut);
    }
}
