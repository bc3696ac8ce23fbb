//! SSH server of an instance: one key, commands by `sh -c`, and streams to sockets.

use std::collections::{HashMap, HashSet};
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use russh::keys::{PrivateKey, PublicKey};
use russh::server::{Auth, ChannelOpenHandle, Config, Handler, Msg, Session, VerifiedPublicKey};
use russh::{Channel, ChannelId, ChannelMsg, ChannelReadHalf, ChannelWriteHalf};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::process::{Child, Command};

const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Maximum size of the input that was received and that a command has not read, besides the pipe.
const MAX_PENDING_INPUT_BYTES: usize = 16 * 1024 * 1024;

/// Process groups of the running commands.
#[derive(Debug, Clone, Default)]
pub struct Commands(Arc<Mutex<HashSet<i32>>>);

impl Commands {
    fn update(&self, update: impl FnOnce(&mut HashSet<i32>)) {
        update(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Adds a command, whose process must be the leader of its process group. Returns the group.
    pub(crate) fn register(&self, child: &Child) -> i32 {
        let group = child.id().and_then(|id| i32::try_from(id).ok()).unwrap_or(0);
        self.update(|groups| {
            groups.insert(group);
        });
        group
    }

    /// Removes a command whose process was reaped.
    pub(crate) fn unregister(&self, group: i32) {
        self.update(|groups| {
            groups.remove(&group);
        });
    }

    /// Returns whether the process was started as a command and has not been reaped.
    pub(crate) fn contains(&self, pid: i32) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&pid)
    }

    /// Kills all commands.
    pub fn kill_all(&self) {
        self.update(|groups| groups.iter().for_each(|group| send_signal(*group, Signal::KILL)));
    }
}

fn send_signal(group: i32, signal: Signal) {
    if let Some(group) = Pid::from_raw(group) {
        let _ = kill_process_group(group, signal);
    }
}

/// Accepts and serves connections until the future is dropped.
pub async fn accept(listener: TcpListener, host_key: PrivateKey, authorized: PublicKey, commands: Commands) {
    let config = Arc::new(Config { keys: vec![host_key], nodelay: true, ..Config::default() });
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // The client may have disconnected, or too many files may be open. Running commands continue.
                tracing::warn!(%error, "failed to accept a connection");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            }
        };
        let _ = stream.set_nodelay(true);
        let config = Arc::clone(&config);
        let handler =
            Connection { authorized: authorized.clone(), commands: commands.clone(), channels: HashMap::new() };
        tokio::spawn(async move {
            // A failed connection does not affect other connections.
            if let Ok(session) = russh::server::run_stream(config, stream, handler).await {
                let _ = session.await;
            }
        });
    }
}

struct Connection {
    authorized: PublicKey,
    commands: Commands,
    /// Sessions without a command.
    channels: HashMap<ChannelId, Channel<Msg>>,
}

impl Handler for Connection {
    type Error = russh::Error;

    async fn auth_publickey(&mut self, _: &str, key: VerifiedPublicKey<'_>) -> Result<Auth, russh::Error> {
        let is_authorized = key.public_key.key_data() == self.authorized.key_data();
        Ok(if is_authorized { Auth::Accept } else { Auth::reject() })
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), russh::Error> {
        self.channels.insert(channel.id(), channel);
        reply.accept().await;
        Ok(())
    }

    async fn exec_request(&mut self, id: ChannelId, line: &[u8], session: &mut Session) -> Result<(), russh::Error> {
        let Some(channel) = self.channels.remove(&id) else { return session.channel_failure(id) };
        let line = String::from_utf8_lossy(line).into_owned();
        let mut command = Command::new("sh");
        command.args(["-c", &line]).process_group(0).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        match command.spawn() {
            Ok(child) => {
                // The command is registered before its exit can be observed.
                let group = self.commands.register(&child);
                tokio::spawn(run(child, group, channel, self.commands.clone()));
                session.channel_success(id)
            }
            Err(_) => session.channel_failure(id),
        }
    }

