//! The engine's side of a pause.

use std::sync::Arc;
use std::time::Instant;

use muster_agent_api::result::CallRecord;
use muster_job::TerminationCause;
use tokio::sync::{OwnedMutexGuard, mpsc};

use super::command::DebugCommand;
use super::state::{Debugger, Pause, PauseInfo, Resume};
use crate::stop::StopToken;

#[derive(Debug)]
pub(super) enum Request {
    Execute(DebugCommand),
    Resume(Resume),
}

#[derive(Debug)]
pub(in crate::engine) enum PauseEvent {
    /// The engine runs this command, and then waits for the next event.
    Execute(DebugCommand),
    End(Verdict),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) enum Verdict {
    Continue,
    /// The step does not run, or its failure is ignored.
    Skip,
    Fail,
    Stopped(TerminationCause),
}

/// Point at which the engine is paused. Dropping it ends the pause.
pub(in crate::engine) struct PausePoint {
    debugger: Arc<Debugger>,
    requests: mpsc::Receiver<Request>,
    /// Steps that run at the same time are paused one by one.
    _turn: OwnedMutexGuard<()>,
}

impl PausePoint {
    /// Pauses if there is a breakpoint for the step.
    ///
    /// `failure` is `None` before the step. After the step, `failure` is the error message, or empty after success.
    /// `call` returns the details of the step, without sensitive values.
    pub(in crate::engine) async fn enter(
        debugger: &Arc<Debugger>,
        path: &str,
        failure: Option<&str>,
        call: impl FnOnce() -> CallRecord,
    ) -> Option<Self> {
        if !debugger.is_hit(path, failure.is_some(), failure.is_some_and(|failure| !failure.is_empty())) {
            return None;
        }
        let turn = Arc::clone(&debugger.pausing).lock_owned().await;
        let mask = |text: &str| debugger.secrets.mask(text);
        let call = call().masked(&mask);
        // One request can wait while a command runs. Further requests are refused.
        let (sender, requests) = mpsc::channel(1);
        debugger.update(|state| {
            state.last_pause += 1;
            let info = PauseInfo {
                number: state.last_pause,
                path: mask(path),
                is_after: failure.is_some(),
                failure: mask(failure.unwrap_or_default()),
            };
            state.pause = Some(Pause { info, call, since: Instant::now(), requests: sender });
        });
        Some(Self { debugger: Arc::clone(debugger), requests, _turn: turn })
    }

    pub(in crate::engine) async fn next(&mut self, stop: &StopToken) -> PauseEvent {
        let request = tokio::select! {
            biased;
            cause = stop.stopped() => return PauseEvent::End(Verdict::Stopped(cause)),
            request = self.requests.recv() => request,
            () = wait_until_abandoned(&self.debugger) => {
                tracing::info!("no debugger attached in time, continuing the paused job");
                return PauseEvent::End(Verdict::Continue);
            }
        };
        PauseEvent::End(match request {
            Some(Request::Execute(command)) => return PauseEvent::Execute(command),
            Some(Request::Resume(Resume::Next)) => {
                self.debugger.state.lock().pauses_next = true;
                Verdict::Continue
            }
            Some(Request::Resume(Resume::Skip)) => Verdict::Skip,
            Some(Request::Resume(Resume::Fail)) => Verdict::Fail,
            // `None` cannot occur: the pause keeps the sender until this point is dropped.
            Some(Request::Resume(Resume::Continue)) | None => Verdict::Continue,
        })
    }
}

impl Drop for PausePoint {
    fn drop(&mut self) {
        self.debugger.update(|state| {
            if let Some(pause) = state.pause.take() {
                state.paused_time += pause.since.elapsed();
            }
        });
    }
}

async fn wait_until_abandoned(debugger: &Debugger) {
    let mut changes = debugger.changes.subscribe();
    let is_attached = || debugger.state.lock().attached > 0;
    loop {
        while is_attached() {
            let _ = changes.changed().await;
        }
        let attached = async {
            while !is_attached() {
                let _ = changes.changed().await;
            }
        };
        if tokio::time::timeout(debugger.attach_timeout, attached).await.is_err() {
            return;
        }
    }
}
