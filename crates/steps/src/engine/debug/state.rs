//! State of a debugger, which the engine and the clients share.

use std::sync::Arc;
use std::time::{Duration, Instant};

use indexmap::IndexMap;
use muster_agent_api::development::{BreakWhen, Breakpoint, DebugOptions, matches_path};
use muster_agent_api::result::CallRecord;
use muster_job::mask::Secrets;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

use super::command::{CommandOutput, DebugCommand};
use super::pause::Request;

/// Default time that a paused job waits without a debugger.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(30);

/// Debugger of one job.
#[derive(Debug)]
pub struct Debugger {
    pub(super) state: Mutex<State>,
    pub(super) changes: watch::Sender<()>,
    pub(super) secrets: Secrets,
    pub(super) attach_timeout: Duration,
    /// Locked during a pause.
    pub(super) pausing: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// Steps by path. Steps inside a step follow it.
    steps: IndexMap<String, StepState>,
    breakpoints: Vec<Breakpoint>,
    /// Whether the job pauses before or after the next step, without a breakpoint.
    pub(super) pauses_next: bool,
    pub(super) attached: usize,
    pub(super) pause: Option<Pause>,
    pub(super) last_pause: u64,
    /// Total time of the earlier pauses, without the current pause.
    pub(super) paused_time: Duration,
}

#[derive(Debug)]
pub(super) struct Pause {
    pub(super) info: PauseInfo,
    pub(super) call: CallRecord,
    pub(super) since: Instant,
    pub(super) requests: mpsc::Sender<Request>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) enum StepState {
    Waiting,
    Running,
    Success,
    Failure,
    Skipped,
}

impl StepState {
    pub(in crate::engine) fn from_end(is_success: bool) -> Self {
        if is_success { Self::Success } else { Self::Failure }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Success => "success",
            Self::Failure => "failure",
            Self::Skipped => "skipped",
        }
    }
}

/// Description of a pause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PauseInfo {
    /// Number of the pause, from 1.
    pub number: u64,
    /// Path of the step.
    pub path: String,
    /// Whether the step has ended.
    pub is_after: bool,
    /// Failure of the step. Empty before the step, and after success.
    pub failure: String,
}

/// State of a job at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Paths and states of the steps.
    pub steps: Vec<(String, &'static str)>,
    /// Breakpoints that are set.
    pub breakpoints: Vec<Breakpoint>,
    /// Current pause. `None` means that the job is not paused.
    pub pause: Option<PauseInfo>,
}

/// How a paused job continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resume {
    /// Continues. After a step, its result is unchanged.
    Continue,
    /// Continues, and pauses before or after the next step.
    Next,
    /// Before a step: the step counts as successful, without running. After a failure: the failure is ignored.
    Skip,
    /// The step fails.
    Fail,
}

/// Reason why a client's call is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DebugError {
    /// The job is not in the pause of this number.
    #[error("the job is not in this pause; wait for its next pause")]
    NotPaused,
    /// Another request already waits until the running command has ended.
    #[error(
        "another request already waits for the command that is running in this pause; wait until the command has ended"
    )]
    Busy,
    /// The breakpoint is not set.
    #[error("there is no such breakpoint")]
    NoBreakpoint,
}

/// Attached client. Dropping it detaches the client.
#[derive(Debug)]
pub struct Attached {
    debugger: Arc<Debugger>,
    changes: watch::Receiver<()>,
}

impl Attached {
    /// Returns the state of the job. [`Self::changed`] then waits for a later state.
    pub fn snapshot(&mut self) -> Snapshot {
        self.changes.mark_unchanged();
        self.debugger.snapshot()
    }

    /// Waits until the state changes after the last [`Self::snapshot`]. Cancel-safe.
    pub async fn changed(&mut self) {
        // An error cannot occur, because the debugger owns the sender.
        let _ = self.changes.changed().await;
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.debugger.update(|state| state.attached -= 1);
    }
}

impl Debugger {
    /// Returns the debugger of a job. Clients do not see `secrets`.
    #[must_use]
    pub fn new(options: &DebugOptions, secrets: Secrets) -> Self {
        let attach_timeout = match options.attach_timeout_ms {
            0 => ATTACH_TIMEOUT,
            milliseconds => Duration::from_millis(milliseconds),
        };
        let state =
            State { breakpoints: options.breakpoints.clone(), pauses_next: options.pause_at_start, ..State::default() };
        Self {
            state: Mutex::new(state),
            changes: watch::Sender::new(()),
            secrets,
            attach_timeout,
            pausing: Arc::default(),
        }
    }

    /// Attaches a client.
    #[must_use]
    pub fn attach(self: &Arc<Self>) -> Attached {
        let changes = self.changes.subscribe();
        self.update(|state| state.attached += 1);
        Attached { debugger: Arc::clone(self), changes }
    }

    /// Sets a breakpoint.
    pub fn set_breakpoint(&self, breakpoint: Breakpoint) {
        self.update(|state| {
            if !state.breakpoints.contains(&breakpoint) {
                state.breakpoints.push(breakpoint);
            }
        });
    }

