//! WinRM (fleeting.md 4.3): commands of Windows machines, by HTTP or HTTPS with Basic authentication.
//!
//! Each command has a remote shell of its own, as with the Go host. There are no streams to addresses: that would need a
//! program on the machine. NTLM and Kerberos are not spoken.

mod certificate;
mod soap;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use reqwest::{Client, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::sync::CancellationToken;

use self::certificate::{Other, Pinned};
use self::soap::{Ask, Fault};
use crate::retry::{Failed, retry};
use crate::{DialError, Exit, KnownHosts, Outcome, Run, RunError, Session, Stream, Tail, Target};

/// Bytes of input in one message; base64 makes a third more of it, and servers take 150 KiB by default.
const INPUT_BYTES: usize = 64 * 1024;
/// Bytes of one answer.
const ANSWER_MAX_BYTES: usize = 16 * 1024 * 1024;
/// For an answer: the server holds it for the operation's timeout at most.
const ANSWER_LIMIT: Duration = Duration::from_secs(soap::OPERATION_TIMEOUT_S + 15);
/// For what ends a shell, where nobody waits for it.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);
/// Bytes between a stream of a command and its messages.
const PIPE_BYTES: usize = 64 * 1024;

/// A machine that answers by WinRM.
#[derive(Debug, Clone)]
pub struct WinrmSession {
    inner: Arc<Inner>,
}

struct Inner {
    client: Client,
    endpoint: String,
    target: Target,
    certificate: Arc<Pinned>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WinrmSession").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

/// Why a message has no answer.
enum Unanswered {
    /// The credentials.
    Auth,
    /// Another machine.
    Other(Other),
    /// A fault.
    Fault(Fault),
    /// Everything else, as text.
    Broken(String),
}

impl Unanswered {
    fn text(self) -> String {
        match self {
            Self::Auth => "the credentials are refused".to_owned(),
            Self::Other(Other { found, known }) => format!("the certificate is {found}, and should be {known}"),
            Self::Fault(Fault::NothingYet) => "the server timed out".to_owned(),
            Self::Fault(Fault::Said(words)) => words,
            Self::Fault(Fault::Nonsense(what)) => format!("the answer makes no sense: {what}"),
            Self::Broken(cause) => cause,
        }
    }
}

impl From<Fault> for Unanswered {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// Connects: a shell is opened and closed, which shows that commands can run.
///
/// # Errors
/// [`DialError`].
pub async fn connect(target: &Target, hosts: &KnownHosts) -> Result<WinrmSession, DialError> {
    let address = target.host_and_port();
    let secure = target.protocol == "winrm+https";
    if !secure && !target.allow_unencrypted {
        return Err(DialError::Unencrypted { user: target.username.clone() });
    }
    let unusable = |cause: String| DialError::Key { cause };
    let certificate = Arc::new(Pinned::new(&target.machine, hosts));
    let tls = certificate::client(&certificate).map_err(|error| unusable(error.to_string()))?;
    let client = Client::builder()
        .use_preconfigured_tls(tls)
        .timeout(ANSWER_LIMIT)
        .redirect(reqwest::redirect::Policy::none())
        // Machines are reached as with SSH, by their address. A proxy of the environment is meant for the manager's servers: it
        // would get the password.
        .no_proxy()
        .build()
        .map_err(|error| unusable(error.to_string()))?;
    let endpoint = format!("{}://{address}/wsman", if secure { "https" } else { "http" });
    let session = WinrmSession { inner: Arc::new(Inner { client, endpoint, target: target.clone(), certificate }) };
    retry(target, &address, || session.try_once(&address)).await?;
    Ok(session)
}

impl WinrmSession {
    async fn try_once(&self, address: &str) -> Result<(), Failed> {
        let target = &self.inner.target;
        let opened = async {
            let shell = soap::shell_id(&self.ask(Ask::CreateShell).await?)?;
            self.ask(Ask::DeleteShell { shell: &shell }).await.map(drop)
        };
        opened.await.map_err(|unanswered: Unanswered| match unanswered {
            Unanswered::Auth => Failed::ForGood(DialError::Auth {
                user: target.username.clone(),
                address: address.to_owned(),
                method: "password (WinRM: Basic authentication must be allowed)",
            }),
            Unanswered::Other(Other { found, known }) => {
                Failed::ForGood(DialError::HostKey { address: address.to_owned(), found, known })
            }
            other => Failed::ForNow(other.text()),
        })
    }

    /// One message and its answer.
    async fn ask(&self, ask: Ask<'_>) -> Result<String, Unanswered> {
        let target = &self.inner.target;
        let sent = self
            .inner
            .client
            .post(&self.inner.endpoint)
            .basic_auth(&target.username, Some(&target.password))
            .header("content-type", "application/soap+xml;charset=UTF-8")
            .body(ask.envelope(&self.inner.endpoint, rand::random()))
            .send()
            .await;
        let mut answer = sent.map_err(|error| match self.inner.certificate.other() {
            Some(other) => Unanswered::Other(other),
            None => broken(&error),
        })?;
        let status = answer.status();
        if status == StatusCode::UNAUTHORIZED {
            return Err(Unanswered::Auth);
        }
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(|error| broken(&error))? {
            body.extend_from_slice(&chunk);
            if body.len() > ANSWER_MAX_BYTES {
                return Err(Unanswered::Broken(format!("an answer of more than {ANSWER_MAX_BYTES} bytes")));
            }
        }
        let text = String::from_utf8_lossy(&body).into_owned();
        if !status.is_success() {
            // Faults come with status 500.
            soap::check(&text).map_err(|fault| match fault {
                Fault::Nonsense(_) => Unanswered::Broken(format!("HTTP status {status}")),
                fault => Unanswered::Fault(fault),
            })?;
            return Err(Unanswered::Broken(format!("HTTP status {status}")));
        }
        Ok(text)
    }

