//! Restarts the manager of this run when it exits, and stops it with all its descendants.
//!
//! This process adopts orphaned descendants, such as the agent, so that it can stop them.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use muster_coordinator::JobKind;
use muster_coordinator::views::Event;
use muster_job::JobStatus;
use muster_runner_api::retry::{Backoff, Policy};
use tokio::process::{Child, Command};
use tokio::sync::broadcast::error::TryRecvError;
use tokio::sync::{broadcast, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::super::error::CiError;
use super::super::state::probe_space;
use super::containers::ContainerOptions;
use super::descendants;
use crate::unpack::UnpackArgs;

/// Delays before restarts of a manager that exits without progress.
const RESTARTS: Policy =
    Policy { first: Duration::from_millis(100), cap: Duration::from_secs(5), attempts: Some(MAX_FAILED_STARTS) };
/// Number of exits without progress after which the run fails.
const MAX_FAILED_STARTS: u32 = 6;
/// Run time after which a manager counts as healthy, even if its jobs logged nothing.
const HEALTHY_AFTER: Duration = Duration::from_secs(60);
/// Time between SIGTERM and SIGKILL.
const KILL_GRACE: Duration = Duration::from_secs(3);
/// Maximum size of a job's log in KiB. GitLab's default is 4 MiB, but here a log costs only the user's own disk space.
const OUTPUT_LIMIT_KIB: u32 = 100 << 10;
/// Seconds for which the manager tries to reconnect to its agent. A local agent does not recover later.
const AGENT_RECONNECT_SECONDS: u32 = 5;
/// Interval for checking whether processes have exited. Only direct children raise an event.
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Interval for checking the free disk space. A manager whose disk is full would retry forever.
const SPACE_POLL_INTERVAL: Duration = Duration::from_secs(3);
/// Number of consecutive checks without free space after which the run fails.
const MAX_FULL_POLLS: u32 = 4;

#[derive(Debug, Clone)]
pub(super) struct ManagerOptions {
    pub(super) program: PathBuf,
    pub(super) url: String,
    /// Limit of open files for jobs. `None` means that the manager sets none.
    pub(super) open_files: Option<u64>,
    pub(super) token_file: PathBuf,
    pub(super) state_dir: PathBuf,
    pub(super) builds_dir: PathBuf,
    pub(super) cache_dir: PathBuf,
    pub(super) concurrent: usize,
    pub(super) unpack: UnpackArgs,
    /// `None` means that no job runs in a container.
    pub(super) containers: Option<ContainerOptions>,
    /// Receives the output of the manager and the agent.
    pub(super) log: PathBuf,
}

/// Restarts the manager whenever it exits, until `stop` is canceled.
///
/// `events` shows whether a manager made progress. `exit_statuses` receives the exit status of each manager that is
/// restarted, unless the channel is full.
///
/// # Errors
/// If the manager cannot be started or repeatedly exits without progress, or if the disk remains full.
pub(super) async fn supervise(
    options: ManagerOptions,
    mut events: broadcast::Receiver<Event>,
    stop: CancellationToken,
    exit_statuses: mpsc::Sender<String>,
) -> Result<(), CiError> {
    let mut backoff = RestartBackoff(Backoff::new(RESTARTS));
    loop {
        let started = Instant::now();
        let mut child = start(&options)?;
        let status = tokio::select! {
            status = child.wait() => status,
            () = stop.cancelled() => return stop_child(child).await,
            error = wait_for_full_disk(&options.state_dir) => {
                stop_child(child).await?;
                let problem = format!("failed to write to `{}`: {error}", options.state_dir.display());
                return Err(CiError::no_storage(&options.state_dir, problem));
            }
        };
        let exit_status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
        // A manager may make progress before it notices that the disk is full.
        let is_healthy = (made_progress(&mut events) || started.elapsed() >= HEALTHY_AFTER)
            && probe_space(&options.state_dir).is_ok();
        let wait = backoff.wait_after(is_healthy).ok_or_else(|| restart_limit_error(&options, &exit_status))?;
        // If the channel is full, an earlier restart was not reported yet. One report is enough.
        let _ = exit_statuses.try_send(exit_status);
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = stop.cancelled() => return Ok(()),
        }
    }
}

