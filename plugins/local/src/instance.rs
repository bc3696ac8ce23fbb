//! An instance, as the plugin has it: this executable, started again with [`WORD`].
//!
//! ```text
//! plugin --spawns--> [unshare: namespaces] --> instance (pid 1 of its namespace) --> commands
//! ```
//! The end of `unshare` is the end of all processes of the namespace. Without namespaces the server ends what it started, and
//! what left its session: it is the parent of those whose own parents have ended.

use std::path::Path;
use std::process::Stdio;
use std::sync::OnceLock;
use std::time::Duration;

use russh::keys::PrivateKey;
use russh::keys::ssh_key::LineEnding;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};

use crate::cgroup::Group;
use crate::outlive::{Free, Record};

/// The argument that makes the executable an instance.
pub(crate) const WORD: &str = "instance";
/// The next argument, of an instance that outlives the plugin.
pub(crate) const ALONE: &str = "alone";
/// What makes this executable the plugin.
static OWN_ARGUMENTS: OnceLock<&'static [&'static str]> = OnceLock::new();

/// Says which arguments make this executable the plugin. Only the first word counts.
pub(crate) fn set_own_arguments(own: &'static [&'static str]) {
    let _ = OWN_ARGUMENTS.set(own);
}

/// For an instance to end, with all that runs in it.
const END_LIMIT: Duration = Duration::from_secs(10);
/// For an instance to say where it listens.
const START_LIMIT: Duration = Duration::from_secs(30);

/// What makes the namespaces: util-linux, which every Debian has. The instance is killed with it.
const UNSHARE: [&str; 7] =
    ["unshare", "--user", "--map-current-user", "--pid", "--mount-proc", "--fork", "--kill-child=KILL"];

/// An instance that runs, as the plugin has it. Dropped, it ends, or goes on where it outlives the plugin.
pub(crate) struct Running {
    life: Life,
    pub(crate) reach: Reach,
}

/// How an instance is reached.
#[derive(Debug, Clone)]
pub(crate) struct Reach {
    /// Where it listens.
    pub(crate) port: u16,
    /// The private key that lets in.
    pub(crate) key: Vec<u8>,
    /// Fingerprint of its host key.
    pub(crate) host_key: String,
    /// Its process.
    pub(crate) pid: u32,
}

enum Life {
    /// As long as its standard input is open.
    Held { child: Child, alive: ChildStdin },
    /// Its own.
    Free(Free),
}

/// What to start.
pub(crate) struct Start<'a> {
    /// Its home.
    pub(crate) directory: &'a Path,
    /// What lets in.
    pub(crate) key: &'a PrivateKey,
    pub(crate) namespaces: bool,
    pub(crate) cgroup: Option<&'a Group>,
    /// It outlives the plugin, and this is where it is recorded.
    pub(crate) record: Option<&'a Path>,
}

/// Whether namespaces can be made here.
pub(crate) async fn namespaces_work() -> bool {
    let [program, arguments @ ..] = UNSHARE;
    let tried = Command::new(program).args(arguments).arg("true").stdin(Stdio::null()).stderr(Stdio::null()).status();
    tried.await.is_ok_and(|status| status.success())
}

impl Running {
    /// Starts an instance.
    ///
    /// # Errors
    /// What went wrong, as text.
    pub(crate) async fn start(start: Start<'_>) -> Result<Self, String> {
        let mut child = command(&start)?.spawn().map_err(|error| format!("cannot start an instance: {error}"))?;
        match begin(&start, &mut child).await {
            Ok((None, alive, reach)) => Ok(Self { life: Life::Held { child, alive }, reach }),
            // The runtime reaps the child when it ends.
            Ok((Some(free), _, reach)) => Ok(Self { life: Life::Free(free), reach }),
            Err(error) => {
                let _ = child.kill().await;
                Err(error)
            }
        }
    }

    /// An instance of an earlier start of the plugin.
    pub(crate) fn found(free: Free, reach: Reach) -> Self {
        Self { life: Life::Free(free), reach }
    }

    /// Waits until it has ended by itself. Cancel-safe.
    pub(crate) async fn ended(&mut self) {
        match &mut self.life {
            Life::Held { child, .. } => drop(child.wait().await),
            Life::Free(free) => free.ended().await,
        }
    }

