//! Starts and stops instances. An instance is a process of this executable with [`INSTANCE_ARG`].
//!
//! ```text
//! plugin --spawns--> [unshare: namespaces] --> instance (pid 1 of its namespace) --> commands
//! ```
//! When `unshare` ends, all processes of the namespace end. Without namespaces, the instance kills the processes that
//! it started and their orphaned descendants.

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

/// First argument that makes this executable an instance.
pub(crate) const INSTANCE_ARG: &str = "instance";
/// Second argument of a persistent instance.
pub(crate) const PERSISTENT_ARG: &str = "persistent";
/// First arguments of the plugin's command line, which select the plugin in an executable with several plugins.
static PLUGIN_ARGUMENTS: OnceLock<&'static [&'static str]> = OnceLock::new();

/// Sets the arguments that select the plugin in an executable with several plugins. Only the first call has an effect.
pub(crate) fn set_plugin_arguments(arguments: &'static [&'static str]) {
    let _ = PLUGIN_ARGUMENTS.set(arguments);
}

const STOP_TIMEOUT: Duration = Duration::from_secs(10);
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Command of util-linux that creates the namespaces. The instance is killed when the command ends.
const UNSHARE: [&str; 7] =
    ["unshare", "--user", "--map-current-user", "--pid", "--mount-proc", "--fork", "--kill-child=KILL"];

/// A running instance. Dropping it ends the instance, unless the instance is persistent.
pub(crate) struct Running {
    lifetime: Lifetime,
    pub(crate) connection: ConnectionDetails,
}

#[derive(Debug, Clone)]
pub(crate) struct ConnectionDetails {
    /// Port on which the instance listens.
    pub(crate) port: u16,
    /// Private key for the login.
    pub(crate) key: Vec<u8>,
    /// Fingerprint of the instance's host key.
    pub(crate) host_key: String,
    pub(crate) pid: u32,
}

enum Lifetime {
    /// The instance runs while `stdin` is open.
    Attached { child: Child, stdin: ChildStdin },
    /// The instance runs independently of the plugin.
    Detached(DetachedProcess),
}

/// Parameters for starting an instance.
pub(crate) struct Start<'a> {
    pub(crate) directory: &'a Path,
    /// Key for the login.
    pub(crate) key: &'a PrivateKey,
    pub(crate) namespaces: bool,
    pub(crate) cgroup: Option<&'a InstanceCgroup>,
    /// Path of the record of a persistent instance.
    pub(crate) record: Option<&'a Path>,
}

/// Returns the message that namespaces are required but cannot be created. It names the setting that requires them:
/// `persistent_instances` if `is_persistent` is true, otherwise `isolation`.
pub(crate) fn no_namespaces_error(is_persistent: bool) -> String {
    let (key, remedy) = match is_persistent {
        true => ("persistent_instances", "set persistent_instances = false"),
        false => ("isolation = \"namespaces\"", "use \"auto\""),
    };
    format!(
        "{key} requires user namespaces and unshare (util-linux), but namespaces cannot be created; {remedy}, install unshare, or allow user \
         namespaces (sysctl kernel.unprivileged_userns_clone)"
    )
}

pub(crate) async fn can_create_namespaces() -> bool {
    let [program, arguments @ ..] = UNSHARE;
    let status = Command::new(program).args(arguments).arg("true").stdin(Stdio::null()).stderr(Stdio::null()).status();
    status.await.is_ok_and(|status| status.success())
}

impl Running {
    /// # Errors
    /// A description of the failure.
    pub(crate) async fn start(start: Start<'_>) -> Result<Self, String> {
        let mut child = command(&start)?.spawn().map_err(|error| format!("failed to start an instance: {error}"))?;
        match set_up(&start, &mut child).await {
            Ok((None, stdin, connection)) => Ok(Self { lifetime: Lifetime::Attached { child, stdin }, connection }),
            // `child` is dropped here. Tokio reaps the process when it ends.
            Ok((Some(process), _, connection)) => Ok(Self { lifetime: Lifetime::Detached(process), connection }),
            Err(error) => {
                let _ = child.kill().await;
                Err(error)
            }
        }
    }

    /// Attaches to an instance of an earlier plugin process.
    pub(crate) fn attach(process: DetachedProcess, connection: ConnectionDetails) -> Self {
        Self { lifetime: Lifetime::Detached(process), connection }
    }

    /// Cancel-safe.
    pub(crate) async fn wait_exit(&mut self) {
        match &mut self.lifetime {
            Lifetime::Attached { child, .. } => drop(child.wait().await),
            Lifetime::Detached(process) => process.wait_exit().await,
        }
    }