/// Returns the error of the last check after [`MAX_FULL_POLLS`] failed checks in a row.
async fn wait_for_full_disk(directory: &Path) -> std::io::Error {
    let mut full = 0;
    loop {
        tokio::time::sleep(SPACE_POLL_INTERVAL).await;
        match probe_space(directory) {
            Err(error) if error.kind() == std::io::ErrorKind::StorageFull => {
                full += 1;
                if full >= MAX_FULL_POLLS {
                    return error;
                }
            }
            _ => full = 0,
        }
    }
}

/// Delays between restarts. An exit of a healthy manager resets them.
struct RestartBackoff(Backoff);

impl RestartBackoff {
    /// Returns how long to wait before the next start, or `None` to give up. Returns zero if the manager was healthy
    /// until it exited.
    fn wait_after(&mut self, was_healthy: bool) -> Option<Duration> {
        if was_healthy {
            self.0.reset();
            return Some(Duration::ZERO);
        }
        self.0.next_wait(None)
    }
}

/// Returns whether a job was started, logged something or finished since the last call.
fn made_progress(events: &mut broadcast::Receiver<Event>) -> bool {
    let mut found = false;
    loop {
        found |= match events.try_recv() {
            Ok(Event::TraceGrew { .. }) | Err(TryRecvError::Lagged(_)) => true,
            Ok(Event::JobChanged(job)) => {
                job.kind == JobKind::Script
                    && (job.status == JobStatus::Running || job.status.is_complete() && job.started_at.is_some())
            }
            Ok(Event::PipelineChanged(_) | Event::StorageProblem(_)) => false,
            Err(TryRecvError::Empty | TryRecvError::Closed) => return found,
        };
    }
}

fn restart_limit_error(options: &ManagerOptions, exit_status: &str) -> CiError {
    if let Err(error) = probe_space(&options.state_dir) {
        let problem = format!("failed to write to `{}`: {error}", options.state_dir.display());
        return CiError::no_storage(&options.state_dir, problem);
    }
    let log = last_lines(&options.log);
    CiError::Failed(format!(
        "the manager exited {MAX_FAILED_STARTS} times without progress ({exit_status}); something kills it (a job, or the kernel because of \
             low memory), or this is a bug in Muster. The end of its log `{}`:\n{log}",
        options.log.display()
    ))
}

fn start(options: &ManagerOptions) -> Result<Child, CiError> {
    let log = std::fs::File::options().create(true).append(true).open(&options.log);
    let log = log.map_err(|source| CiError::State { path: options.log.clone(), source })?;
    let error_log = log.try_clone().map_err(CiError::system("open the manager's log"))?;
    let mut command = Command::new(&options.program);
    command.arg("manager").arg("--url").arg(&options.url);
    command.arg("--token-file").arg(&options.token_file).arg("--state-dir").arg(&options.state_dir);
    command.arg("--builds-dir").arg(&options.builds_dir).arg("--cache-dir").arg(&options.cache_dir);
    if let Some(files) = options.open_files {
        command.arg("--job-nofile-limit").arg(files.to_string());
    }
    command.arg("--concurrent").arg(options.concurrent.to_string());
    command.arg("--output-limit-kib").arg(OUTPUT_LIMIT_KIB.to_string());
    command.arg("--agent-reconnect-timeout").arg(AGENT_RECONNECT_SECONDS.to_string());
    command.args(options.unpack.flags());
    command.args(options.containers.iter().flat_map(ContainerOptions::flags));
    command.arg("--exit-with-pid").arg(std::process::id().to_string());
    command.stdin(Stdio::null()).stdout(log).stderr(error_log).kill_on_drop(true);
    // Ctrl-C must not reach the manager: `muster ci run` handles it, and cancels the jobs.
    #[cfg(unix)]
    command.process_group(0);
    command.spawn().map_err(CiError::system("start the manager (`muster manager`)"))
}

async fn stop_child(mut child: Child) -> Result<(), CiError> {
    if let Some(pid) = child.id() {
        descendants::terminate(pid);
    }
    if tokio::time::timeout(KILL_GRACE, child.wait()).await.is_err() {
        child.kill().await.map_err(CiError::system("kill the manager"))?;
    }
    Ok(())
}

