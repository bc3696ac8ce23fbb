//! The instance process: reads its authorized key from stdin, serves SSH on a port of the loopback interface, prints
//! the port and the fingerprint of its host key, and exits when stdin is closed.
//!
//! A persistent instance ([`PERSISTENT_ARG`]) does not exit when stdin is closed. It runs the server as a separate
//! process ([`SERVER_ARG`]) and restarts the server if it exits. Connections are then lost, but processes that the
//! server started continue.

use std::os::fd::{AsFd, OwnedFd};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use russh::keys::ssh_key::LineEnding;
use russh::keys::{Algorithm, HashAlg, PrivateKey, PublicKey};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::signal::unix::SignalKind;

use crate::instance::{INSTANCE_ARG, PERSISTENT_ARG, plugin_arguments};
use crate::{orphans, server};

/// Argument of the server process of a persistent instance.
const SERVER_ARG: &str = "sshd";
/// Delay before a server that exited is restarted.
const RESTART_DELAY: Duration = Duration::from_millis(20);
/// Last line of a private key.
const KEY_END: &str = "-----END OPENSSH PRIVATE KEY-----";

/// `arguments` are those after [`INSTANCE_ARG`].
pub(crate) fn main(arguments: &[String]) -> ExitCode {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return ExitCode::FAILURE;
    };
    let result = runtime.block_on(async {
        match arguments.first().map(String::as_str) {
            Some(PERSISTENT_ARG) => run_persistent().await,
            Some(SERVER_ARG) => run_server().await,
            _ => serve().await,
        }
    });
    runtime.shutdown_background();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The plugin does not read error messages, but detects the exit.
        Err(_) => ExitCode::FAILURE,
    }
}

struct SshServer {
    authorized: PublicKey,
    host_key: PrivateKey,
    listener: TcpListener,
}

impl SshServer {
    /// Reads the authorized key from `stdin`, and prints the port and the fingerprint of the host key.
    async fn start<R: AsyncRead + Unpin>(stdin: &mut BufReader<R>) -> std::io::Result<Self> {
        let mut line = String::new();
        stdin.read_line(&mut line).await?;
        let authorized = PublicKey::from_openssh(line.trim()).map_err(std::io::Error::other)?;
        let host_key =
            PrivateKey::random(&mut russh::keys::key::safe_rng(), Algorithm::Ed25519).map_err(std::io::Error::other)?;
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let mut stdout = tokio::io::stdout();
        let fingerprint = host_key.public_key().fingerprint(HashAlg::Sha256);
        let port = listener.local_addr()?.port();
        stdout.write_all(format!("{port} {fingerprint}\n").as_bytes()).await?;
        stdout.flush().await?;
        Ok(Self { authorized, host_key, listener })
    }

    /// Serves until `stdin` is closed.
    async fn serve<R: AsyncRead + Unpin>(self, stdin: &mut BufReader<R>, commands: server::Commands) {
        let mut line = String::new();
        tokio::select! {
            () = server::accept(self.listener, self.host_key, self.authorized, commands.clone()) => {}
            _ = stdin.read_line(&mut line) => {}
        }
        commands.kill_all();
    }
}

async fn serve() -> std::io::Result<()> {
    let mut stdin = BufReader::new(tokio::io::stdin());
    // If the plugin is killed, the kernel continues a suspended instance, and sends it SIGHUP. The instance must not
    // die of that signal, because it still has to kill its processes.
    let _hangups = tokio::signal::unix::signal(SignalKind::hangup())?;
    let server = SshServer::start(&mut stdin).await?;
    orphans::adopt()?;
    let commands = server::Commands::default();
    tokio::spawn(orphans::reap(commands.clone()));
    server.serve(&mut stdin, commands).await;
    orphans::kill_all();
    Ok(())
}

/// Runs until it is killed together with its namespace.
async fn run_persistent() -> std::io::Result<()> {
    // In the plugin's session, a process group with suspended processes would get SIGHUP when the plugin exits.
    rustix::process::setsid()?;
    let server = SshServer::start(&mut BufReader::new(tokio::io::stdin())).await?;
    let listener = server.listener.into_std()?;
    let host_key = server.host_key.to_openssh(LineEnding::LF).map_err(std::io::Error::other)?;
    let authorized = server.authorized.to_openssh().map_err(std::io::Error::other)?;
    // The first process of the namespace becomes the parent of all orphans.
    let server_processes = server::Commands::default();
    tokio::spawn(orphans::reap(server_processes.clone()));
    let start_server = || {
        // The socket stays open, so that new connections wait during a restart.
        let socket = OwnedFd::from(listener.try_clone()?);
        // Works even if the executable file was replaced.
        let mut command = Command::new("/proc/self/exe");
        command.arg0(std::env::args_os().next().unwrap_or_default());
        command.args(plugin_arguments()).args([INSTANCE_ARG, SERVER_ARG]).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::from(socket)).stderr(Stdio::null()).spawn()
    };
    loop {
        let Ok(mut child) = start_server() else {
            // For example, the limit of processes or of open files was reached.
            tokio::time::sleep(RESTART_DELAY).await;
            continue;
        };
        let group = server_processes.register(&child);
        // The pipe must stay open until the server has exited.
        let mut keys = child.stdin.take();
        if let Some(keys) = &mut keys {
            let _ = keys.write_all(format!("{authorized}\n{}\n", host_key.trim_end()).as_bytes()).await;
        }
        let _ = child.wait().await;
        server_processes.unregister(group);
        tokio::time::sleep(RESTART_DELAY).await;
    }
}

/// Reads the keys from stdin; stdout is the listening socket.
async fn run_server() -> std::io::Result<()> {
    let mut stdin = BufReader::new(tokio::io::stdin());
    let (mut authorized, mut host_key) = (String::new(), String::new());
    stdin.read_line(&mut authorized).await?;
    while !host_key.trim_end().ends_with(KEY_END) {
        if stdin.read_line(&mut host_key).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
    let listener = std::net::TcpListener::from(std::io::stdout().as_fd().try_clone_to_owned()?);
    let server = SshServer {
        authorized: PublicKey::from_openssh(authorized.trim()).map_err(std::io::Error::other)?,
        host_key: PrivateKey::from_openssh(host_key.as_bytes()).map_err(std::io::Error::other)?,
        listener: TcpListener::from_std(listener)?,
    };
    server.serve(&mut stdin, server::Commands::default()).await;
    Ok(())
}
