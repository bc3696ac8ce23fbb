//! The manager of this run: a child process that is started again when it dies, and ended with all that it started.
//!
//! This process makes itself the reaper of its descendants, so that whatever loses its parent (the agent, a job's
//! process that ran away) becomes a child of ours: nothing can be left behind that is not seen here.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::super::error::CiError;
use super::super::state::probe_space;
use super::descendants;

/// So many deaths in a row, each before [`WORKS_AFTER`], and the manager is given up.
const DEATHS_MAX: usize = 5;
/// A manager that lives so long has taken up its jobs, and asks for more: its start is a few reads of its database.
const WORKS_AFTER: Duration = Duration::from_millis(500);
/// From a polite end to a kill.
const GRACE: Duration = Duration::from_secs(3);
/// KiB of log of a job, far above GitLab's 4 MiB: here it costs nobody but the user.
const OUTPUT_LIMIT_KIB: u32 = 100 << 10;
/// Seconds for which the manager hopes for its agent, which is on the same machine: one that cannot be started again by
/// then (its disk is full, say) does not come back by itself.
const AGENT_GRACE_SECONDS: u32 = 5;
/// How often is looked whether the processes are gone: processes that are not direct children give no event.
const LOOK: Duration = Duration::from_millis(5);

/// How the manager is started.
#[derive(Debug, Clone)]
pub(super) struct ManagerOptions {
    pub(super) url: String,
    pub(super) token_file: PathBuf,
    pub(super) state_dir: PathBuf,
    pub(super) builds_dir: PathBuf,
    pub(super) cache_dir: PathBuf,
    pub(super) concurrent: usize,
    /// What the manager and the agent say.
    pub(super) log: PathBuf,
}

/// Keeps the manager alive until it is told to stop. `restarted` gets how it ended when it is started again; only once
/// where nobody takes it.
///
/// # Errors
/// [`CiError`] if the manager cannot be started, or dies again and again.
pub(super) async fn supervise(
    options: ManagerOptions,
    stop: CancellationToken,
    restarted: mpsc::Sender<String>,
) -> Result<(), CiError> {
    let mut deaths = Deaths::default();
    loop {
        let started = Instant::now();
        let mut child = start(&options)?;
        let status = tokio::select! {
            status = child.wait() => status,
            () = stop.cancelled() => return end(child).await,
        };
        let told = status.map_or_else(|error| error.to_string(), |status| status.to_string());
        let no_space = || probe_space(&options.state_dir).is_err();
        if deaths.are_too_many_with(started.elapsed(), no_space) {
            return Err(given_up(&options, &told));
        }
        // Where the last word was not taken yet, it says enough.
        let _ = restarted.try_send(told);
    }
}

/// The deaths of managers since one of them worked.
#[derive(Debug, Default)]
struct Deaths {
    /// Of managers that died at once.
    early: usize,
    /// Of managers that could not write.
    starved: usize,
}

impl Deaths {
    /// Counts the death of a manager that lived so long; says whether to give up. A manager that worked and was killed is
    /// no sign of a defect; but one that needs some time until it sees that the disk is full has not worked.
    fn are_too_many_with(&mut self, lived: Duration, no_space: impl FnOnce() -> bool) -> bool {
        self.early = if lived < WORKS_AFTER { self.early + 1 } else { 0 };
        self.starved = if no_space() { self.starved + 1 } else { 0 };
        self.early.max(self.starved) >= DEATHS_MAX
    }
}

/// Why the manager dies again and again, as far as it can be seen from here.
fn given_up(options: &ManagerOptions, told: &str) -> CiError {
    if let Err(error) = probe_space(&options.state_dir) {
        let problem = format!("cannot write to `{}`: {error}", options.state_dir.display());
        return CiError::NoStorage { problem };
    }
    let log = last_lines(&options.log);
    CiError::Usage(format!(
        "the manager ended {DEATHS_MAX} times in a row ({told}); this is a defect of muster or of this machine. Its last \
         words, from `{}`:\n{log}",
        options.log.display()
    ))
}

fn start(options: &ManagerOptions) -> Result<Child, CiError> {
    let executable = std::env::current_exe().map_err(CiError::system("cannot find the path of this program"))?;
    let log = std::fs::File::options().create(true).append(true).open(&options.log);
    let log = log.map_err(|source| CiError::State { path: options.log.clone(), source })?;
    let error_log = log.try_clone().map_err(CiError::system("cannot share the manager's log"))?;
    let mut command = Command::new(executable);
    command.arg("manager").arg("--url").arg(&options.url);
    command.arg("--token-file").arg(&options.token_file).arg("--state-dir").arg(&options.state_dir);
    command.arg("--builds-dir").arg(&options.builds_dir).arg("--cache-dir").arg(&options.cache_dir);
    command.arg("--concurrent").arg(options.concurrent.to_string());
    command.arg("--output-limit").arg(OUTPUT_LIMIT_KIB.to_string());
    command.arg("--agent-grace").arg(AGENT_GRACE_SECONDS.to_string());
    command.arg("--until-pid").arg(std::process::id().to_string());
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
pub(super) async fn end_descendants(grace: Duration) {
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

    /// Whether a manager is given up that lives so many milliseconds, time after time.
    fn given_up_after(lives: &[u64], no_space: bool) -> bool {
        let mut deaths = Deaths::default();
        lives.iter().any(|lived| deaths.are_too_many_with(Duration::from_millis(*lived), || no_space))
    }

    #[test]
    fn a_manager_that_worked_is_started_again_without_end() {
        assert!(!given_up_after(&[900; 100], false));
        assert!(!given_up_after(&[10, 10, 10, 10, 900, 10, 10, 10, 10], false));
        assert!(given_up_after(&[900, 10, 10, 10, 10, 10], false), "a defect");
        assert!(given_up_after(&[900; 5], true), "a full disk");
    }
}
