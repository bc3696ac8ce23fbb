//! The manager of this run: a child process that is started again when it dies, and ended with all that it started.
//!
//! This process makes itself the reaper of its descendants, so that whatever loses its parent (the agent, a job's
//! process that ran away) becomes a child of ours: nothing can be left behind that is not seen here.

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
use super::descendants;
use crate::unpack::UnpackArgs;

/// How often a manager is started again that dies and gets nothing done between, and how long is waited before.
const RESTARTS: Policy =
    Policy { first: Duration::from_millis(100), cap: Duration::from_secs(5), attempts: Some(DEATHS_MAX) };
const DEATHS_MAX: u32 = 6;
/// A manager that lives so long has worked, although its jobs may have been silent all the time.
const WORKS_AFTER: Duration = Duration::from_secs(60);
/// From a polite end to a kill.
const GRACE: Duration = Duration::from_secs(3);
/// KiB of log of a job, far above GitLab's 4 MiB: here it costs nobody but the user.
const OUTPUT_LIMIT_KIB: u32 = 100 << 10;
/// Seconds for which the manager hopes for its agent, which is on the same machine: one that cannot be started again by
/// then (its disk is full, say) does not come back by itself.
const AGENT_GRACE_SECONDS: u32 = 5;
/// How often is looked whether the processes are gone: processes that are not direct children give no event.
const LOOK: Duration = Duration::from_millis(5);

/// How often is looked whether there is space, and how often in a row there has to be none. A manager whose disk is full
/// tries on and on, and where the coordinator has nothing to write, nobody else would tell.
const LOOK_FOR_SPACE: Duration = Duration::from_secs(3);
const FULL_LOOKS: u32 = 4;

/// How the manager is started.
#[derive(Debug, Clone)]
pub(super) struct ManagerOptions {
    /// This executable.
    pub(super) program: PathBuf,
    pub(super) url: String,
    /// The limit of open files that jobs have.
    pub(super) open_files: Option<u64>,
    pub(super) token_file: PathBuf,
    pub(super) state_dir: PathBuf,
    pub(super) builds_dir: PathBuf,
    pub(super) cache_dir: PathBuf,
    pub(super) concurrent: usize,
    /// Limits of unpacking artifacts and caches.
    pub(super) unpack: UnpackArgs,
    /// What the manager and the agent say.
    pub(super) log: PathBuf,
}

/// Keeps the manager alive until it is told to stop. `events` are the coordinator's: they show whether a manager got
/// something done. `restarted` gets how it ended when it is started again; only once where nobody takes it.
///
/// # Errors
/// [`CiError`] if the manager cannot be started, or dies again and again.
pub(super) async fn supervise(
    options: ManagerOptions,
    mut events: broadcast::Receiver<Event>,
    stop: CancellationToken,
    restarted: mpsc::Sender<String>,
) -> Result<(), CiError> {
    let mut deaths = Deaths(Backoff::new(RESTARTS));
    loop {
        let started = Instant::now();
        let mut child = start(&options)?;
        let status = tokio::select! {
            status = child.wait() => status,
            () = stop.cancelled() => return end(child).await,
            error = stays_full(&options.state_dir) => {
                end(child).await?;
                let problem = format!("cannot write to `{}`: {error}", options.state_dir.display());
                return Err(CiError::no_storage(&options.state_dir, problem));
            }
        };
        let told = status.map_or_else(|error| error.to_string(), |status| status.to_string());
        // One that cannot write may have got some way before it saw that.
        let worked =
            (brought_on(&mut events) || started.elapsed() >= WORKS_AFTER) && probe_space(&options.state_dir).is_ok();
        let wait = deaths.wait_after(worked).ok_or_else(|| given_up(&options, &told))?;
        // Where the last word was not taken yet, it says enough.
        let _ = restarted.try_send(told);
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = stop.cancelled() => return Ok(()),
        }
    }
}

/// Waits until there is no space, and none comes.
async fn stays_full(directory: &Path) -> std::io::Error {
    let mut full = 0;
    loop {
        tokio::time::sleep(LOOK_FOR_SPACE).await;
        match probe_space(directory) {
            Err(error) if error.kind() == std::io::ErrorKind::StorageFull => {
                full += 1;
                if full >= FULL_LOOKS {
                    return error;
                }
            }
            _ => full = 0,
        }
    }
}

/// The deaths of managers since one of them got something done.
struct Deaths(Backoff);

impl Deaths {
    /// How long to wait after one more death, or none to give up. A manager that worked and was killed is no sign of a
    /// defect: the next one starts at once.
    fn wait_after(&mut self, worked: bool) -> Option<Duration> {
        if worked {
            self.0.reset();
            return Some(Duration::ZERO);
        }
        self.0.next_wait(None)
    }
}

