//! Sessions with this host.

use std::os::unix::process::ExitStatusExt;
use std::pin::Pin;
use std::process::Stdio;
use std::task::{Context, Poll};

use async_trait::async_trait;
use rustix::process::Signal;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::{CommandResult, Exit, ProcessGroup, RemoteCommand, RunError, STOP_GRACE, Session, Stream, Tail};

/// Runs commands on this host with `sh -c`, each in its own process group.
#[derive(Debug, Clone, Copy, Default)]
pub struct LocalSession;

/// A running command, as a stream that reads its stdout and writes its stdin. Dropping this value kills the command.
struct Program {
    stream: tokio::io::Join<ChildStdout, ChildStdin>,
    _child: Child,
    _group: ProcessGroup,
}

impl AsyncRead for Program {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Program {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Returns the name without the prefix `SIG`, or the number of a signal without a name.
fn signal_name(signal: i32) -> String {
    // rustix formats named signals as `"Signal::KILL"`, and others differently.
    let debug_text = Signal::from_named_raw(signal).map(|signal| format!("{signal:?}")).unwrap_or_default();
    match debug_text.trim_matches('"').strip_prefix("Signal::") {
        Some("ABORT") => "ABRT".to_owned(),
        Some(name) => name.to_owned(),
        None => signal.to_string(),
    }
}

fn spawn(command: &str, stderr: Stdio) -> Result<Child, RunError> {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).process_group(0).kill_on_drop(true);
    shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr);
    shell.spawn().map_err(|source| RunError::Local { operation: "failed to start sh", source })
}

#[async_trait]
impl Session for LocalSession {
    async fn run(&self, command: RemoteCommand<'_>) -> Result<CommandResult, RunError> {
        let RemoteCommand { command, stdin, mut stdout, mut stderr, stop } = command;
        let mut child = spawn(command, Stdio::piped())?;
        let mut group = ProcessGroup::of(&child);
        let (mut stdin_pipe, mut stdout_pipe, mut stderr_pipe) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let feed = async {
            if let (Some(from), Some(to)) = (stdin, &mut stdin_pipe) {
                let _ = tokio::io::copy(from, to).await;
            }
            // Ends the input of the command.
            drop(stdin_pipe.take());
        };
        let mut tail = Tail::default();
        let copy_stdout = async {
            let mut buffer = vec![0; 32 * 1024];
            while let Some(from) = &mut stdout_pipe {
                let n = from.read(&mut buffer).await.unwrap_or(0);
                if n == 0 {
                    break;
                }
                if let Some(to) = &mut stdout {
                    let operation = "failed to write stdout";
                    to.write_all(buffer.get(..n).unwrap_or_default())
                        .await
                        .map_err(|source| RunError::Local { operation, source })?;
                }
            }
            Ok::<(), RunError>(())
        };
        let copy_stderr = async {
            let mut buffer = vec![0; 32 * 1024];
            while let Some(from) = &mut stderr_pipe {
                let n = from.read(&mut buffer).await.unwrap_or(0);
                if n == 0 {
                    break;
                }
                let data = buffer.get(..n).unwrap_or_default();
                match &mut stderr {
                    None => tail.push(data),
                    Some(to) => {
                        let operation = "failed to write stderr";
                        to.write_all(data).await.map_err(|source| RunError::Local { operation, source })?;
                    }
                }
            }
            Ok::<(), RunError>(())
        };
        let cancel = async {
            stop.cancelled().await;
            group.terminate();
            tokio::time::sleep(STOP_GRACE).await;
            group.kill();
        };
        let copy = async {
            let copy_output = async { tokio::try_join!(copy_stdout, copy_stderr) };
            tokio::pin!(feed, copy_output);
            // A command may end without reading its input.
            tokio::select! {
                result = &mut copy_output => result,
                () = &mut feed => copy_output.await,
            }
        };
        let failed = |source| RunError::Local { operation: "failed to wait for the command", source };
        let exit = async {
            copy.await?;
            child.wait().await.map_err(failed)
        };
        let status = tokio::select! {
            status = exit => status?,
            // A process that left the group may keep the pipes open, so do not wait for the end of the output.
            () = cancel => child.wait().await.map_err(failed)?,
        };
        // Processes that the command left running are not killed.
        group.detach();
        let exit = match (status.code(), status.signal()) {
            (Some(code), _) => Exit::Code(u32::try_from(code).unwrap_or(u32::MAX)),
            (None, signal) => Exit::Signal(signal_name(signal.unwrap_or_default())),
        };
        Ok(CommandResult { exit, stderr: tail })
    }

