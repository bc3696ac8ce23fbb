//! The instance process. It reads its authorized key from stdin, serves SSH on a port of the loopback interface, prints
//! the port, and exits when stdin is closed.
//!
//! A persistent instance ([`PERSISTENT_ARG`]) continues instead. Like a machine, it runs the server as a separate
//! process ([`SERVER_ARG`]) and restarts it if it ends. Connections are lost then, but processes that were started over
//! them continue.

use std::os::fd::{AsFd, OwnedFd};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use russh::keys::ssh_key::LineEnding;
use russh::keys::{Algorithm, HashAlg, PrivateKey, PublicKey};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::Command;

use crate::instance::{INSTANCE_ARG, PERSISTENT_ARG, own_arguments};
use crate::{orphans, server};

/// Argument of the server process of a persistent instance.
const SERVER_ARG: &str = "sshd";
/// Pause before a server that ended is restarted.
const RESTART_DELAY: Duration = Duration::from_millis(20);
/// Last line of a private key.
const KEY_END: &str = "-----END OPENSSH PRIVATE KEY-----";

/// Runs the instance with the arguments after [`INSTANCE_ARG`].
pub(crate) fn main(arguments: &[String]) -> ExitCode {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return ExitCode::FAILURE;
    };
    let served = runtime.block_on(async {
        match arguments.first().map(String::as_str) {
            Some(PERSISTENT_ARG) => run_persistent().await,
            Some(SERVER_ARG) => serve_apart().await,
            _ => serve().await,
        }
    });
    runtime.shutdown_background();
    match served {
        Ok(()) => ExitCode::SUCCESS,
        // The plugin reads only the port, and notices the exit.
        Err(_) => ExitCode::FAILURE,
    }
}

/// Components of an instance.
struct Machine {
    authorized: PublicKey,
    host_key: PrivateKey,
    listener: TcpListener,
}

impl Machine {
    /// Reads the key from the plugin, and reports the address.
    async fn boot<R: AsyncRead + Unpin>(stdin: &mut BufReader<R>) -> std::io::Result<Self> {
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

    /// Serves until `end` is closed.
    async fn serve<R: AsyncRead + Unpin>(self, end: &mut BufReader<R>, commands: server::Commands) {
        let mut line = String::new();
        tokio::select! {
            () = server::accept(self.listener, self.host_key, self.authorized, commands.clone()) => {}
            _ = end.read_line(&mut line) => {}
        }
        commands.kill_all();
    }
}

/// The plugin holds the other end of stdin. When it is closed, the instance is not needed anymore.
async fn serve() -> std::io::Result<()> {
    let mut stdin = BufReader::new(tokio::io::stdin());
    let machine = Machine::boot(&mut stdin).await?;
    orphans::adopt()?;
    let commands = server::Commands::default();
    tokio::spawn(orphans::reap(commands.clone()));
    machine.serve(&mut stdin, commands).await;
    orphans::end_all();
    Ok(())
}

/// Runs until it is killed together with its namespace.
async fn run_persistent() -> std::io::Result<()> {
    // In the plugin's session, a process group with stopped (suspended) processes would get SIGHUP when the plugin
    // ends.
    rustix::process::setsid()?;
    let machine = Machine::boot(&mut BufReader::new(tokio::io::stdin())).await?;
    let listener = machine.listener.into_std()?;
    let host_key = machine.host_key.to_openssh(LineEnding::LF).map_err(std::io::Error::other)?;
    let authorized = machine.authorized.to_openssh().map_err(std::io::Error::other)?;
    // The first process of the namespace becomes the parent of all orphans.
    let own = server::Commands::default();
    tokio::spawn(orphans::reap(own.clone()));
    let serve = || {
        // The socket is kept, so that connections wait instead of being refused.
        let socket = OwnedFd::from(listener.try_clone()?);
        // Works even if the file of the executable was replaced.
        let mut command = Command::new("/proc/self/exe");
        command.arg0(std::env::args_os().next().unwrap_or_default());
        command.args(own_arguments()).args([INSTANCE_ARG, SERVER_ARG]).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::from(socket)).stderr(Stdio::null()).spawn()
    };
    loop {
        let Ok(mut server) = serve() else {
            // No process or file could be created. Running processes continue.
            tokio::time::sleep(RESTART_DELAY).await;
            continue;
        };
        let group = own.begin(&server);
        // Kept open until the server has ended.
        let mut keys = server.stdin.take();
        if let Some(keys) = &mut keys {
            let _ = keys.write_all(format!("{authorized}\n{}\n", host_key.trim_end()).as_bytes()).await;
        }
        let _ = server.wait().await;
        own.ended(group);
        tokio::time::sleep(RESTART_DELAY).await;
    }
}

/// Runs the server only: keys are on stdin, and stdout is the listening socket.
async fn serve_apart() -> std::io::Result<()> {
    let mut stdin = BufReader::new(tokio::io::stdin());
    let (mut authorized, mut host_key) = (String::new(), String::new());
    stdin.read_line(&mut authorized).await?;
    while !host_key.trim_end().ends_with(KEY_END) {
        if stdin.read_line(&mut host_key).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
    let listener = std::net::TcpListener::from(std::io::stdout().as_fd().try_clone_to_owned()?);
    let machine = Machine {
        authorized: PublicKey::from_openssh(authorized.trim()).map_err(std::io::Error::other)?,
        host_key: PrivateKey::from_openssh(host_key.as_bytes()).map_err(std::io::Error::other)?,
        listener: TcpListener::from_std(listener)?,
    };
    machine.serve(&mut stdin, server::Commands::default()).await;
    Ok(())
}
