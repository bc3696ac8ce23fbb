//! SSH sessions (docs/spec/fleeting.md, section 4.2).

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use russh::client::{self, AuthResult, Handle};
use russh::keys::{
    Algorithm, Certificate, HashAlg, PrivateKey, PrivateKeyWithHashAlg, PublicKeyOrCertificate, decode_secret_key,
};
use russh::{Channel, ChannelMsg, ChannelWriteHalf, Disconnect, Preferred, Sig};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::retry::{AttemptError, retry};
use crate::{
    CommandResult, DialError, Exit, KnownHosts, RemoteCommand, RunError, STOP_GRACE, Session, Stream, Tail, Target,
};

const MAX_MISSED_KEEPALIVES: usize = 3;

/// A channel that is closed when this value is dropped, because an open channel counts against the server's limit.
struct ChannelGuard {
    channel: Arc<ChannelWriteHalf<client::Msg>>,
    is_closed: AtomicBool,
}

impl Drop for ChannelGuard {
    fn drop(&mut self) {
        let channel = Arc::clone(&self.channel);
        // Without a runtime, the whole connection is closed anyway.
        if !self.is_closed.load(Ordering::Relaxed)
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async move { channel.close().await });
        }
    }
}

struct HostKeyVerifier {
    machine: String,
    hosts: KnownHosts,
    /// Fingerprint of the machine's key and the known fingerprints, if they differ.
    mismatch: Arc<Mutex<Option<(String, String)>>>,
}

impl client::Handler for HostKeyVerifier {
    type Error = russh::Error;

    async fn check_server_key(&mut self, key: &PublicKeyOrCertificate) -> Result<bool, russh::Error> {
        let found = match key {
            PublicKeyOrCertificate::PublicKey { key, .. } => key.fingerprint(HashAlg::Sha256).to_string(),
            PublicKeyOrCertificate::Certificate(certificate) => {
                russh::keys::PublicKey::from(certificate.public_key().clone()).fingerprint(HashAlg::Sha256).to_string()
            }
        };
        match self.hosts.check_or_learn(&self.machine, &found) {
            None => Ok(true),
            Some(known) => {
                *self.mismatch.lock().unwrap_or_else(PoisonError::into_inner) = Some((found, known));
                Ok(false)
            }
        }
    }
}

/// An SSH session.
pub struct SshSession {
    handle: Handle<HostKeyVerifier>,
}

/// Connects and authenticates.
///
/// # Errors
/// [`DialError`].
pub async fn connect(target: &Target, hosts: &KnownHosts) -> Result<SshSession, DialError> {
    connect_directly_or_through(None, target, hosts).await
}

/// Connects and authenticates through the session of another machine.
///
/// # Errors
/// [`DialError`].
pub async fn connect_through(via: &dyn Session, target: &Target, hosts: &KnownHosts) -> Result<SshSession, DialError> {
    connect_directly_or_through(Some(via), target, hosts).await
}

async fn connect_directly_or_through(
    via: Option<&dyn Session>,
    target: &Target,
    hosts: &KnownHosts,
) -> Result<SshSession, DialError> {
    let address = target.host_and_port();
    let key = private_key(&target.key).map_err(|cause| DialError::Key { cause })?;
    let config = Arc::new(client::Config {
        keepalive_interval: Some(target.keepalive),
        keepalive_max: MAX_MISSED_KEEPALIVES,
        nodelay: true,
        preferred: preferred(&hosts.pinned_types(&target.machine)),
        ..client::Config::default()
    });
    retry(target, &address, || try_once(via, target, &address, key.clone(), hosts, Arc::clone(&config))).await
}

/// Returns the default algorithms. Those whose host keys have one of `host_key_types` come first, so that the machine
/// presents a host key of a known type.
fn preferred(host_key_types: &[String]) -> Preferred {
    let mut preferred = Preferred::default();
    // All signature algorithms of RSA have keys of the type `ssh-rsa`.
    let key_type = |algorithm: &Algorithm| match algorithm {
        Algorithm::Rsa { .. } => "ssh-rsa".to_owned(),
        other => other.as_str().to_owned(),
    };
    let mut algorithms = preferred.key.to_vec();
    algorithms.sort_by_key(|algorithm| !host_key_types.contains(&key_type(algorithm)));
    preferred.key = algorithms.into();
    preferred
}