    async fn dial(&self, network: &str, address: &str) -> Result<Box<dyn Stream>, RunError> {
        let refused = |error: std::io::Error| RunError::Refused {
            request: format!("a connection to {network} {address}"),
            cause: error.to_string(),
        };
        match network {
            "unix" => Ok(Box::new(UnixStream::connect(address).await.map_err(refused)?)),
            "tcp" => Ok(Box::new(TcpStream::connect(address).await.map_err(refused)?)),
            _ => Err(refused(std::io::Error::other("unsupported network; use tcp or unix"))),
        }
    }

    async fn dial_command(&self, command: &str) -> Result<Box<dyn Stream>, RunError> {
        let mut child = spawn(command, Stdio::null())?;
        let group = ProcessGroup::of(&child);
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            let source = std::io::Error::other("missing pipes");
            return Err(RunError::Local { operation: "failed to connect to sh", source });
        };
        Ok(Box::new(Program { stream: tokio::io::join(output, input), _child: child, _group: group }))
    }

    async fn close(&self) {}
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;

    use super::*;

    async fn exit(command: &str) -> Exit {
        LocalSession.run(RemoteCommand::new(command)).await.unwrap().exit
    }

    #[tokio::test]
    async fn command_returns_exit_status_or_signal_name() {
        assert_eq!(exit("exit 7").await, Exit::Code(7));
        assert_eq!(exit("kill -KILL $$").await, Exit::Signal("KILL".to_owned()));
        assert_eq!(exit("kill -USR1 $$").await, Exit::Signal("USR1".to_owned()));
        let (mut stdin, mut stdout) = (b"in".as_slice(), Vec::new());
        let run = RemoteCommand {
            stdin: Some(&mut stdin),
            stdout: Some(&mut stdout),
            ..RemoteCommand::new("cat; echo err >&2")
        };
        let outcome = LocalSession.run(run).await.unwrap();
        assert_eq!((stdout.as_slice(), outcome.stderr.to_string().as_str()), (b"in".as_slice(), "err\n"));
    }

    #[tokio::test]
    async fn canceled_command_ends_by_signal() {
        let stop = CancellationToken::new();
        let (mut reader, mut writer) = tokio::io::duplex(100);
        let run = RemoteCommand {
            stdout: Some(&mut writer),
            stop: stop.clone(),
            ..RemoteCommand::new("echo up; exec sleep 600")
        };
        let watch = async {
            reader.read_u8().await.unwrap();
            stop.cancel();
        };
        let (outcome, ()) = tokio::join!(LocalSession.run(run), watch);
        assert_eq!(outcome.unwrap().exit, Exit::Signal("TERM".to_owned()));
    }

    #[tokio::test(start_paused = true)]
    async fn canceled_command_ends_although_a_process_outside_of_its_group_has_its_pipes() {
        let stop = CancellationToken::new();
        let (mut reader, mut writer) = tokio::io::duplex(100);
        let run = RemoteCommand {
            stdout: Some(&mut writer),
            stop: stop.clone(),
            ..RemoteCommand::new("trap '' TERM; setsid sh -c 'echo $$; exec sleep 600' & wait")
        };
        let watch = async {
            let mut line = String::new();
            while !line.ends_with('\n') {
                line.push(char::from(reader.read_u8().await.unwrap()));
            }
            stop.cancel();
            line.trim().parse().ok().and_then(rustix::process::Pid::from_raw).unwrap()
        };
        let (outcome, outside) = tokio::join!(LocalSession.run(run), watch);
        rustix::process::kill_process(outside, Signal::KILL).unwrap();
        assert_eq!(outcome.unwrap().exit, Exit::Signal("KILL".to_owned()));
    }

    #[tokio::test]
    async fn command_ends_when_its_streams_are_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let pid = directory.path().join("pid");
        // The commands do not read their input, so the end of the input alone would not end them.
        let stream = LocalSession.dial_command(&format!("sleep 600 & echo $! >{}; wait", pid.display())).await.unwrap();
        let process = loop {
            match std::fs::read_to_string(&pid).unwrap_or_default().trim().parse::<i32>() {
                Ok(process) => break process,
                Err(_) => tokio::task::yield_now().await,
            }
        };
        drop(stream);
        let has_exited = || {
            let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
            stat.is_empty() || stat.contains(") Z ")
        };
        while !has_exited() {
            tokio::task::yield_now().await;
        }
    }
}
