//! The wrapped runner process.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Command;
use tokio::sync::watch;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RunnerProcessState {
    Running,
    InShutdown,
    Stopped {
        /// As a shell reports it.
        code: u8,
        /// Whether the process was asked to exit.
        exit_requested: bool,
        /// Empty if the process succeeded.
        failure: String,
    },
}

/// The wrapped runner process. Clones refer to the same process, which a background task reaps.
#[derive(Debug, Clone)]
pub(super) struct Child {
    pid: Pid,
    state: watch::Sender<RunnerProcessState>,
}

impl Child {
    /// Starts this program again with other arguments.
    pub(super) fn start(arguments: &[OsString]) -> io::Result<Self> {
        let executable = std::env::current_exe()?;
        let mut command = Command::new(&executable);
        if !crate::runner::is_called(Some(&executable.into_os_string())) {
            command.arg("runner");
        }
        let mut process = command.args(arguments).spawn()?;
        let pid = process.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("the process exited immediately"))?;
        let state = watch::Sender::new(RunnerProcessState::Running);
        let sender = state.clone();
        // The task ends with the process or the runtime.
        tokio::spawn(async move {
            let stopped = match process.wait().await {
                Ok(status) => (code(status), if status.success() { String::new() } else { status.to_string() }),
                Err(error) => (1, error.to_string()),
            };
            sender.send_modify(|state| {
                let exit_requested = *state == RunnerProcessState::InShutdown;
                *state = RunnerProcessState::Stopped { code: stopped.0, exit_requested, failure: stopped.1 };
            });
        });
        Ok(Self { pid, state })
    }

    pub(super) fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    pub(super) fn states(&self) -> watch::Receiver<RunnerProcessState> {
        self.state.subscribe()
    }

    pub(super) fn state(&self) -> RunnerProcessState {
        self.state.borrow().clone()
    }

    /// Asks the process to exit, unless it has exited. Returns its state.
    ///
    /// After SIGQUIT, the process first finishes its jobs; after SIGTERM, it does not.
    pub(super) fn shut_down(&self, signal: Signal) -> io::Result<RunnerProcessState> {
        let mut sent = Ok(());
        self.state.send_if_modified(|state| {
            if matches!(state, RunnerProcessState::Stopped { .. }) {
                return false;
            }
            // A process that has not stopped was not reaped, so its ID was not reused.
            sent = kill_process(self.pid, signal);
            let changed = sent.is_ok() && *state == RunnerProcessState::Running;
            if changed {
                *state = RunnerProcessState::InShutdown;
            }
            changed
        });
        sent?;
        Ok(self.state())
    }

    /// Stops the process, by force after a timeout. Returns its exit code, or 1 if even that fails.
    pub(super) async fn stop(&self, timeout: Duration) -> u8 {
        let mut states = self.states();
        for (signal, timeout) in [(Signal::TERM, timeout), (Signal::KILL, Duration::from_secs(10))] {
            if let Err(error) = self.shut_down(signal) {
                tracing::error!(%error, "[WRAPPER] failed to signal the runner");
            }
            let stopped = states.wait_for(|state| matches!(state, RunnerProcessState::Stopped { .. }));
            if let Ok(Ok(state)) = tokio::time::timeout(timeout, stopped).await
                && let RunnerProcessState::Stopped { code, .. } = *state
            {
                return code;
            }
            tracing::warn!("[WRAPPER] the runner did not exit in time");
        }
        1
    }
}

/// Returns the exit code of a process. If a signal ended the process, returns 128 plus its number, as a shell does.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}