    /// Ends it and all that runs in it.
    pub(crate) async fn end(self) {
        match self.life {
            Life::Held { mut child, alive } => {
                // Without namespaces the server ends all that runs in it when its stdin closes; then it is gone.
                drop(alive);
                if tokio::time::timeout(END_LIMIT, child.wait()).await.is_err() {
                    let _ = child.kill().await;
                }
            }
            Life::Free(free) => free.end().await,
        }
    }
}

/// Watches one that outlives the plugin, before it gets its key: with that it goes on, whatever becomes of the plugin.
async fn begin(start: &Start<'_>, child: &mut Child) -> Result<(Option<Free>, ChildStdin, Reach), String> {
    let free = match child.id().filter(|_| start.record.is_some()) {
        Some(pid) => {
            let free = Free::of(pid).map_err(|error| format!("cannot watch an instance: {error}"))?;
            Some(free.ok_or("the instance ended at once")?)
        }
        None => None,
    };
    let (stdin, reach) = come_up(start, child).await?;
    Ok((free, stdin, reach))
}

/// Gives it its key, and hears where it is reached.
async fn come_up(start: &Start<'_>, child: &mut Child) -> Result<(ChildStdin, Reach), String> {
    let (Some(mut stdin), Some(stdout), Some(pid)) = (child.stdin.take(), child.stdout.take(), child.id()) else {
        return Err("an instance without pipes".to_owned());
    };
    // It starts nothing before it has its key: all that runs in it is under its limits, and it has its record.
    if let Some(cgroup) = start.cgroup {
        cgroup.join(pid)?;
    }
    let private = start.key.to_openssh(LineEnding::LF).map_err(|error| error.to_string())?;
    let mut record = None;
    if let Some(path) = start.record {
        let unwritten = |error| format!("cannot write {}: {error}", path.display());
        let first = Record::of(pid, private.to_string()).map_err(unwritten)?;
        first.write(path).map_err(unwritten)?;
        record = Some((path, first));
    }
    let line = start.key.public_key().to_openssh().map_err(|error| error.to_string())?;
    stdin.write_all(format!("{line}\n").as_bytes()).await.map_err(|error| format!("the instance ended: {error}"))?;
    let mut said = String::new();
    let mut stdout = BufReader::new(stdout).take(128);
    match tokio::time::timeout(START_LIMIT, stdout.read_line(&mut said)).await {
        Err(_) => return Err(format!("the instance did not come up within {} s", START_LIMIT.as_secs())),
        Ok(Err(error)) => return Err(format!("the instance cannot be heard: {error}")),
        Ok(Ok(_)) => {}
    }
    let (port, host_key) = said.trim().split_once(' ').unwrap_or((said.trim(), ""));
    let port = port.parse().map_err(|_| format!("the instance said {said:?} instead of its port"))?;
    let reach = Reach { port, key: private.as_bytes().to_vec(), host_key: host_key.to_owned(), pid };
    if let Some((path, mut record)) = record {
        record.listens = Some((port, reach.host_key.clone()));
        record.write(path).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    Ok((stdin, reach))
}

fn command(start: &Start<'_>) -> Result<Command, String> {
    let own = std::env::current_exe().map_err(|error| format!("cannot find the plugin's executable: {error}"))?;
    let mut command = if start.namespaces {
        let [program, arguments @ ..] = UNSHARE;
        let mut command = Command::new(program);
        command.args(arguments).arg("--").arg(own);
        command
    } else {
        Command::new(own)
    };
    let outlives = start.record.is_some();
    command
        .args(own_arguments())
        .arg(WORD)
        .args(outlives.then_some(ALONE))
        .current_dir(start.directory)
        .env_clear()
        .env("HOME", start.directory)
        .env("PATH", std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into()))
        .env("USER", user())
        .env("LOGNAME", user())
        .env("SHELL", "/bin/sh")
        .env("LANG", "C.UTF-8")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(if outlives { Stdio::null() } else { Stdio::inherit() })
        .process_group(0)
        .kill_on_drop(!outlives);
    Ok(command)
}

/// What starts this executable as another part of an instance.
pub(crate) fn own_arguments() -> &'static [&'static str] {
    OWN_ARGUMENTS.get().copied().unwrap_or_default()
}

/// Who runs this, for a login.
pub(crate) fn user() -> String {
    std::env::var("USER").ok().filter(|user| !user.is_empty()).unwrap_or_else(|| "root".to_owned())
}
