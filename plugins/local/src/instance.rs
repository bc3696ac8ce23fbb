//! Instances from the point of view of the plugin: this executable, started again with [`INSTANCE_ARG`].
//!
//! ```text
//! plugin --spawns--> [unshare: namespaces] --> instance (pid 1 of its namespace) --> commands
//! ```
//! When `unshare` ends, all processes of the namespace end. Without namespaces, the server kills the processes that it
//! started and their orphaned descendants, whose parent it becomes.

use std::path::Path;
use std::process::Stdio;
use std::sync::OnceLock;
use std::time::Duration;

use russh::keys::PrivateKey;
use russh::keys::ssh_key::LineEnding;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};

use crate::cgroup::InstanceCgroup;
use crate::persistent::{DetachedProcess, InstanceRecord};

/// First argument of the executable as an instance.
pub(crate) const INSTANCE_ARG: &str = "instance";
/// Second argument, for an instance that persists when the plugin ends.
pub(crate) const PERSISTENT_ARG: &str = "persistent";
/// Arguments that make this executable the plugin.
static OWN_ARGUMENTS: OnceLock<&'static [&'static str]> = OnceLock::new();

/// Sets the arguments that make this executable the plugin. Only the first call has an effect.
pub(crate) fn set_own_arguments(own: &'static [&'static str]) {
    let _ = OWN_ARGUMENTS.set(own);
}

/// Timeout for stopping an instance with all its processes.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout until an instance reports its port.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Command that creates the namespaces: util-linux, which is part of every Debian. The instance is killed when it ends.
const UNSHARE: [&str; 7] =
    ["unshare", "--user", "--map-current-user", "--pid", "--mount-proc", "--fork", "--kill-child=KILL"];

/// A running instance. If this is dropped, the instance ends, unless it is persistent.
pub(crate) struct Running {
    life: Lifetime,
    pub(crate) reach: Reach,
}

/// Connection details of an instance.
#[derive(Debug, Clone)]
pub(crate) struct Reach {
    /// Port on which it listens.
    pub(crate) port: u16,
    /// Private key for the login.
    pub(crate) key: Vec<u8>,
    /// Fingerprint of its host key.
    pub(crate) host_key: String,
    /// Process ID.
    pub(crate) pid: u32,
}

enum Lifetime {
    /// The instance runs while its standard input is open.
    Attached { child: Child, alive: ChildStdin },
    /// The instance runs independently of the plugin.
    Detached(DetachedProcess),
}

/// Parameters for starting an instance.
pub(crate) struct Start<'a> {
    /// Home directory.
    pub(crate) directory: &'a Path,
    /// Key for the login.
    pub(crate) key: &'a PrivateKey,
    pub(crate) namespaces: bool,
    pub(crate) cgroup: Option<&'a InstanceCgroup>,
    /// Path of the record of a persistent instance.
    pub(crate) record: Option<&'a Path>,
}

/// Returns true if namespaces can be created.
pub(crate) async fn namespaces_work() -> bool {
    let [program, arguments @ ..] = UNSHARE;
    let tried = Command::new(program).args(arguments).arg("true").stdin(Stdio::null()).stderr(Stdio::null()).status();
    tried.await.is_ok_and(|status| status.success())
}

impl Running {
    /// Starts an instance.
    ///
    /// # Errors
    /// Returns a description of the failure.
    pub(crate) async fn start(start: Start<'_>) -> Result<Self, String> {
        let mut child = command(&start)?.spawn().map_err(|error| format!("failed to start an instance: {error}"))?;
        match begin(&start, &mut child).await {
            Ok((None, alive, reach)) => Ok(Self { life: Lifetime::Attached { child, alive }, reach }),
            // The runtime reaps the child when it ends.
            Ok((Some(free), _, reach)) => Ok(Self { life: Lifetime::Detached(free), reach }),
            Err(error) => {
                let _ = child.kill().await;
                Err(error)
            }
        }
    }

    /// Attaches to an instance of an earlier plugin process.
    pub(crate) fn attach(free: DetachedProcess, reach: Reach) -> Self {
        Self { life: Lifetime::Detached(free), reach }
    }

