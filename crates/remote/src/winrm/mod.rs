//! WinRM sessions (docs/spec/fleeting.md, section 4.3): commands on Windows machines, over HTTP or HTTPS with Basic
//! authentication.
//!
//! Streams to addresses, NTLM and Kerberos are not supported.

mod certificate;
mod soap;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use reqwest::{Client, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::sync::CancellationToken;

use self::certificate::{CertificateMismatch, CertificateVerifier};
use self::soap::{Fault, Request};
use crate::retry::{AttemptError, retry};
use crate::{
    CommandResult, DialError, Exit, KnownHosts, RemoteCommand, RunError, STOP_GRACE, Session, Stream, Tail, Target,
};

/// Maximum number of input bytes in a message, before base64. Servers accept messages of 150 KiB by default.
const MAX_INPUT_BYTES: usize = 64 * 1024;
const MAX_RESPONSE_BYTES: usize = 16 * 1024 * 1024;
/// The server delays its response by up to the operation timeout.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(soap::OPERATION_TIMEOUT_S + 15);
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
const TERMINATE_RETRY_DELAY: Duration = Duration::from_millis(500);
const PIPE_BYTES: usize = 64 * 1024;

/// A WinRM session.
#[derive(Debug, Clone)]
pub struct WinrmSession {
    inner: Arc<SessionInner>,
}

struct SessionInner {
    client: Client,
    endpoint: String,
    target: Target,
    verifier: Arc<CertificateVerifier>,
}

impl std::fmt::Debug for SessionInner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WinrmSession").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

enum RequestError {
    Auth,
    /// The certificate differs from the known certificate of the machine.
    Certificate(CertificateMismatch),
    Fault(Fault),
    /// The request failed, or the response is unusable.
    Connection(String),
}

impl RequestError {
    fn message(self) -> String {
        match self {
            Self::Auth => "the credentials were rejected".to_owned(),
            Self::Certificate(CertificateMismatch { found, known }) => {
                format!("the certificate is {found}, expected {known}")
            }
            Self::Fault(Fault::NoOutputYet) => "the server timed out".to_owned(),
            Self::Fault(Fault::Message(message)) => message,
            Self::Fault(Fault::InvalidResponse(problem)) => format!("invalid response: {problem}"),
            Self::Connection(cause) => cause,
        }
    }
}

impl From<Fault> for RequestError {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// Connects, and opens and closes a shell to check that commands can run.
///
/// # Errors
/// [`DialError`].
pub async fn connect(target: &Target, hosts: &KnownHosts) -> Result<WinrmSession, DialError> {
    let address = target.host_and_port();
    let is_https = target.protocol == "winrm+https";
    if !is_https && !target.allow_unencrypted {
        return Err(DialError::Unencrypted { user: target.username.clone() });
    }
    let setup_error = |cause: String| DialError::Setup { cause };
    let verifier = Arc::new(CertificateVerifier::new(&target.machine, hosts));
    let tls = certificate::tls_config(&verifier).map_err(|error| setup_error(error.to_string()))?;
    let client = Client::builder()
        .use_preconfigured_tls(tls)
        .timeout(RESPONSE_TIMEOUT)
        .redirect(reqwest::redirect::Policy::none())
        // A proxy from the environment is intended for other servers, and would receive the password.
        .no_proxy()
        .build()
        .map_err(|error| setup_error(error.to_string()))?;
    let endpoint = format!("{}://{address}/wsman", if is_https { "https" } else { "http" });
    let session = WinrmSession { inner: Arc::new(SessionInner { client, endpoint, target: target.clone(), verifier }) };
    retry(target, &address, || session.try_once(&address)).await?;
    Ok(session)
}

impl WinrmSession {
    async fn try_once(&self, address: &str) -> Result<(), AttemptError> {
        let target = &self.inner.target;
        let check = async {
            let shell = soap::shell_id(&self.send(Request::CreateShell).await?)?;
            self.send(Request::DeleteShell { shell: &shell }).await.map(drop)
        };
        check.await.map_err(|error: RequestError| match error {
            RequestError::Auth => AttemptError::Permanent(DialError::Auth {
                user: target.username.clone(),
                address: address.to_owned(),
                method: "password (WinRM: Basic authentication must be allowed)",
            }),
            RequestError::Certificate(CertificateMismatch { found, known }) => {
                AttemptError::Permanent(DialError::HostKey { address: address.to_owned(), found, known })
            }
            other => AttemptError::Transient(other.message()),
        })
    }

