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

/// Pause after a connection could not be accepted.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Process groups of the running commands.
#[derive(Debug, Clone, Default)]
pub struct Commands(Arc<Mutex<HashSet<i32>>>);

impl Commands {
    fn change(&self, change: impl FnOnce(&mut HashSet<i32>)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Registers a command. Its process leads its group.
    pub(crate) fn begin(&self, child: &Child) -> i32 {
        let group = child.id().and_then(|id| i32::try_from(id).ok()).unwrap_or(0);
        self.change(|groups| {
            groups.insert(group);
        });
        group
    }

    /// Removes a command that has ended and was reaped.
    pub(crate) fn ended(&self, group: i32) {
        self.change(|groups| {
            groups.remove(&group);
        });
    }

    /// Returns true if the process was started as a command and has not been reaped.
    pub(crate) fn has(&self, pid: i32) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&pid)
    }

    /// Kills all commands.
    pub fn kill_all(&self) {
        self.change(|groups| groups.iter().for_each(|group| signal(*group, Signal::KILL)));
    }
}

fn signal(group: i32, signal: Signal) {
    if let Some(group) = Pid::from_raw(group) {
        let _ = kill_process_group(group, signal);
    }
}

/// Serves until it is dropped.
pub async fn accept(listener: TcpListener, host_key: PrivateKey, authorized: PublicKey, commands: Commands) {
    let config = Arc::new(Config { keys: vec![host_key], nodelay: true, ..Config::default() });
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // The client may have disconnected, or there may be too many open files. Running commands continue.
                tracing::warn!(%error, "failed to accept a connection");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            }
        };
        let _ = stream.set_nodelay(true);
        let config = Arc::clone(&config);
        let login = Login { authorized: authorized.clone(), commands: commands.clone(), channels: HashMap::new() };
        tokio::spawn(async move {
            // A broken connection affects only itself.
            if let Ok(session) = russh::server::run_stream(config, stream, login).await {
                let _ = session.await;
            }
        });
    }
}

/// A connection.
struct Login {
    authorized: PublicKey,
    commands: Commands,
    /// Sessions without a command.
    channels: HashMap<ChannelId, Channel<Msg>>,
}

impl Handler for Login {
    type Error = russh::Error;

    async fn auth_publickey(&mut self, _: &str, key: VerifiedPublicKey<'_>) -> Result<Auth, russh::Error> {
        let known = key.public_key.key_data() == self.authorized.key_data();
        Ok(if known { Auth::Accept } else { Auth::reject() })
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
                // Registered before anything can observe its end.
                let group = self.commands.begin(&child);
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
        // Dropping the reply refuses the channel.
        if let Ok(stream) = TcpStream::connect((host, port)).await {
            reply.accept().await;
            tokio::spawn(join(channel, stream));
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
            tokio::spawn(join(channel, stream));
        }
        Ok(())
    }
}

async fn join(channel: Channel<Msg>, mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let mut channel = channel.into_stream();
    let _ = tokio::io::copy_bidirectional(&mut channel, &mut stream).await;
}

/// Runs a command until its exit status was sent. Its process group is killed when the command or its channel ends.
async fn run(mut child: Child, group: i32, channel: Channel<Msg>, commands: Commands) {
    let (read, write) = channel.split();
    let exit = finish(&mut child, &write, group, read).await;
    signal(group, Signal::KILL);
    // The client disconnected, so the command was just killed.
    let _ = child.wait().await;
    commands.ended(group);
    if let Some(code) = exit {
        let _ = write.eof().await;
        let _ = write.exit_status(code).await;
    }
    let _ = write.close().await;
}

/// Forwards input and output of a command, and waits for its end. `None` means that the client disconnected.
async fn finish(
    child: &mut Child,
    write: &ChannelWriteHalf<Msg>,
    group: i32,
    mut read: ChannelReadHalf,
) -> Option<u32> {
    let (mut stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let print = async {
        let out = async {
            if let Some(stdout) = stdout {
                let _ = write.data(stdout).await;
            }
        };
        let err = async {
            if let Some(stderr) = stderr {
                let _ = write.extended_data(1, stderr).await;
            }
        };
        tokio::join!(out, err);
    };
    let listen = async {
        loop {
            match read.wait().await {
                Some(ChannelMsg::Data { data }) => {
                    let written = match &mut stdin {
                        Some(to) => to.write_all(&data).await,
                        None => Ok(()),
                    };
                    if written.is_err() {
                        stdin = None;
                    }
                }
                Some(ChannelMsg::Eof) => stdin = None,
                Some(ChannelMsg::Signal { signal: name }) => {
                    let known = match name {
                        russh::Sig::KILL => Signal::KILL,
                        russh::Sig::INT => Signal::INT,
                        russh::Sig::HUP => Signal::HUP,
                        russh::Sig::QUIT => Signal::QUIT,
                        _ => Signal::TERM,
                    };
                    signal(group, known);
                }
                Some(ChannelMsg::Close) | None => return,
                Some(_) => {}
            }
        }
    };
    let status = async {
        print.await;
        child.wait().await
    };
    tokio::select! {
        status = status => {
            let status = status.ok()?;
            // Exit status for a signal, as shells report it.
            let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(255);
            u32::try_from(code).ok()
        }
        () = listen => None,
    }
}
