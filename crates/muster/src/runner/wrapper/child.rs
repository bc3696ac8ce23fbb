//! The wrapped process.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Command;
use tokio::sync::watch;

/// What the process is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum State {
    /// It works.
    Running,
    /// It was asked to end.
    InShutdown,
    /// It has ended.
    Stopped {
        /// Its exit code, as a shell has it.
        code: u8,
        /// Whether it had been asked to end.
        asked: bool,
        /// Why it failed; empty where it did not.
        failure: String,
    },
}

/// A handle of the process; clones share it. The process is reaped by a task that this module owns.
#[derive(Debug, Clone)]
pub(super) struct Child {
    pid: Pid,
    state: watch::Sender<State>,
}

impl Child {
    /// Starts this very program again, with other arguments.
    pub(super) fn start(arguments: &[OsString]) -> io::Result<Self> {
        let executable = std::env::current_exe()?;
        let mut command = Command::new(&executable);
        if !crate::runner::is_called(Some(&executable.into_os_string())) {
            command.arg("runner");
        }
        let mut process = command.args(arguments).spawn()?;
        let pid = process.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("the process ended at once"))?;
        let state = watch::Sender::new(State::Running);
        let ended = state.clone();
        // Ends with the process, which ends at the latest when the runtime does: then nobody asks any more.
        tokio::spawn(async move {
            let stopped = match process.wait().await {
                Ok(status) => (code(status), if status.success() { String::new() } else { status.to_string() }),
                Err(error) => (1, error.to_string()),
            };
            ended.send_modify(|state| {
                let asked = *state == State::InShutdown;
                *state = State::Stopped { code: stopped.0, asked, failure: stopped.1 };
            });
        });
        Ok(Self { pid, state })
    }

    pub(super) fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    pub(super) fn states(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    pub(super) fn state(&self) -> State {
        self.state.borrow().clone()
    }

    /// Asks it to end: by SIGQUIT after its jobs, by SIGTERM now. One that has ended is left alone.
    pub(super) fn shut_down(&self, signal: Signal) -> io::Result<State> {
        let mut sent = Ok(());
        self.state.send_if_modified(|state| {
            if matches!(state, State::Stopped { .. }) {
                return false;
            }
            // While it is not stopped it is not reaped, and the number is its own.
            sent = kill_process(self.pid, signal);
            let changed = sent.is_ok() && *state == State::Running;
            if changed {
                *state = State::InShutdown;
            }
            changed
        });
        sent?;
        Ok(self.state())
    }

    /// Ends it, by force after the limit; its exit code.
    pub(super) async fn end(&self, limit: Duration) -> u8 {
        let mut states = self.states();
        for (signal, limit) in [(Signal::TERM, limit), (Signal::KILL, Duration::from_secs(10))] {
            if let Err(error) = self.shut_down(signal) {
                tracing::error!(%error, "[WRAPPER] the runner cannot be asked to end");
            }
            let stopped = states.wait_for(|state| matches!(state, State::Stopped { .. }));
            if let Ok(Ok(state)) = tokio::time::timeout(limit, stopped).await
                && let State::Stopped { code, .. } = *state
            {
                return code;
            }
            tracing::warn!("[WRAPPER] the runner has not ended in time");
        }
        1
    }
}

/// As a shell has it: 128 and the number of the signal.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}