    async fn send(&self, request: Request<'_>) -> Result<String, RequestError> {
        let target = &self.inner.target;
        let response = self
            .inner
            .client
            .post(&self.inner.endpoint)
            .basic_auth(&target.username, Some(&target.password))
            .header("content-type", "application/soap+xml;charset=UTF-8")
            .body(request.envelope(&self.inner.endpoint, rand::random()))
            .send()
            .await;
        let mut response = response.map_err(|error| match self.inner.verifier.mismatch() {
            Some(mismatch) => RequestError::Certificate(mismatch),
            None => connection_error(&error),
        })?;
        let status = response.status();
        if status == StatusCode::UNAUTHORIZED {
            return Err(RequestError::Auth);
        }
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| connection_error(&error))? {
            body.extend_from_slice(&chunk);
            if body.len() > MAX_RESPONSE_BYTES {
                return Err(RequestError::Connection(format!("response exceeds {MAX_RESPONSE_BYTES} bytes")));
            }
        }
        let text = String::from_utf8_lossy(&body).into_owned();
        if !status.is_success() {
            // Faults are sent with status 500.
            soap::check(&text).map_err(|fault| match fault {
                Fault::InvalidResponse(_) => RequestError::Connection(format!("HTTP status {status}")),
                fault => RequestError::Fault(fault),
            })?;
            return Err(RequestError::Connection(format!("HTTP status {status}")));
        }
        Ok(text)
    }

    async fn send_input(
        &self,
        shell: &str,
        command: &str,
        stdin: &mut (dyn tokio::io::AsyncRead + Send + Unpin),
    ) -> Result<(), RequestError> {
        let mut buffer = vec![0; MAX_INPUT_BYTES];
        loop {
            let n = stdin.read(&mut buffer).await.unwrap_or(0);
            let input = buffer.get(..n).unwrap_or_default();
            self.send(Request::Send { shell, command, input, end: n == 0 }).await?;
            if n == 0 {
                return Ok(());
            }
        }
    }
}

fn connection_error(error: &dyn std::error::Error) -> RequestError {
    let causes = std::iter::successors(error.source(), |error| error.source());
    RequestError::Connection(causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}")))
}

fn lost(error: RequestError) -> RunError {
    RunError::Lost { cause: error.message() }
}

/// Dropping this value deletes the remote shell.
struct Shell {
    session: WinrmSession,
    id: String,
}

impl Drop for Shell {
    fn drop(&mut self) {
        let (session, shell) = (self.session.clone(), std::mem::take(&mut self.id));
        // Without a runtime, the process is exiting. The server will remove the unused shell.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let _ = tokio::time::timeout(CLOSE_TIMEOUT, session.send(Request::DeleteShell { shell: &shell })).await;
            });
        }
    }
}

