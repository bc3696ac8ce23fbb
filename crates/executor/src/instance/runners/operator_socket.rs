//! Socket for operator actions.
//!
//! The socket is in the directory of the ledgers, or in a private directory if its path would be too long. It accepts
//! only root and the user of this process. A request and its reply are one line of JSON each
//! ([`muster_taskscaler::operator`]).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::future::join_all;
use muster_taskscaler::fleet::Report;
use muster_taskscaler::operator::{OperatorAction, OperatorReply, OperatorRequest, OperatorTarget, VERSION};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::{JoinHandle, JoinSet};

use super::fleet_list::FleetList;
use crate::instance::InstanceExecutor;

/// Further connections wait.
const MAX_CONNECTIONS: usize = 16;
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(20);
/// In bytes.
const MAX_REQUEST_BYTES: u64 = 64 * 1024;
const ACCEPT_RETRY_DELAY: Duration = Duration::from_secs(1);
/// Initial and maximum delay before the socket is opened again.
const OPEN_BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
const MAX_TEXT_CHARS: usize = 300;

/// Dropping this closes the socket and deletes its file.
pub(super) struct OperatorSocket {
    serving: JoinHandle<()>,
    /// Path of the socket. Empty until the socket is open.
    path: Arc<OnceLock<PathBuf>>,
}