    async fn channel_open_direct_tcpip(
        &mut self,
        channel: Channel<Msg>,
        host: &str,
        port: u32,
        _: &str,
        _: u32,
        reply: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), russh::Error> {
        let Ok(port) = u16::try_from(port) else { return Ok(()) };
        // Dropping `reply` refuses the channel.
        if let Ok(stream) = TcpStream::connect((host, port)).await {
            reply.accept().await;
            tokio::spawn(forward(channel, stream));
        }
        Ok(())
    }

    async fn channel_open_direct_streamlocal(
        &mut self,
        channel: Channel<Msg>,
        path: &str,
        reply: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), russh::Error> {
        if let Ok(stream) = UnixStream::connect(path).await {
            reply.accept().await;
            tokio::spawn(forward(channel, stream));
        }
        Ok(())
    }
}

async fn forward(channel: Channel<Msg>, mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let mut channel = channel.into_stream();
    let _ = tokio::io::copy_bidirectional(&mut channel, &mut stream).await;
}

/// Sends the exit status of a command. Kills its process group when the command exits or its channel is closed.
async fn run(mut child: Child, group: i32, channel: Channel<Msg>, commands: Commands) {
    let (read, write) = channel.split();
    let exit = wait_exit(&mut child, &write, group, read).await;
    send_signal(group, Signal::KILL);
    // If the client closed the channel, the command was killed above and must be reaped.
    let _ = child.wait().await;
    commands.unregister(group);
    if let Some(code) = exit {
        let _ = write.eof().await;
        let _ = write.exit_status(code).await;
    }
    let _ = write.close().await;
}

/// Forwards input and output of a command until it exits. Returns `None` if the client closes the channel before.
///
/// Input is written separately, because a command that does not read it must still get signals. If more than
/// [`MAX_PENDING_INPUT_BYTES`] are unread, signals wait until the command reads.
async fn wait_exit(
    child: &mut Child,
    write: &ChannelWriteHalf<Msg>,
    group: i32,
    mut read: ChannelReadHalf,
) -> Option<u32> {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let forward_output = async {
        let forward_stdout = async {
            if let Some(stdout) = stdout {
                let _ = write.data(stdout).await;
            }
        };
        let forward_stderr = async {
            if let Some(stderr) = stderr {
                let _ = write.extended_data(1, stderr).await;
            }
        };
        tokio::join!(forward_stdout, forward_stderr);
    };
    let (input, mut pending_input) = tokio::io::duplex(MAX_PENDING_INPUT_BYTES);
    let handle_messages = async {
        let mut input = Some(input);
        loop {
            match read.wait().await {
                Some(ChannelMsg::Data { data }) => {
                    let written = match &mut input {
                        Some(input) => input.write_all(&data).await,
                        None => Ok(()),
                    };
                    // The command has closed its input.
                    if written.is_err() {
                        input = None;
                    }
                }
                Some(ChannelMsg::Eof) => input = None,
                Some(ChannelMsg::Signal { signal: name }) => {
                    let unix_signal = match name {
                        russh::Sig::KILL => Signal::KILL,
                        russh::Sig::INT => Signal::INT,
                        russh::Sig::HUP => Signal::HUP,
                        russh::Sig::QUIT => Signal::QUIT,
                        _ => Signal::TERM,
                    };
                    send_signal(group, unix_signal);
                }
                Some(ChannelMsg::Close) | None => return,
                Some(_) => {}
            }
        }
    };
    let write_input = async move {
        if let Some(mut stdin) = stdin {
            let _ = tokio::io::copy(&mut pending_input, &mut stdin).await;
        }
        drop(pending_input);
        std::future::pending::<()>().await;
    };
    let status = async {
        forward_output.await;
        child.wait().await
    };
    tokio::select! {
        status = status => {
            let status = status.ok()?;
            // A signal is reported as 128 plus its number, as shells do.
            let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(255);
            u32::try_from(code).ok()
        }
        () = handle_messages => None,
        () = write_input => None,
    }
}