#[async_trait]
impl Session for WinrmSession {
    async fn run(&self, command: RemoteCommand<'_>) -> Result<CommandResult, RunError> {
        let RemoteCommand { command: line, stdin, mut stdout, mut stderr, stop } = command;
        let refused = |request: &str, error: RequestError| match error {
            RequestError::Fault(Fault::Message(cause)) => RunError::Refused { request: request.to_owned(), cause },
            other => lost(other),
        };
        let create_shell = async { Ok::<_, RequestError>(soap::shell_id(&self.send(Request::CreateShell).await?)?) };
        let id = create_shell.await.map_err(|error| refused("a shell", error))?;
        let shell = Shell { session: self.clone(), id };
        let start_command = async {
            Ok::<_, RequestError>(soap::command_id(&self.send(Request::Command { shell: &shell.id, line }).await?)?)
        };
        let command = start_command.await.map_err(|error| refused("the command", error))?;
        let feed = async {
            if let Some(stdin) = stdin {
                // The server rejects input for a command that has ended.
                let _ = self.send_input(&shell.id, &command, stdin).await;
            }
            std::future::pending::<Infallible>().await
        };
        let terminate = async {
            while self.send(Request::Terminate { shell: &shell.id, command: &command }).await.is_err() {
                tokio::time::sleep(TERMINATE_RETRY_DELAY).await;
            }
            std::future::pending::<Infallible>().await
        };
        let end_after_cancel = async {
            stop.cancelled().await;
            let _ = tokio::time::timeout(STOP_GRACE, terminate).await;
            // Deleting the shell ends the command.
            RunError::not_ended_after_cancel()
        };
        let mut tail = Tail::default();
        let receive = async {
            loop {
                let received = match self.send(Request::Receive { shell: &shell.id, command: &command }).await {
                    Ok(text) => soap::parse_received(&text).map_err(|fault| lost(fault.into()))?,
                    Err(RequestError::Fault(Fault::NoOutputYet)) => continue,
                    Err(other) => return Err(lost(other)),
                };
                for (is_stderr, bytes) in received.pieces {
                    let (to, operation) = match (is_stderr, &mut stdout, &mut stderr) {
                        (true, _, None) => {
                            tail.push(&bytes);
                            continue;
                        }
                        (false, None, _) => continue,
                        (true, _, Some(to)) => (to, "failed to write stderr"),
                        (false, Some(to), _) => (to, "failed to write stdout"),
                    };
                    to.write_all(&bytes).await.map_err(|source| RunError::Local { operation, source })?;
                }
                if received.is_done {
                    return received
                        .exit
                        .ok_or_else(|| RunError::Lost { cause: "the server reported no exit status".to_owned() });
                }
            }
        };
        let exit = tokio::select! {
            exit = receive => exit?,
            never = feed => match never {},
            error = end_after_cancel => return Err(error),
        };
        // Exit statuses on Windows have 32 bits. Some tools write them as negative numbers.
        let exit = u32::try_from(exit).or_else(|_| i32::try_from(exit).map(i32::cast_unsigned)).unwrap_or(u32::MAX);
        Ok(CommandResult { exit: Exit::Code(exit), stderr: tail })
    }

    async fn dial(&self, network: &str, address: &str) -> Result<Box<dyn Stream>, RunError> {
        Err(RunError::Refused {
            request: format!("a connection to {network} {address}"),
            cause:
                "WinRM supports commands only; use ssh (OpenSSH is part of Windows) for the executor docker-autoscaler"
                    .to_owned(),
        })
    }

    async fn dial_command(&self, command: &str) -> Result<Box<dyn Stream>, RunError> {
        let (local_end, remote_end) = tokio::io::duplex(PIPE_BYTES);
        let (mut input, mut output) = tokio::io::split(remote_end);
        let (session, command, stop) = (self.clone(), command.to_owned(), CancellationToken::new());
        // The task ends with the command, or with the next output after the local end was dropped.
        tokio::spawn(async move {
            let remote_command = RemoteCommand {
                command: &command,
                stdin: Some(&mut input),
                stdout: Some(&mut output),
                stderr: None,
                stop,
            };
            if let Err(error) = session.run(remote_command).await {
                tracing::debug!(%error, "WinRM stream failed");
            }
            let _ = output.shutdown().await;
        });
        Ok(Box::new(local_end))
    }

    async fn close(&self) {}
}