    /// Clears a breakpoint.
    ///
    /// # Errors
    /// [`DebugError::NoBreakpoint`] if it is not set.
    pub fn clear_breakpoint(&self, breakpoint: &Breakpoint) -> Result<(), DebugError> {
        self.update(|state| {
            let position = state.breakpoints.iter().position(|known| known == breakpoint);
            state.breakpoints.remove(position.ok_or(DebugError::NoBreakpoint)?);
            Ok(())
        })
    }

    /// Returns the call of the step in the pause `number`, without secrets.
    ///
    /// # Errors
    /// [`DebugError::NotPaused`] if the job is not in this pause.
    pub fn inspect(&self, number: u64) -> Result<CallRecord, DebugError> {
        self.in_pause(number, |pause| Ok(pause.call.clone()))
    }

    /// Runs a command in the environment of the paused step. Dropping the output ends the command.
    ///
    /// # Errors
    /// [`DebugError::NotPaused`], or [`DebugError::Busy`] if another request waits.
    pub fn execute(&self, number: u64, command: Vec<String>) -> Result<CommandOutput, DebugError> {
        let (command, output) = DebugCommand::new(command, &self.secrets);
        self.in_pause(number, |pause| pause.request(Request::Execute(command)))?;
        Ok(output)
    }

    /// Continues a paused job.
    ///
    /// # Errors
    /// [`DebugError::NotPaused`], or [`DebugError::Busy`] if another request waits.
    pub fn resume(&self, number: u64, action: Resume) -> Result<(), DebugError> {
        self.in_pause(number, |pause| pause.request(Request::Resume(action)))
    }

    fn in_pause<T>(&self, number: u64, call: impl FnOnce(&Pause) -> Result<T, DebugError>) -> Result<T, DebugError> {
        let state = self.state.lock();
        let pause = state.pause.as_ref().filter(|pause| pause.info.number == number);
        call(pause.ok_or(DebugError::NotPaused)?)
    }

    fn snapshot(&self) -> Snapshot {
        let state = self.state.lock();
        Snapshot {
            steps: state.steps.iter().map(|(path, state)| (self.secrets.mask(path), state.name())).collect(),
            breakpoints: state.breakpoints.clone(),
            pause: state.pause.as_ref().map(|pause| pause.info.clone()),
        }
    }

    pub(super) fn update<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.state.lock());
        self.changes.send_replace(());
        result
    }

    /// Adds waiting steps after the step `parent`, or at the end if `parent` is not a step.
    pub(in crate::engine) fn add_steps(&self, parent: &str, paths: impl IntoIterator<Item = String>) {
        self.update(|state| {
            let mut index = state.steps.get_index_of(parent).map_or(state.steps.len(), |index| index + 1);
            for path in paths {
                if !state.steps.contains_key(&path) {
                    state.steps.shift_insert(index, path, StepState::Waiting);
                    index += 1;
                }
            }
        });
    }

    pub(in crate::engine) fn set_state(&self, path: &str, step_state: StepState) {
        self.update(|state| {
            // A step that the user skipped stays skipped, although it counts as successful.
            let succeeded = step_state == StepState::Success;
            if let Some(known) = state.steps.get_mut(path).filter(|known| !succeeded || **known != StepState::Skipped) {
                *known = step_state;
            }
        });
    }

    /// Returns whether the job pauses at this point. Clears a request to pause at the next step.
    pub(super) fn is_hit(&self, path: &str, is_after: bool, has_failed: bool) -> bool {
        let mut state = self.state.lock();
        let is_hit = |breakpoint: &Breakpoint| {
            let applies = match breakpoint.when {
                BreakWhen::Before => !is_after,
                BreakWhen::After => is_after,
                BreakWhen::Failure => is_after && has_failed,
            };
            applies && matches_path(&breakpoint.step, path)
        };
        std::mem::take(&mut state.pauses_next) || state.breakpoints.iter().any(is_hit)
    }

    fn paused_time(&self) -> Duration {
        let state = self.state.lock();
        state.paused_time + state.pause.as_ref().map_or(Duration::ZERO, |pause| pause.since.elapsed())
    }

    /// Returns `deadline`, postponed by all pauses so far.
    pub(in crate::engine) fn postponed(&self, deadline: Instant) -> Instant {
        deadline.checked_add(self.paused_time()).unwrap_or(deadline)
    }

    /// Waits until the deadline, postponed by the pauses since this call. Cancel-safe.
    pub(in crate::engine) async fn wait_until(&self, deadline: Instant) {
        let before = self.paused_time();
        let mut changes = self.changes.subscribe();
        loop {
            changes.mark_unchanged();
            let is_paused = self.state.lock().pause.is_some();
            let postponed = deadline.checked_add(self.paused_time().saturating_sub(before)).unwrap_or(deadline);
            if is_paused {
                let _ = changes.changed().await;
                continue;
            }
            tokio::select! {
                () = tokio::time::sleep_until(postponed.into()) => return,
                _ = changes.changed() => {}
            }
        }
    }
}

impl Pause {
    fn request(&self, request: Request) -> Result<(), DebugError> {
        self.requests.try_send(request).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => DebugError::Busy,
            mpsc::error::TrySendError::Closed(_) => DebugError::NotPaused,
        })
    }
}