    /// Waits until the instance has ended. Cancel-safe.
    pub(crate) async fn ended(&mut self) {
        match &mut self.life {
            Lifetime::Attached { child, .. } => drop(child.wait().await),
            Lifetime::Detached(free) => free.ended().await,
        }
    }

    /// Stops the instance and all its processes.
    pub(crate) async fn end(self) {
        match self.life {
            Lifetime::Attached { mut child, alive } => {
                // Without namespaces, the server kills all processes when its stdin is closed, and exits.
                drop(alive);
                if tokio::time::timeout(STOP_TIMEOUT, child.wait()).await.is_err() {
                    let _ = child.kill().await;
                }
            }
            Lifetime::Detached(free) => free.end().await,
        }
    }
}

/// Watches a persistent instance before it gets its key. With the key, it continues without the plugin.
async fn begin(start: &Start<'_>, child: &mut Child) -> Result<(Option<DetachedProcess>, ChildStdin, Reach), String> {
    let free = match child.id().filter(|_| start.record.is_some()) {
        Some(pid) => {
            let free = DetachedProcess::of(pid).map_err(|error| format!("failed to watch an instance: {error}"))?;
            Some(free.ok_or("the instance exited immediately")?)
        }
        None => None,
    };
    let (stdin, reach) = wait_listening(start, child).await?;
    Ok((free, stdin, reach))
}

/// Sends the key to the instance, and waits for its address.
async fn wait_listening(start: &Start<'_>, child: &mut Child) -> Result<(ChildStdin, Reach), String> {
    let (Some(mut stdin), Some(stdout), Some(pid)) = (child.stdin.take(), child.stdout.take(), child.id()) else {
        return Err("missing pipes of the instance".to_owned());
    };
    // The instance starts no processes before it gets its key, so all of them are limited, and the record exists.
    if let Some(cgroup) = start.cgroup {
        cgroup.join(pid)?;
    }
    let private = start.key.to_openssh(LineEnding::LF).map_err(|error| error.to_string())?;
    let mut record = None;
    if let Some(path) = start.record {
        let unwritten = |error| format!("failed to write {}: {error}", path.display());
        let first = InstanceRecord::of(pid, private.to_string()).map_err(unwritten)?;
        first.write(path).map_err(unwritten)?;
        record = Some((path, first));
    }
    let line = start.key.public_key().to_openssh().map_err(|error| error.to_string())?;
    stdin.write_all(format!("{line}\n").as_bytes()).await.map_err(|error| format!("the instance exited: {error}"))?;
    let mut said = String::new();
    let mut stdout = BufReader::new(stdout).take(128);
    match tokio::time::timeout(START_TIMEOUT, stdout.read_line(&mut said)).await {
        Err(_) => return Err(format!("the instance did not start within {} s", START_TIMEOUT.as_secs())),
        Ok(Err(error)) => return Err(format!("failed to read from the instance: {error}")),
        Ok(Ok(_)) => {}
    }
    let (port, host_key) = said.trim().split_once(' ').unwrap_or((said.trim(), ""));
    let port =
        port.parse().map_err(|_| format!("invalid output of the instance: expected its port, attach {said:?}"))?;
    let reach = Reach { port, key: private.as_bytes().to_vec(), host_key: host_key.to_owned(), pid };
    if let Some((path, mut record)) = record {
        record.listens = Some((port, reach.host_key.clone()));
        record.write(path).map_err(|error| format!("failed to write {}: {error}", path.display()))?;
    }
    Ok((stdin, reach))
}

fn command(start: &Start<'_>) -> Result<Command, String> {
    let own = std::env::current_exe().map_err(|error| format!("failed to find the plugin's executable: {error}"))?;
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
        .arg(INSTANCE_ARG)
        .args(outlives.then_some(PERSISTENT_ARG))
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

/// Returns the arguments that make this executable the plugin.
pub(crate) fn own_arguments() -> &'static [&'static str] {
    OWN_ARGUMENTS.get().copied().unwrap_or_default()
}

/// Returns the name of the current user.
pub(crate) fn user() -> String {
    std::env::var("USER").ok().filter(|user| !user.is_empty()).unwrap_or_else(|| "root".to_owned())
}