    pub(crate) async fn stop(self) {
        match self.lifetime {
            Lifetime::Attached { mut child, stdin } => {
                // Without namespaces, the server kills all processes when its stdin is closed, and exits.
                drop(stdin);
                if tokio::time::timeout(STOP_TIMEOUT, child.wait()).await.is_err() {
                    let _ = child.kill().await;
                }
            }
            Lifetime::Detached(process) => process.kill().await,
        }
    }
}

/// Gives the instance its key, and waits until it listens.
///
/// Also returns the process of a persistent instance. It is opened before the instance gets its key, because an
/// instance with a key runs independently of the plugin.
async fn set_up(
    start: &Start<'_>,
    child: &mut Child,
) -> Result<(Option<DetachedProcess>, ChildStdin, ConnectionDetails), String> {
    let process = match child.id().filter(|_| start.record.is_some()) {
        Some(pid) => {
            let process =
                DetachedProcess::open(pid).map_err(|error| format!("failed to watch an instance: {error}"))?;
            Some(process.ok_or("the instance exited immediately")?)
        }
        None => None,
    };
    let (stdin, connection) = wait_listening(start, child).await?;
    Ok((process, stdin, connection))
}

async fn wait_listening(start: &Start<'_>, child: &mut Child) -> Result<(ChildStdin, ConnectionDetails), String> {
    let (Some(mut stdin), Some(stdout), Some(pid)) = (child.stdin.take(), child.stdout.take(), child.id()) else {
        return Err("missing pipes of the instance".to_owned());
    };
    // The instance starts no processes before it gets its key. The limits thus apply to all its processes, and the
    // record exists before them.
    if let Some(cgroup) = start.cgroup {
        cgroup.add_process(pid)?;
    }
    let private = start.key.to_openssh(LineEnding::LF).map_err(|error| error.to_string())?;
    let mut record = None;
    if let Some(path) = start.record {
        let write_error = |error| format!("failed to write {}: {error}", path.display());
        let new_record = InstanceRecord::new(pid, private.to_string()).map_err(write_error)?;
        new_record.write(path).map_err(write_error)?;
        record = Some((path, new_record));
    }
    let public_key = start.key.public_key().to_openssh().map_err(|error| error.to_string())?;
    stdin
        .write_all(format!("{public_key}\n").as_bytes())
        .await
        .map_err(|error| format!("the instance exited: {error}"))?;
    let mut line = String::new();
    let mut stdout = BufReader::new(stdout).take(128);
    match tokio::time::timeout(START_TIMEOUT, stdout.read_line(&mut line)).await {
        Err(_) => return Err(format!("the instance did not start within {} s", START_TIMEOUT.as_secs())),
        Ok(Err(error)) => return Err(format!("failed to read from the instance: {error}")),
        Ok(Ok(_)) => {}
    }
    let (port, host_key) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
    let port =
        port.parse().map_err(|_| format!("invalid output of the instance: expected its port, found {line:?}"))?;
    let connection = ConnectionDetails { port, key: private.as_bytes().to_vec(), host_key: host_key.to_owned(), pid };
    if let Some((path, mut record)) = record {
        record.address = Some((port, connection.host_key.clone()));
        record.write(path).map_err(|error| format!("failed to write {}: {error}", path.display()))?;
    }
    Ok((stdin, connection))
}

fn command(start: &Start<'_>) -> Result<Command, String> {
    let executable =
        std::env::current_exe().map_err(|error| format!("failed to find the plugin's executable: {error}"))?;
    let mut command = if start.namespaces {
        let [program, arguments @ ..] = UNSHARE;
        let mut command = Command::new(program);
        command.args(arguments).arg("--").arg(executable);
        command
    } else {
        Command::new(executable)
    };
    let is_persistent = start.record.is_some();
    command
        .args(plugin_arguments())
        .arg(INSTANCE_ARG)
        .args(is_persistent.then_some(PERSISTENT_ARG))
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
        .stderr(if is_persistent { Stdio::null() } else { Stdio::inherit() })
        .process_group(0)
        .kill_on_drop(!is_persistent);
    Ok(command)
}

pub(crate) fn plugin_arguments() -> &'static [&'static str] {
    PLUGIN_ARGUMENTS.get().copied().unwrap_or_default()
}

pub(crate) fn user() -> String {
    std::env::var("USER").ok().filter(|user| !user.is_empty()).unwrap_or_else(|| "root".to_owned())
}
