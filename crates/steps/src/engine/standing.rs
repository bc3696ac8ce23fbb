//! How a job stands between two steps, and which step may run then.

use muster_agent_api::plan::When;
use muster_job::TerminationCause;

use super::Brakes;
use crate::builtin::{Role, Step};
use crate::failure::Failure;
use crate::style;

/// How a job stands.
#[derive(Debug, Default)]
pub(super) struct Standing {
    /// The first failure: the one that is reported.
    failure: Option<Failure>,
    /// Nothing but cleaning up runs any more.
    over: bool,
    /// The user's script has started, so that after_script has to run.
    script_started: bool,
    /// The script steps are behind, or were never reached.
    script_over: bool,
}

impl Standing {
    fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
    }

    pub(super) fn failure(self) -> Option<Failure> {
        self.failure
    }

    /// Takes note of a cancel or an abort that came since the last step.
    pub(super) fn notice(&mut self, brakes: &Brakes) {
        if let Some(cause) = brakes.stop.cause() {
            self.fail(Failure::Stopped(cause));
            self.over = true;
        }
        if brakes.cancel.is_cancelled() && !self.is_canceled() {
            self.fail(Failure::Stopped(TerminationCause::CanceledByUser));
            // Between the scripts a cancel is one of the script; before and after them it ends the job.
            self.over |= !self.script_started || self.script_over;
        }
    }

    fn is_canceled(&self) -> bool {
        self.failure == Some(Failure::Stopped(TerminationCause::CanceledByUser))
    }

    pub(super) fn allows<J>(&self, step: &Step<J>) -> bool {
        if step.policy.when == When::Finally {
            return true;
        }
        if self.over || (step.role() == Role::AfterScript && !self.script_started) {
            return false;
        }
        match step.policy.when {
            When::OnSuccess => self.failure.is_none(),
            When::OnFailure => self.failure.is_some(),
            When::Always | When::Finally => true,
        }
    }

    pub(super) fn enter<J>(&mut self, step: &Step<J>) {
        let is_script = step.role() == Role::Script;
        self.script_over = self.script_started && !is_script;
        self.script_started |= is_script;
    }

    /// Returns whether a cancel ends a step while it runs: not after_script, which a canceled job still has to run.
    pub(super) fn cancel_reaches<J>(&self, step: &Step<J>) -> bool {
        step.role() != Role::AfterScript && step.policy.when != When::Finally && !self.is_canceled()
    }

    /// CI_JOB_STATUS: `running` up to the end of the scripts (job-execution 1.6).
    pub(super) fn word<J>(&self, step: &Step<J>) -> &'static str {
        match &self.failure {
            _ if step.role() == Role::Script || !self.script_started => "running",
            None => "success",
            Some(Failure::Stopped(TerminationCause::CanceledByUser)) => "canceled",
            Some(Failure::Stopped(TerminationCause::TimedOut) | Failure::StepTimeout(_) | Failure::JobTimeout(_)) => {
                "timedout"
            }
            Some(_) => "failed",
        }
    }

    /// Takes note of what the failure of a step means for the job. `say` writes to the log.
    pub(super) fn settle<J>(&mut self, step: &Step<J>, failure: Failure, brakes: &Brakes, say: impl Fn(&str)) {
        let in_script = step.role() == Role::Script;
        match &failure {
            Failure::Stopped(TerminationCause::CanceledByUser) if in_script && brakes.stop.cause().is_none() => {
                say(&style::warning("script canceled externally (UI, API)"));
            }
            // No shell of the job would come any further.
            Failure::Profile(..) => {
                self.over = true;
                self.fail(failure);
                return;
            }
            Failure::Stopped(_) | Failure::JobTimeout(_) => self.over = true,
            // A limit of the script leaves time for after_script; the others leave no environment to go on in.
            Failure::StepTimeout(_) if !step.policy.allow_failure => self.over |= !in_script,
            _ => {}
        }
        if step.policy.allow_failure && !self.over {
            say(&style::warning(&if step.role() == Role::AfterScript {
                format!("after_script failed, but job will continue unaffected: {failure}")
            } else {
                format!("{} failed, but the job goes on: {failure}", step.name)
            }));
            return;
        }
        self.fail(failure);
    }
}