async fn try_once(
    via: Option<&dyn Session>,
    target: &Target,
    address: &str,
    key: Option<Key>,
    hosts: &KnownHosts,
    config: Arc<client::Config>,
) -> Result<SshSession, AttemptError> {
    let transient = |error: &dyn std::error::Error| AttemptError::Transient(error.to_string());
    let stream: Box<dyn Stream> = match via {
        Some(session) => session.dial("tcp", address).await.map_err(|error| transient(&error))?,
        None => {
            let stream = TcpStream::connect(address).await.map_err(|error| transient(&error))?;
            let _ = stream.set_nodelay(true);
            Box::new(stream)
        }
    };
    let mismatch = Arc::new(Mutex::new(None));
    let verifier =
        HostKeyVerifier { machine: target.machine.clone(), hosts: hosts.clone(), mismatch: Arc::clone(&mismatch) };
    let mut handle = match client::connect_stream(config, stream, verifier).await {
        Ok(handle) => handle,
        Err(error) => {
            let mismatch = mismatch.lock().unwrap_or_else(PoisonError::into_inner).take();
            return Err(match mismatch {
                Some((found, known)) => {
                    AttemptError::Permanent(DialError::HostKey { address: address.to_owned(), found, known })
                }
                None => transient(&error),
            });
        }
    };
    let (method, answer) = match key {
        // With a key, no password is sent (case C3).
        Some(Key { private, certificate: Some(certificate) }) => {
            let user = target.username.as_str();
            ("certificate", handle.authenticate_openssh_cert(user, private, certificate).await)
        }
        Some(Key { private, certificate: None }) => {
            let hash = handle.best_supported_rsa_hash().await.map_err(|error| transient(&error))?.flatten();
            let key = PrivateKeyWithHashAlg::new(private, hash);
            ("key", handle.authenticate_publickey(target.username.as_str(), key).await)
        }
        None => {
            let password = target.password.as_str();
            ("password", handle.authenticate_password(target.username.as_str(), password).await)
        }
    };
    match answer {
        Ok(AuthResult::Success) => Ok(SshSession { handle }),
        Ok(AuthResult::Failure { .. }) => Err(AttemptError::Permanent(DialError::Auth {
            user: target.username.clone(),
            address: address.to_owned(),
            method,
        })),
        Err(error) => Err(transient(&error)),
    }
}

#[derive(Clone)]
struct Key {
    private: Arc<PrivateKey>,
    certificate: Option<Certificate>,
}

/// Parses a private key, and an optional certificate on a later line (`ssh-ed25519-cert-v01@openssh.com AAAA...`).
fn private_key(bytes: &[u8]) -> Result<Option<Key>, String> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let text = std::str::from_utf8(bytes).map_err(|_| "the key is not text".to_owned())?;
    let is_certificate =
        |line: &&str| line.split(' ').next().is_some_and(|word| word.ends_with("-cert-v01@openssh.com"));
    let line = text.lines().find(is_certificate);
    let certificate = line
        .map(|line| Certificate::from_openssh(line.trim()).map_err(|error| format!("invalid certificate: {error}")));
    let pem = line.and_then(|line| text.split(line).next()).unwrap_or(text);
    let private = decode_secret_key(pem, None).map_err(|error| error.to_string())?;
    Ok(Some(Key { private: Arc::new(private), certificate: certificate.transpose()? }))
}

fn lost(cause: impl ToString) -> RunError {
    RunError::Lost { cause: cause.to_string() }
}

impl SshSession {
    async fn open_channel(&self) -> Result<Channel<client::Msg>, RunError> {
        self.handle.channel_open_session().await.map_err(|error| match error {
            russh::Error::ChannelOpenFailure(reason) => RunError::Refused {
                request: "another session on the connection".to_owned(),
                cause: format!("{reason:?}; check MaxSessions of sshd"),
            },
            other => lost(other),
        })
    }
}

