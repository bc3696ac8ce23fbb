//! The program of an instance. It reads its one authorized key from stdin, serves SSH on a port of the loopback interface,
//! says which, and ends when stdin is closed.
//!
//! One that outlives the plugin ([`ALONE`]) goes on then. It has its server as a process apart ([`SERVER`]), as machines
//! have, and starts it again when that ends: connections break then, and what was started over them goes on.

use std::os::fd::{AsFd, OwnedFd};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use russh::keys::ssh_key::LineEnding;
use russh::keys::{Algorithm, HashAlg, PrivateKey, PublicKey};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::Command;

use crate::instance::{ALONE, WORD, own_arguments};
use crate::{orphans, server};

/// The next argument, of the server of such an instance.
const SERVER: &str = "sshd";
/// Before a server that ended is started again.
const AGAIN: Duration = Duration::from_millis(20);
/// The last line of a private key.
const KEY_END: &str = "-----END OPENSSH PRIVATE KEY-----";

/// The whole program, with the arguments after [`WORD`].
pub(crate) fn main(arguments: &[String]) -> ExitCode {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return ExitCode::FAILURE;
    };
    let served = runtime.block_on(async {
        match arguments.first().map(String::as_str) {
            Some(ALONE) => alone().await,
            Some(SERVER) => serve_apart().await,
            _ => serve().await,
        }
    });
    runtime.shutdown_background();
    match served {
        Ok(()) => ExitCode::SUCCESS,
        // The plugin reads nothing but the port; it sees the end.
        Err(_) => ExitCode::FAILURE,
    }
}

/// What an instance is made of.
struct Machine {
    authorized: PublicKey,
    host_key: PrivateKey,
    listener: TcpListener,
}

impl Machine {
    /// Takes the key from the plugin, and tells it where to reach this.
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

/// The plugin holds the other end of stdin; when that closes, nobody wants this instance.
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

/// Until it is killed, and with it its namespace.
async fn alone() -> std::io::Result<()> {
    // Of the plugin's session, a group with processes that are stopped (suspended) would be hung up when the plugin ends.
    rustix::process::setsid()?;
    let machine = Machine::boot(&mut BufReader::new(tokio::io::stdin())).await?;
    let listener = machine.listener.into_std()?;
    let host_key = machine.host_key.to_openssh(LineEnding::LF).map_err(std::io::Error::other)?;
    let authorized = machine.authorized.to_openssh().map_err(std::io::Error::other)?;
    // The first process of its namespace is everybody's parent at last.
    let own = server::Commands::default();
    tokio::spawn(orphans::reap(own.clone()));
    let serve = || {
        // The socket stays the same, so no connection is refused meanwhile: it waits.
        let socket = OwnedFd::from(listener.try_clone()?);
        // Also where another file has this one's place by now.
        let mut command = Command::new("/proc/self/exe");
        command.arg0(std::env::args_os().next().unwrap_or_default());
        command.args(own_arguments()).args([WORD, SERVER]).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::from(socket)).stderr(Stdio::null()).spawn()
    };
    loop {
        let Ok(mut server) = serve() else {
            // No process, no file: what runs here goes on meanwhile.
            tokio::time::sleep(AGAIN).await;
            continue;
        };
        let group = own.begin(&server);
        // Held open until the server has ended.
        let mut keys = server.stdin.take();
        if let Some(keys) = &mut keys {
            let _ = keys.write_all(format!("{authorized}\n{}\n", host_key.trim_end()).as_bytes()).await;
        }
        let _ = server.wait().await;
        own.ended(group);
        tokio::time::sleep(AGAIN).await;
    }
}

/// The server alone: keys from stdin, and stdout is the socket that listens.
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
