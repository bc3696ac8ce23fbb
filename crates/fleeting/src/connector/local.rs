//! This host, behind the same port.

use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use async_trait::async_trait;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::process::{Child, Command};

use super::{Exit, Outcome, Run, RunError, Session, Stream, Tail};

/// Commands run here, by `sh -c`, each in a process group of its own.
#[derive(Debug, Clone, Copy, Default)]
pub struct LocalSession;

fn spawn(command: &str, stderr: Stdio) -> Result<Child, RunError> {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).process_group(0).kill_on_drop(true);
    shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr);
    shell.spawn().map_err(|source| RunError::Local { what: "sh cannot be started", source })
}

#[async_trait]
impl Session for LocalSession {
    async fn run(&self, run: Run<'_>) -> Result<Outcome, RunError> {
        let Run { command, stdin, mut stdout, mut stderr, stop } = run;
        let mut child = spawn(command, Stdio::piped())?;
        let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let (mut input, mut output, mut errors) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let feed = async {
            if let (Some(from), Some(to)) = (stdin, &mut input) {
                let _ = tokio::io::copy(from, to).await;
            }
            // Its end of the pipe is closed.
            drop(input.take());
        };
        let mut tail = Tail::default();
        let out = async {
            let mut buffer = vec![0; 32 * 1024];
            while let Some(from) = &mut output {
                let n = from.read(&mut buffer).await.unwrap_or(0);
                if n == 0 {
                    break;
                }
                if let Some(to) = &mut stdout {
                    let what = "stdout cannot be written";
                    to.write_all(buffer.get(..n).unwrap_or_default())
                        .await
                        .map_err(|source| RunError::Local { what, source })?;
                }
            }
            Ok::<(), RunError>(())
        };
        let err = async {
            let mut buffer = vec![0; 32 * 1024];
            while let Some(from) = &mut errors {
                let n = from.read(&mut buffer).await.unwrap_or(0);
                if n == 0 {
                    break;
                }
                let data = buffer.get(..n).unwrap_or_default();
                match &mut stderr {
                    None => tail.push(data),
                    Some(to) => {
                        let what = "stderr cannot be written";
                        to.write_all(data).await.map_err(|source| RunError::Local { what, source })?;
                    }
                }
            }
            Ok::<(), RunError>(())
        };
        let stopper = async {
            stop.cancelled().await;
            if let Some(group) = group {
                let _ = kill_process_group(group, Signal::TERM);
            }
            std::future::pending::<()>().await;
        };
        let copied = async {
            let copied = async { tokio::try_join!(out, err) };
            tokio::pin!(feed, copied);
            // A command may end without having read its input.
            tokio::select! {
                done = &mut copied => done,
                () = &mut feed => copied.await,
            }
        };
        tokio::select! {
            done = copied => done.map(drop)?,
            () = stopper => {}
        }
        let status = child
            .wait()
            .await
            .map_err(|source| RunError::Local { what: "the command cannot be waited for", source })?;
        let exit =
            match (status.code(), status.signal()) {
                (Some(code), _) => Exit::Code(u32::try_from(code).unwrap_or(u32::MAX)),
                (None, signal) => Exit::Signal(signal.and_then(Signal::from_named_raw).map_or_else(
                    || signal.unwrap_or_default().to_string(),
                    |signal| format!("{signal:?}").to_uppercase(),
                )),
            };
        Ok(Outcome { exit, stderr: tail })
    }

    async fn dial(&self, network: &str, address: &str) -> Result<Box<dyn Stream>, RunError> {
        let refused = |error: std::io::Error| RunError::Refused {
            what: format!("a connection to {network} {address}"),
            cause: error.to_string(),
        };
        match network {
            "unix" => Ok(Box::new(UnixStream::connect(address).await.map_err(refused)?)),
            "tcp" => Ok(Box::new(TcpStream::connect(address).await.map_err(refused)?)),
            _ => Err(refused(std::io::Error::other("only tcp and unix are possible"))),
        }
    }

    async fn dial_run(&self, command: &str) -> Result<Box<dyn Stream>, RunError> {
        let mut child = spawn(command, Stdio::null())?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            let source = std::io::Error::other("no pipes");
            return Err(RunError::Local { what: "sh cannot be reached", source });
        };
        // The child ends with the task, which ends with it.
        tokio::spawn(async move { child.wait().await });
        Ok(Box::new(tokio::io::join(output, input)))
    }

    async fn close(&self) {}
}