#[async_trait]
impl Session for SshSession {
    async fn run(&self, command: RemoteCommand<'_>) -> Result<CommandResult, RunError> {
        let RemoteCommand { command, stdin, mut stdout, mut stderr, stop } = command;
        let channel = self.open_channel().await?;
        channel.exec(true, command).await.map_err(lost)?;
        let (mut read, write) = channel.split();
        let guard = ChannelGuard { channel: Arc::new(write), is_closed: AtomicBool::new(false) };
        let write = Arc::clone(&guard.channel);
        let feed = async {
            if let Some(stdin) = stdin {
                copy(stdin, write.make_writer()).await;
            }
            let _ = write.eof().await;
            std::future::pending::<Infallible>().await
        };
        let end_after_cancel = async {
            stop.cancelled().await;
            // Output that is not read may block the connection, and with it the signals.
            let terminate = async {
                let _ = guard.channel.signal(Sig::TERM).await;
                std::future::pending::<()>().await;
            };
            let _ = timeout(STOP_GRACE, terminate).await;
            // Some servers ignore signals, and some commands ignore SIGTERM.
            let _ = timeout(STOP_GRACE, guard.channel.signal(Sig::KILL)).await;
            RunError::not_ended_after_cancel()
        };
        let mut tail = Tail::default();
        let receive = async {
            let mut exit = None;
            loop {
                match read.wait().await {
                    Some(ChannelMsg::Data { data }) => {
                        write_output(&mut stdout, &data, "failed to write stdout").await?;
                    }
                    Some(ChannelMsg::ExtendedData { data, ext: 1 }) => match &mut stderr {
                        None => tail.push(&data),
                        stderr => write_output(stderr, &data, "failed to write stderr").await?,
                    },
                    Some(ChannelMsg::Failure) => {
                        return Err(RunError::Refused {
                            request: "the command".to_owned(),
                            cause: "the server did not start it".to_owned(),
                        });
                    }
                    Some(ChannelMsg::ExitStatus { exit_status }) => exit = Some(Exit::Code(exit_status)),
                    Some(ChannelMsg::ExitSignal { signal_name, .. }) => {
                        exit = Some(Exit::Signal(signal_text(&signal_name)));
                    }
                    Some(ChannelMsg::Close) | None => {
                        guard.is_closed.store(true, Ordering::Relaxed);
                        return Ok(exit);
                    }
                    Some(_) => {}
                }
            }
        };
        let exit = tokio::select! {
            exit = receive => exit?,
            never = feed => match never {},
            error = end_after_cancel => return Err(error),
        };
        // Without an exit status, the result of the command is unknown (case C6).
        exit.map(|exit| CommandResult { exit, stderr: tail })
            .ok_or_else(|| lost("the channel was closed without an exit status"))
    }

    async fn dial(&self, network: &str, address: &str) -> Result<Box<dyn Stream>, RunError> {
        let refused = |error: russh::Error| match error {
            russh::Error::ChannelOpenFailure(reason) => RunError::Refused {
                request: format!("a connection to {network} {address}"),
                cause: format!("{reason:?}"),
            },
            other => lost(other),
        };
        let channel = match network {
            "unix" => self.handle.channel_open_direct_streamlocal(address).await,
            "tcp" => {
                let invalid = || RunError::Refused {
                    request: format!("the address {address:?}"),
                    cause: "expected host:port".to_owned(),
                };
                let (host, port) = address.rsplit_once(':').ok_or_else(invalid)?;
                let port: u16 = port.parse().map_err(|_| invalid())?;
                let host = host.trim_start_matches('[').trim_end_matches(']');
                self.handle.channel_open_direct_tcpip(host, u32::from(port), "127.0.0.1", 0).await
            }
            other => {
                let request = format!("a connection to {other} {address}");
                return Err(RunError::Refused { request, cause: "unsupported network; use tcp or unix".to_owned() });
            }
        };
        Ok(Box::new(channel.map_err(refused)?.into_stream()))
    }

    async fn dial_command(&self, command: &str) -> Result<Box<dyn Stream>, RunError> {
        let channel = self.open_channel().await?;
        channel.exec(false, command).await.map_err(lost)?;
        Ok(Box::new(channel.into_stream()))
    }

    async fn close(&self) {
        let _ = self.handle.disconnect(Disconnect::ByApplication, "", "en").await;
    }
}

/// Copies the input of a command. Ignores errors, because a command may end without reading its input.
async fn copy(from: &mut (dyn AsyncRead + Send + Unpin), to: impl AsyncWrite) {
    tokio::pin!(to);
    let mut buffer = vec![0; 32 * 1024];
    while let Ok(n) = from.read(&mut buffer).await {
        if n == 0 || to.write_all(buffer.get(..n).unwrap_or_default()).await.is_err() {
            return;
        }
    }
}

async fn write_output(
    to: &mut Option<&mut (dyn AsyncWrite + Send + Unpin)>,
    data: &[u8],
    operation: &'static str,
) -> Result<(), RunError> {
    match to {
        Some(to) => to.write_all(data).await.map_err(|source| RunError::Local { operation, source }),
        None => Ok(()),
    }
}

fn signal_text(signal: &Sig) -> String {
    match signal {
        Sig::Custom(name) => name.clone(),
        known => format!("{known:?}"),
    }
}
