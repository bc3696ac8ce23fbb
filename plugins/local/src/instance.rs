//! An instance: this executable, started again with [`WORD`]. It reads its one authorized key from stdin, serves SSH on
//! a port of the loopback interface, says which, and ends when stdin is closed.
//!
//! ```text
//! plugin --spawns--> [unshare: namespaces] --> instance (pid 1 of its namespace) --> commands
//! ```
//! The end of `unshare` is the end of all processes of the namespace; without namespaces the server ends what it started.

use std::path::Path;
use std::process::{ExitCode, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use russh::keys::{Algorithm, HashAlg, PrivateKey, PublicKey};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, ChildStdin, Command};

use crate::cgroup::Group;
use crate::server;

/// What makes this executable the plugin.
static OWN_ARGUMENTS: OnceLock<&'static [&'static str]> = OnceLock::new();

/// Says which arguments make this executable the plugin. Only the first word counts.
pub(crate) fn set_own_arguments(own: &'static [&'static str]) {
    let _ = OWN_ARGUMENTS.set(own);
}

/// The argument that makes the executable an instance.
pub(crate) const WORD: &str = "instance";
/// For an instance to say where it listens.
const START_LIMIT: Duration = Duration::from_secs(30);

/// What makes the namespaces: util-linux, which every Debian has. The instance is killed with it.
const UNSHARE: [&str; 7] =
    ["unshare", "--user", "--map-current-user", "--pid", "--mount-proc", "--fork", "--kill-child=KILL"];

/// An instance that runs, as the plugin has it. Dropped, it ends.
pub(crate) struct Running {
    child: Child,
    /// Its end is the instance's.
    _alive: ChildStdin,
    /// Where it listens.
    pub(crate) port: u16,
    /// Fingerprint of its host key.
    pub(crate) host_key: String,
}

/// Whether namespaces can be made here.
pub(crate) async fn namespaces_work() -> bool {
    let [program, arguments @ ..] = UNSHARE;
    let tried = Command::new(program).args(arguments).arg("true").stdin(Stdio::null()).stderr(Stdio::null()).status();
    tried.await.is_ok_and(|status| status.success())
}

impl Running {
    /// Starts an instance in `directory` that lets in whoever has the key.
    ///
    /// # Errors
    /// What went wrong, as text.
    pub(crate) async fn start(
        directory: &Path,
        key: &PublicKey,
        namespaces: bool,
        cgroup: Option<&Group>,
    ) -> Result<Self, String> {
        let own = std::env::current_exe().map_err(|error| format!("cannot find the plugin's executable: {error}"))?;
        let mut command = if namespaces {
            let [program, arguments @ ..] = UNSHARE;
            let mut command = Command::new(program);
            command.args(arguments).arg("--").arg(own);
            command
        } else {
            Command::new(own)
        };
        let mut child = command
            .args(*OWN_ARGUMENTS.get().unwrap_or(&[].as_slice()))
            .arg(WORD)
            .current_dir(directory)
            .env_clear()
            .env("HOME", directory)
            .env("PATH", std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into()))
            .env("USER", user())
            .env("LOGNAME", user())
            .env("SHELL", "/bin/sh")
            .env("LANG", "C.UTF-8")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| format!("cannot start an instance: {error}"))?;
        let (Some(mut stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("an instance without pipes".to_owned());
        };
        // It starts nothing before it has its key: all that runs in it is under its limits.
        if let (Some(cgroup), Some(pid)) = (cgroup, child.id()) {
            cgroup.join(pid)?;
        }
        let line = key.to_openssh().map_err(|error| error.to_string())?;
        stdin
            .write_all(format!("{line}\n").as_bytes())
            .await
            .map_err(|error| format!("the instance ended: {error}"))?;
        let mut said = String::new();
        let mut stdout = BufReader::new(stdout).take(128);
        match tokio::time::timeout(START_LIMIT, stdout.read_line(&mut said)).await {
            Err(_) => return Err(format!("the instance did not come up within {} s", START_LIMIT.as_secs())),
            Ok(Err(error)) => return Err(format!("the instance cannot be heard: {error}")),
            Ok(Ok(_)) => {}
        }
        let (port, host_key) = said.trim().split_once(' ').unwrap_or((said.trim(), ""));
        let port = port.parse().map_err(|_| format!("the instance said {said:?} instead of its port"))?;
        Ok(Self { child, _alive: stdin, port, host_key: host_key.to_owned() })
    }

    /// Its process; 0 once it has ended.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id().unwrap_or(0)
    }

    /// Waits until it has ended by itself. Cancel-safe.
    pub(crate) async fn ended(&mut self) {
        let _ = self.child.wait().await;
    }

    /// Ends it and all that runs in it.
    pub(crate) async fn end(mut self) {
        // Without namespaces the server ends its commands when its stdin closes; then it is gone.
        drop(self._alive);
        if tokio::time::timeout(Duration::from_secs(2), self.child.wait()).await.is_err() {
            let _ = self.child.kill().await;
        }
    }
}

/// Who runs this, for a login.
pub(crate) fn user() -> String {
    std::env::var("USER").ok().filter(|user| !user.is_empty()).unwrap_or_else(|| "root".to_owned())
}

/// The program of an instance.
pub(crate) fn main() -> ExitCode {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return ExitCode::FAILURE;
    };
    let served = runtime.block_on(serve());
    runtime.shutdown_background();
    match served {
        Ok(()) => ExitCode::SUCCESS,
        // The plugin reads nothing but the port; it sees the end.
        Err(_) => ExitCode::FAILURE,
    }
}

async fn serve() -> std::io::Result<()> {
    let mut stdin = BufReader::new(tokio::io::stdin());
    let mut line = String::new();
    stdin.read_line(&mut line).await?;
    let key = PublicKey::from_openssh(line.trim()).map_err(std::io::Error::other)?;
    let host_key =
        PrivateKey::random(&mut russh::keys::key::safe_rng(), Algorithm::Ed25519).map_err(std::io::Error::other)?;
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let mut stdout = tokio::io::stdout();
    let fingerprint = host_key.public_key().fingerprint(HashAlg::Sha256);
    stdout.write_all(format!("{} {fingerprint}\n", listener.local_addr()?.port()).as_bytes()).await?;
    stdout.flush().await?;
    let commands = server::Commands::default();
    tokio::select! {
        () = server::accept(listener, host_key, key, commands.clone()) => {}
        // The plugin holds the other end; when that closes, nobody wants this instance.
        _ = stdin.read_line(&mut line) => {}
    }
    commands.kill_all();
    Ok(())
}