    async fn input(
        &self,
        shell: &str,
        command: &str,
        stdin: &mut (dyn tokio::io::AsyncRead + Send + Unpin),
    ) -> Result<(), Unanswered> {
        let mut buffer = vec![0; INPUT_BYTES];
        loop {
            let n = stdin.read(&mut buffer).await.unwrap_or(0);
            let input = buffer.get(..n).unwrap_or_default();
            self.ask(Ask::Send { shell, command, input, end: n == 0 }).await?;
            if n == 0 {
                return Ok(());
            }
        }
    }
}

fn broken(error: &dyn std::error::Error) -> Unanswered {
    let causes = std::iter::successors(error.source(), |error| error.source());
    Unanswered::Broken(causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}")))
}

fn lost(unanswered: Unanswered) -> RunError {
    RunError::Lost { cause: unanswered.text() }
}

/// A shell on the machine; it is deleted whatever happens to the command.
struct Shell {
    session: WinrmSession,
    id: String,
}

impl Drop for Shell {
    fn drop(&mut self) {
        let (session, shell) = (self.session.clone(), std::mem::take(&mut self.id));
        // Outside a runtime the process ends; the server ends shells that nobody uses.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let _ = tokio::time::timeout(CLOSE_LIMIT, session.ask(Ask::DeleteShell { shell: &shell })).await;
            });
        }
    }
}

#[async_trait]
impl Session for WinrmSession {
    async fn run(&self, run: Run<'_>) -> Result<Outcome, RunError> {
        let Run { command: line, stdin, mut stdout, mut stderr, stop } = run;
        let refused = |what: &str, unanswered: Unanswered| match unanswered {
            Unanswered::Fault(Fault::Said(cause)) => RunError::Refused { what: what.to_owned(), cause },
            other => lost(other),
        };
        let created = async { Ok::<_, Unanswered>(soap::shell_id(&self.ask(Ask::CreateShell).await?)?) };
        let id = created.await.map_err(|error| refused("a shell", error))?;
        let shell = Shell { session: self.clone(), id };
        let started =
            async { Ok::<_, Unanswered>(soap::command_id(&self.ask(Ask::Command { shell: &shell.id, line }).await?)?) };
        let command = started.await.map_err(|error| refused("the command", error))?;
        let feed = async {
            if let Some(stdin) = stdin {
                // A command may end without having read its input; then the server refuses it.
                let _ = self.input(&shell.id, &command, stdin).await;
            }
            std::future::pending::<()>().await;
        };
        let terminate = async {
            stop.cancelled().await;
            let _ = self.ask(Ask::Terminate { shell: &shell.id, command: &command }).await;
            std::future::pending::<()>().await;
        };
        let mut tail = Tail::default();
        let receive = async {
            loop {
                let received = match self.ask(Ask::Receive { shell: &shell.id, command: &command }).await {
                    Ok(text) => soap::received(&text).map_err(|fault| lost(fault.into()))?,
                    Err(Unanswered::Fault(Fault::NothingYet)) => continue,
                    Err(other) => return Err(lost(other)),
                };
                for (is_stderr, bytes) in received.pieces {
                    let (to, what) = match (is_stderr, &mut stdout, &mut stderr) {
                        (true, _, None) => {
                            tail.push(&bytes);
                            continue;
                        }
                        (false, None, _) => continue,
                        (true, _, Some(to)) => (to, "stderr cannot be written"),
                        (false, Some(to), _) => (to, "stdout cannot be written"),
                    };
                    to.write_all(&bytes).await.map_err(|source| RunError::Local { what, source })?;
                }
                if received.done {
                    return received
                        .exit
                        .ok_or_else(|| RunError::Lost { cause: "the server told no exit status".to_owned() });
                }
            }
        };
        let exit = tokio::select! {
            exit = receive => exit?,
            () = feed => return Err(RunError::Lost { cause: "the input ended the wait".to_owned() }),
            () = terminate => return Err(RunError::Lost { cause: "the stop ended the wait".to_owned() }),
        };
        // Windows' statuses are 32 bits, which some tools write as negative numbers.
        let exit = u32::try_from(exit).or_else(|_| i32::try_from(exit).map(i32::cast_unsigned)).unwrap_or(u32::MAX);
        Ok(Outcome { exit: Exit::Code(exit), stderr: tail })
    }

    async fn dial(&self, network: &str, address: &str) -> Result<Box<dyn Stream>, RunError> {
        Err(RunError::Refused {
            what: format!("a connection to {network} {address}"),
            cause:
                "WinRM carries commands only; use ssh (OpenSSH is part of Windows) for the executor docker-autoscaler"
                    .to_owned(),
        })
    }

    async fn dial_run(&self, command: &str) -> Result<Box<dyn Stream>, RunError> {
        let (near, far) = tokio::io::duplex(PIPE_BYTES);
        let (mut input, mut output) = tokio::io::split(far);
        let (session, command, stop) = (self.clone(), command.to_owned(), CancellationToken::new());
        // Ends with the command, or when the near end is dropped: then its output has nowhere to go.
        tokio::spawn(async move {
            let run = Run { command: &command, stdin: Some(&mut input), stdout: Some(&mut output), stderr: None, stop };
            if let Err(error) = session.run(run).await {
                tracing::debug!(%error, "a stream over WinRM ended");
            }
            let _ = output.shutdown().await;
        });
        Ok(Box::new(near))
    }

    async fn close(&self) {}
}