impl Drop for OperatorSocket {
    fn drop(&mut self) {
        self.serving.abort();
        if let Some(path) = self.path.get() {
            // If the manager is killed, its successor deletes the file.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl OperatorSocket {
    /// Opens the socket, and serves requests until this value is dropped. Retries if the socket cannot be opened.
    pub(super) fn start(ledgers: &Path, fleets: Arc<FleetList>) -> Self {
        let (ledgers, path) = (ledgers.to_owned(), Arc::<OnceLock<PathBuf>>::default());
        let mut opened = open(&ledgers, &path);
        let opened_path = Arc::clone(&path);
        let serving = tokio::spawn(async move {
            let (mut wait, cap) = OPEN_BACKOFF;
            let listener = loop {
                match opened {
                    Ok(listener) => break listener,
                    Err(error) => tracing::warn!(
                        %error, ledgers = %ledgers.display(), wait_ms = wait.as_millis(),
                        "failed to open the operator socket, retrying; `muster fleet cordon`, `uncordon`, `drain` and `delete` cannot reach this manager meanwhile"
                    ),
                }
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(cap);
                opened = open(&ledgers, &opened_path);
            };
            serve(listener, fleets).await;
        });
        Self { serving, path }
    }
}

/// Opens the socket, and stores its path.
///
/// # Errors
/// An I/O error, also if another manager listens on the socket.
fn open(ledgers: &Path, opened_path: &OnceLock<PathBuf>) -> io::Result<UnixListener> {
    let path = crate::host::operator_socket_path(ledgers).map_err(io::Error::other)?;
    if std::os::unix::net::UnixStream::connect(&path).is_ok() {
        return Err(io::Error::new(io::ErrorKind::AddrInUse, "another manager listens on the socket"));
    }
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::from_std(muster_files::listen(&path)?)?;
    let _ = opened_path.set(path);
    Ok(listener)
}

async fn serve(listener: UnixListener, fleets: Arc<FleetList>) {
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        if connections.len() >= MAX_CONNECTIONS {
            connections.join_next().await;
        }
        match listener.accept().await {
            Ok((stream, _)) => {
                let fleets = Arc::clone(&fleets);
                connections.spawn(async move {
                    if let Ok(Err(error)) =
                        tokio::time::timeout(CONNECTION_TIMEOUT, handle_connection(stream, &fleets)).await
                    {
                        tracing::debug!(%error, "connection of an operator failed");
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "failed to accept the connection of an operator");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    }
}

async fn handle_connection(mut stream: UnixStream, fleets: &FleetList) -> io::Result<()> {
    let user = stream.peer_cred()?.uid();
    let (read, mut write) = stream.split();
    let answer = if user == rustix::process::geteuid().as_raw() || user == 0 {
        let mut line = Vec::new();
        BufReader::new(read.take(MAX_REQUEST_BYTES)).read_until(b'\n', &mut line).await?;
        match serde_json::from_slice::<OperatorRequest>(&line) {
            Ok(request) => operate(fleets, &request, user).await,
            Err(error) => Err(format!("invalid request: {error}")),
        }
    } else {
        Err(format!("user {user} is neither root nor the user of the manager"))
    };
    let (ok, message) = match answer {
        Ok(message) => (true, message),
        Err(message) => (false, message),
    };
    let mut line = serde_json::to_vec(&OperatorReply { version: VERSION, ok, message })?;
    line.push(b'\n');
    write.write_all(&line).await
}

async fn operate(fleets: &FleetList, request: &OperatorRequest, user: u32) -> Result<String, String> {
    let executors: Vec<_> = fleets.current().into_iter().map(|fleet| fleet.executor).collect();
    let reports = join_all(executors.iter().map(|executor| executor.report())).await;
    let found: Vec<(&Arc<InstanceExecutor>, String, OperatorTarget)> =
        executors.iter().zip(&reports).flat_map(|(executor, report)| find_targets(request, executor, report)).collect();
    let (executor, description, target) = match found.as_slice() {
        [] => return Err(not_found(request, &reports)),
        [one] => one,
        several => {
            let names: Vec<&str> = several.iter().map(|(_, description, _)| description.as_str()).collect();
            return Err(format!("`{}` is ambiguous: {}; use --runner or --group", request.name, names.join(", ")));
        }
    };
    let by = requester(request, user);
    let action = match request.action {
        OperatorAction::Cordon => "cordon",
        OperatorAction::Uncordon => "uncordon",
        OperatorAction::Drain => "drain",
        OperatorAction::Delete { .. } => "delete",
    };
    tracing::info!(action, target = description, by, "operator action requested");
    match executor.operate(target, request.action, by).await {
        Some(Ok(outcome)) => Ok(format!("{description}: {outcome}")),
        Some(Err(error)) => Err(format!("{description}: {error}")),
        None => Err(format!(
            "{description}: the scaler has ended or cannot write its ledger; run `muster fleet status` to check whether the action is applied later"
        )),
    }
}

fn find_targets<'a>(
    request: &OperatorRequest,
    executor: &'a Arc<InstanceExecutor>,
    report: &Report,
) -> Vec<(&'a Arc<InstanceExecutor>, String, OperatorTarget)> {
    let is_of_requested_runner = request.runner.as_ref().is_none_or(|runner| report.runner == *runner);
    let Some(status) = report.status.as_ref().filter(|_| is_of_requested_runner) else { return Vec::new() };
    let is_requested = |group: &str| request.group.as_ref().is_none_or(|requested| group == requested);
    let mut found = Vec::new();
    for (number, group) in status.groups.iter().enumerate().filter(|(_, group)| is_requested(&group.name)) {
        let location = format!("group {} of runner {}", group.name, report.runner);
        if group.name == request.name {
            found.push((executor, location.clone(), OperatorTarget { group: number, instance: None }));
        }
        let is_managed = status.instances.iter().any(|one| one.group == group.name && one.id == request.name);
        if is_managed || group.unmanaged.contains(&request.name) {
            let target = OperatorTarget { group: number, instance: Some(request.name.clone()) };
            found.push((executor, format!("instance {} in {location}", request.name), target));
        }
    }
    found
}

fn not_found(request: &OperatorRequest, reports: &[Report]) -> String {
    let quoted = |before: &str, name: &Option<String>| name.as_ref().map(|name| format!("{before}`{name}`"));
    let runner = quoted(" ", &request.runner).unwrap_or_default();
    let group = quoted(" in a group ", &request.group).unwrap_or_default();
    let mut text = format!("no runner{runner} has an instance or a group `{}`{group}", request.name);
    let unavailable = reports.iter().filter_map(|report| Some((&report.runner, report.unavailable_reason.as_ref()?)));
    for (runner, reason) in unavailable {
        text.push_str(&format!("; the scaler of runner {runner} is not running: {reason}"));
    }
    text.push_str("; run `muster fleet status` to list all");
    text
}

/// The user ID comes from the system, the user's name from the request.
fn requester(request: &OperatorRequest, user: u32) -> String {
    let user_name = request.user.as_deref().map(sanitize).filter(|user_name| !user_name.is_empty());
    let mut by = match user_name {
        Some(user_name) => format!("operator {user_name} (user {user})"),
        None => format!("operator (user {user})"),
    };
    if let Some(reason) = request.reason.as_deref().map(sanitize).filter(|reason| !reason.is_empty()) {
        by = format!("{by}: {reason}");
    }
    by
}

fn sanitize(text: &str) -> String {
    text.trim().chars().filter(|character| !character.is_control()).take(MAX_TEXT_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn send_request(path: &Path, line: &[u8]) -> OperatorReply {
        let mut stream = UnixStream::connect(path).await.unwrap();
        stream.write_all(line).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        serde_json::from_slice(&answer).unwrap()
    }

    fn request() -> OperatorRequest {
        let (runner, group) = (None, None);
        let (user_name, reason) = (Some("ann\n".to_owned()), Some(format!("disk\u{7} full{}", "!".repeat(1000))));
        OperatorRequest {
            version: VERSION,
            action: OperatorAction::Cordon,
            name: "i-1".to_owned(),
            runner,
            group,
            user: user_name,
            reason,
        }
    }

    #[tokio::test]
    async fn socket_is_private_and_deleted_with_the_manager() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("operator.sock");
        // A killed manager left its socket.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let socket = OperatorSocket::start(dir.path(), Arc::default());
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let second = open(dir.path(), &OnceLock::new()).unwrap_err().to_string();
        assert_eq!(second, "another manager listens on the socket");
        let mut line = serde_json::to_vec(&request()).unwrap();
        line.push(b'\n');
        let answer = send_request(&path, &line).await;
        let text = "no runner has an instance or a group `i-1`; run `muster fleet status` to list all".to_owned();
        assert_eq!(answer, OperatorReply { version: VERSION, ok: false, message: text });
        let scoped = OperatorRequest { group: Some("linux".to_owned()), runner: Some("ours".to_owned()), ..request() };
        let answer = send_request(&path, &[serde_json::to_vec(&scoped).unwrap(), b"\n".to_vec()].concat()).await;
        assert!(answer.message.starts_with("no runner `ours` has an instance or a group `i-1` in a group `linux`;"));
        let answer = send_request(&path, b"{\"action\":\"explode\"}\n").await;
        assert!(!answer.ok && answer.message.starts_with("invalid request"), "{answer:?}");
        drop(socket);
        assert!(!path.exists());
    }

    #[tokio::test(start_paused = true)]
    async fn socket_that_could_not_be_opened_is_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("operator.sock");
        std::fs::create_dir(&path).unwrap();
        let socket = OperatorSocket::start(dir.path(), Arc::default());
        tokio::time::sleep(10 * OPEN_BACKOFF.1).await;
        assert!(path.is_dir());
        std::fs::remove_dir(&path).unwrap();
        tokio::time::sleep(2 * OPEN_BACKOFF.1).await;
        assert!(std::os::unix::net::UnixStream::connect(&path).is_ok());
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn user_and_reason_are_sanitized() {
        let by = requester(&request(), 7);
        assert!(by.starts_with("operator ann (user 7): disk full!!!") && by.chars().count() < 400, "{by}");
    }
}