/// Whether a manager got something done since this was asked last: a job was taken, went on or ended.
fn brought_on(events: &mut broadcast::Receiver<Event>) -> bool {
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

/// Why the manager dies again and again, as far as it can be seen from here.
fn given_up(options: &ManagerOptions, told: &str) -> CiError {
    if let Err(error) = probe_space(&options.state_dir) {
        let problem = format!("cannot write to `{}`: {error}", options.state_dir.display());
        return CiError::no_storage(&options.state_dir, problem);
    }
    let log = last_lines(&options.log);
    CiError::Usage(format!(
        "the manager ended {DEATHS_MAX} times and got nothing done in between ({told}): something kills it (a job, or the kernel for \
         lack of memory), or this is a defect of muster. Its last words, from `{}`:\n{log}",
        options.log.display()
    ))
}

fn start(options: &ManagerOptions) -> Result<Child, CiError> {
    let log = std::fs::File::options().create(true).append(true).open(&options.log);
    let log = log.map_err(|source| CiError::State { path: options.log.clone(), source })?;
    let error_log = log.try_clone().map_err(CiError::system("cannot share the manager's log"))?;
    let mut command = Command::new(&options.program);
    command.arg("manager").arg("--url").arg(&options.url);
    command.arg("--token-file").arg(&options.token_file).arg("--state-dir").arg(&options.state_dir);
    command.arg("--builds-dir").arg(&options.builds_dir).arg("--cache-dir").arg(&options.cache_dir);
    if let Some(files) = options.open_files {
        command.arg("--job-nofile-limit").arg(files.to_string());
    }
    command.arg("--concurrent").arg(options.concurrent.to_string());
    command.arg("--output-limit").arg(OUTPUT_LIMIT_KIB.to_string());
    command.arg("--agent-grace").arg(AGENT_GRACE_SECONDS.to_string());
    command.args(options.unpack.flags());
    command.arg("--exit-with-pid").arg(std::process::id().to_string());
    command.stdin(Stdio::null()).stdout(log).stderr(error_log).kill_on_drop(true);
    // Ctrl-C is for this process, which then ends the jobs in order; the manager must not take it too.
    #[cfg(unix)]
    command.process_group(0);
    command.spawn().map_err(CiError::system("cannot start the manager (`muster manager`)"))
}

/// Asks the manager to end, and kills it if it does not.
async fn end(mut child: Child) -> Result<(), CiError> {
    if let Some(pid) = child.id() {
        descendants::terminate(pid);
    }
    if tokio::time::timeout(GRACE, child.wait()).await.is_err() {
        child.kill().await.map_err(CiError::system("cannot end the manager"))?;
    }
    Ok(())
}

/// Ends every process that this one or its children started, politely and then by force, and waits until all are gone.
pub(crate) async fn end_descendants(grace: Duration) {
    let deadline = Instant::now() + grace;
    let mut told: Vec<u32> = Vec::new();
    loop {
        descendants::reap();
        let living = descendants::all();
        if living.is_empty() {
            return;
        }
        let late = Instant::now() >= deadline;
        for pid in living {
            if late {
                descendants::kill(pid);
            } else if !told.contains(&pid) {
                descendants::terminate(pid);
                told.push(pid);
            }
        }
        if Instant::now() >= deadline + GRACE {
            tracing::warn!("some processes cannot be ended, not even by a kill");
            return;
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// The end of a log file.
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
    fn a_manager_that_worked_is_started_again_at_once_and_without_end() {
        let mut deaths = Deaths(Backoff::seeded(RESTARTS, 1));
        for _ in 0..100 {
            assert_eq!(deaths.wait_after(true), Some(Duration::ZERO));
        }
        let waits: Vec<_> = std::iter::from_fn(|| deaths.wait_after(false)).take(100).collect();
        assert_eq!(waits.len(), 5, "the sixth death without work is the last");
        assert!(waits.is_sorted() && waits[0] >= Duration::from_millis(50), "{waits:?}");
        assert_eq!(deaths.wait_after(true), Some(Duration::ZERO));
        assert!(deaths.wait_after(false).is_some_and(|wait| wait <= Duration::from_millis(100)), "counted anew");
    }

    /// A manager that is a shell script.
    fn script(text: &str) -> (tempfile::TempDir, ManagerOptions) {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("manager");
        std::fs::write(&program, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
        let path = |name: &str| folder.path().join(name);
        let options = ManagerOptions {
            program,
            open_files: None,
            url: "http://127.0.0.1:9".to_owned(),
            token_file: path("token"),
            state_dir: folder.path().to_owned(),
            builds_dir: path("builds"),
            cache_dir: path("cache"),
            concurrent: 1,
            unpack: UnpackArgs::default(),
            log: path("manager.log"),
        };
        (folder, options)
    }

    // Not with a paused clock: while a real process runs, that would leap from one look for space to the next, and a
    // manager that lives for long counts as one that worked.
    #[tokio::test]
    async fn a_manager_that_gets_nothing_done_is_given_up_with_its_last_words() {
        let (_folder, options) = script("echo \"last words\"; exit 3");
        let log = options.log.clone();
        let (_events, receiver) = broadcast::channel(1);
        let (restarted, mut told) = mpsc::channel(1);
        let error = supervise(options, receiver, CancellationToken::new(), restarted).await.unwrap_err().to_string();
        assert!(error.contains("ended 6 times") && error.contains("exit status: 3"), "{error}");
        assert!(error.contains("last words") && error.contains(&log.display().to_string()), "{error}");
        assert_eq!(std::fs::read_to_string(log).unwrap().lines().count(), 6, "started six times");
        assert_eq!(told.recv().await.as_deref(), Some("exit status: 3"));
    }

    #[tokio::test(start_paused = true)]
    async fn the_wait_for_the_next_start_ends_with_the_run() {
        let (_folder, options) = script("exit 3");
        let (_events, receiver) = broadcast::channel(1);
        let (restarted, mut told) = mpsc::channel(1);
        let stop = CancellationToken::new();
        let supervised = tokio::spawn(supervise(options, receiver, stop.clone(), restarted));
        told.recv().await.unwrap();
        stop.cancel();
        supervised.await.unwrap().unwrap();
    }
}