/// Terminates all descendants of this process, kills them after `grace`, and waits until they exit.
///
/// If a descendant is still running [`KILL_GRACE`] after the first SIGKILL, logs a warning and returns.
pub(crate) async fn end_descendants(grace: Duration) {
    let deadline = Instant::now() + grace;
    let mut signaled: Vec<u32> = Vec::new();
    loop {
        descendants::reap();
        let running = descendants::running_descendants();
        if running.is_empty() {
            return;
        }
        let is_overdue = Instant::now() >= deadline;
        for pid in running {
            if is_overdue {
                descendants::kill(pid);
            } else if !signaled.contains(&pid) {
                descendants::terminate(pid);
                signaled.push(pid);
            }
        }
        if Instant::now() >= deadline + KILL_GRACE {
            tracing::warn!("some processes did not exit after SIGKILL");
            return;
        }
        tokio::time::sleep(EXIT_POLL_INTERVAL).await;
    }
}

fn last_lines(path: &Path) -> String {
    let text = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().collect();
    lines.iter().skip(lines.len().saturating_sub(10)).map(|line| format!("  {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn healthy_manager_is_always_restarted_immediately() {
        let mut backoff = RestartBackoff(Backoff::seeded(RESTARTS, 1));
        for _ in 0..100 {
            assert_eq!(backoff.wait_after(true), Some(Duration::ZERO));
        }
        let waits: Vec<_> = std::iter::from_fn(|| backoff.wait_after(false)).take(100).collect();
        assert_eq!(waits.len(), 5, "the run must fail at the sixth exit without progress");
        assert!(waits.is_sorted() && waits[0] >= Duration::from_millis(50), "{waits:?}");
        assert_eq!(backoff.wait_after(true), Some(Duration::ZERO));
        assert!(
            backoff.wait_after(false).is_some_and(|wait| wait <= Duration::from_millis(100)),
            "the count must start again"
        );
    }

    fn script(text: &str) -> (tempfile::TempDir, ManagerOptions) {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("manager");
        muster_test_prerequisites::create_program(&program, format!("#!/bin/sh\n{text}\n"));
        let path = |name: &str| directory.path().join(name);
        let options = ManagerOptions {
            program,
            open_files: None,
            url: "http://127.0.0.1:9".to_owned(),
            token_file: path("token"),
            state_dir: directory.path().to_owned(),
            builds_dir: path("builds"),
            cache_dir: path("cache"),
            concurrent: 1,
            unpack: UnpackArgs::default(),
            containers: None,
            log: path("manager.log"),
        };
        (directory, options)
    }

    // This test needs the real clock. While the process runs, Tokio would advance a paused clock from one disk check to
    // the next, until the manager counts as healthy.
    #[tokio::test]
    async fn manager_without_progress_fails_the_run_with_its_log() {
        let (_directory, options) = script("echo \"final log line\"; exit 3");
        let log = options.log.clone();
        let (_events, receiver) = broadcast::channel(1);
        let (exit_statuses, mut exits) = mpsc::channel(1);
        let error =
            supervise(options, receiver, CancellationToken::new(), exit_statuses).await.unwrap_err().to_string();
        assert!(error.contains("exited 6 times") && error.contains("exit status: 3"), "{error}");
        assert!(error.contains("final log line") && error.contains(&log.display().to_string()), "{error}");
        assert_eq!(std::fs::read_to_string(log).unwrap().lines().count(), 6, "the manager must be started six times");
        assert_eq!(exits.recv().await.as_deref(), Some("exit status: 3"));
    }

    #[tokio::test(start_paused = true)]
    async fn stop_ends_the_wait_for_a_restart() {
        let (_directory, options) = script("exit 3");
        let (_events, receiver) = broadcast::channel(1);
        let (exit_statuses, mut exits) = mpsc::channel(1);
        let stop = CancellationToken::new();
        let supervised = tokio::spawn(supervise(options, receiver, stop.clone(), exit_statuses));
        exits.recv().await.unwrap();
        stop.cancel();
        supervised.await.unwrap().unwrap();
    }
}
