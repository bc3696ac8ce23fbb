//! Pauses of the engine before and after each step.

use muster_agent_api::result::CallRecord;
use serde_json::{Map, Value};

use super::call::{Details, Invocation};
use super::debug::{CommandContext, PauseEvent, PausePoint, StepState, Verdict, run_command};
use super::user_steps::{Frame, StepError, UserSteps};
use super::{Engine, Job};
use crate::builtin::{Call, Step};
use crate::definition::Outputs;
use crate::failure::Failure;
use crate::stop::StopToken;

const FAILED_BY_DEBUGGER: &str = "failed by the debugger";

impl<J: Job> Engine<J> {
    /// Pauses before or after a step of the plan, if there is a breakpoint. `failure` is as in [`PausePoint::enter`].
    async fn pause(&self, step: &Step<J>, failure: Option<&str>, stop: &StopToken) -> Verdict {
        // The steps of a step file are paused separately.
        let debugger = self.job.debugger().filter(|_| !matches!(step.call, Call::StepFile(_)));
        let Some(debugger) = debugger else { return Verdict::Continue };
        let call = || {
            let text = |value: std::ffi::OsString| Value::String(value.to_string_lossy().into_owned());
            let env = self.job.step_environment().into_iter();
            CallRecord {
                env: env.map(|(key, value)| (key.to_string_lossy().into_owned(), text(value))).collect(),
                work_dir: self.job.work_dir().display().to_string(),
                ..CallRecord::default()
            }
        };
        match PausePoint::enter(debugger, &step.name, failure, call).await {
            // Boxed, so that the future takes memory only in jobs with a debugger.
            Some(point) => Box::pin(self.serve_debugger(point, stop)).await,
            None => Verdict::Continue,
        }
    }

    async fn serve_debugger(&self, mut point: PausePoint, stop: &StopToken) -> Verdict {
        loop {
            match point.next(stop).await {
                PauseEvent::End(verdict) => return verdict,
                PauseEvent::Execute(command) => {
                    let context = CommandContext {
                        processes: self.job.processes(),
                        env: self.job.step_environment(),
                        work_dir: self.job.work_dir().to_owned(),
                        grace: self.job.grace(),
                    };
                    run_command(command, context, None, stop).await;
                }
            }
        }
    }

    pub(super) async fn run_with_pauses(
        &self,
        step: &Step<J>,
        stop: &StopToken,
        work: impl Future<Output = Result<(), Failure>>,
    ) -> Result<(), Failure> {
        match self.pause(step, None, stop).await {
            Verdict::Skip => {
                self.set_state(step, StepState::Skipped);
                return Ok(());
            }
            Verdict::Fail => return Err(Failure::Step(FAILED_BY_DEBUGGER.to_owned())),
            // The step itself reacts to the stop, because cleanup steps run nevertheless.
            Verdict::Continue | Verdict::Stopped(_) => {}
        }
        let result = work.await;
        let failure = result.as_ref().err().map(ToString::to_string).unwrap_or_default();
        match self.pause(step, Some(&failure), stop).await {
            Verdict::Skip => Ok(()),
            Verdict::Fail => Err(Failure::Step(FAILED_BY_DEBUGGER.to_owned())),
            Verdict::Continue | Verdict::Stopped(_) => result,
        }
    }
}

pub(super) struct PausableStep<'p> {
    pub(super) steps: &'p UserSteps<'p>,
    pub(super) invocation: &'p Invocation<'p>,
    pub(super) frame: &'p Frame<'p>,
    pub(super) details: &'p Details,
}

type CallResult = Result<Map<String, Value>, StepError>;

impl PausableStep<'_> {
    /// Pauses before the step, if there is a breakpoint. Returns a result if the step must not run.
    pub(super) async fn before(&self) -> Option<CallResult> {
        match self.pause(None).await {
            Verdict::Continue => None,
            Verdict::Skip => {
                self.steps.set_state(self.invocation.path, StepState::Skipped);
                Some(Ok(default_outputs(self.invocation)))
            }
            Verdict::Fail => Some(Err(StepError::Step(FAILED_BY_DEBUGGER.to_owned()))),
            Verdict::Stopped(cause) => Some(Err(StepError::Stopped(cause))),
        }
    }

    /// Pauses after the step, if there is a breakpoint. Returns the new result of the step.
    pub(super) async fn after(&self, result: CallResult) -> CallResult {
        if matches!(&result, Err(error) if matches!(error.cause(), StepError::Stopped(_))) {
            return result;
        }
        match (self.pause(Some(&result)).await, result) {
            (Verdict::Skip, Err(_)) => Ok(default_outputs(self.invocation)),
            (Verdict::Continue | Verdict::Skip, result) => result,
            (Verdict::Fail, _) => Err(StepError::Step(FAILED_BY_DEBUGGER.to_owned())),
            (Verdict::Stopped(cause), _) => Err(StepError::Stopped(cause)),
        }
    }

    async fn pause(&self, result: Option<&CallResult>) -> Verdict {
        let Self { steps, invocation, frame, details } = *self;
        // Only the outermost list has an empty path.
        let Some(debugger) = steps.debugger.filter(|_| !frame.path.is_empty()) else { return Verdict::Continue };
        let failure = result.map(|result| match result {
            Ok(_) => String::new(),
            Err(error) => steps.log.mask(&muster_job::error_chain(error)),
        });
        let call = || {
            let outputs = result.and_then(|result| result.as_ref().ok()).cloned().unwrap_or_default();
            let mut record = steps.call_record(invocation, details, &outputs);
            let env = steps.full_env(&frame.env).into_iter();
            record.env = env.map(|(key, value)| (key, Value::String(value))).collect();
            record.masked(&|text| steps.log.mask(text))
        };
        match PausePoint::enter(debugger, &frame.path, failure.as_deref(), call).await {
            Some(point) => Box::pin(self.serve_debugger(point)).await,
            None => Verdict::Continue,
        }
    }

    async fn serve_debugger(&self, mut point: PausePoint) -> Verdict {
        let Self { steps, frame, .. } = *self;
        loop {
            match point.next(steps.stop).await {
                PauseEvent::End(verdict) => return verdict,
                PauseEvent::Execute(command) => {
                    let context = CommandContext {
                        processes: steps.processes,
                        env: steps.process_env(&frame.env),
                        work_dir: steps.work_dir.to_owned(),
                        grace: steps.grace,
                    };
                    run_command(command, context, Some(&*steps.log), steps.stop).await;
                }
            }
        }
    }
}

fn default_outputs(invocation: &Invocation<'_>) -> Map<String, Value> {
    let Outputs::Declared(outputs) = &invocation.file.spec.outputs else { return Map::new() };
    outputs.iter().filter_map(|(name, output)| Some((name.clone(), output.default.clone()?))).collect()
}
