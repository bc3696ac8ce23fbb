//! How a job stands between two phases, and which phase may run then.

use muster_agent_api::builtin::{Phase, PhaseWhen};
use muster_job::EndCause;

use super::phase::Runner;
use super::{Brakes, is_after_script, is_user_script};
use crate::failure::Failure;
use crate::trace::style;

/// How a job stands.
#[derive(Debug, Default)]
pub(super) struct Standing {
    /// The first failure: the one that is reported.
    failure: Option<Failure>,
    /// Nothing but cleaning up runs any more.
    over: bool,
    /// The user's script has started, so that after_script has to run.
    script_started: bool,
    /// The script phases are behind, or were never reached.
    script_over: bool,
}

impl Standing {
    pub(super) fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
    }

    pub(super) fn failure(self) -> Option<Failure> {
        self.failure
    }

    /// Takes note of a cancel or an abort that came since the last phase.
    pub(super) fn notice(&mut self, brakes: &Brakes) {
        if let Some(cause) = brakes.stop.cause() {
            self.fail(Failure::Stopped(cause));
            self.over = true;
        }
        if brakes.cancel.is_cancelled() && !self.is_canceled() {
            self.fail(Failure::Stopped(EndCause::CanceledByUser));
            // Between the scripts a cancel is one of the script; before and after them it ends the job.
            self.over |= !self.script_started || self.script_over;
        }
    }

    fn is_canceled(&self) -> bool {
        self.failure == Some(Failure::Stopped(EndCause::CanceledByUser))
    }

    pub(super) fn allows(&self, phase: &Phase) -> bool {
        if phase.when == PhaseWhen::Finally {
            return true;
        }
        if self.over || (is_after_script(&phase.run) && !self.script_started) {
            return false;
        }
        match phase.when {
            PhaseWhen::OnSuccess => self.failure.is_none(),
            PhaseWhen::OnFailure => self.failure.is_some(),
            PhaseWhen::Always | PhaseWhen::Finally => true,
        }
    }

    pub(super) fn enter(&mut self, is_script: bool) {
        self.script_over = self.script_started && !is_script;
        self.script_started |= is_script;
    }

    /// Whether a cancel ends a phase while it runs: not after_script, which a canceled job still has to run.
    pub(super) fn cancel_reaches(&self, phase: &Phase) -> bool {
        !is_after_script(&phase.run) && phase.when != PhaseWhen::Finally && !self.is_canceled()
    }

    /// CI_JOB_STATUS: `running` up to the end of the scripts (job-execution 1.6).
    pub(super) fn word(&self, is_script: bool) -> &'static str {
        match &self.failure {
            _ if is_script || !self.script_started => "running",
            None => "success",
            Some(Failure::Stopped(EndCause::CanceledByUser)) => "canceled",
            Some(Failure::Stopped(EndCause::TimedOut) | Failure::PhaseTimeout(_) | Failure::JobTimeout(_)) => {
                "timedout"
            }
            Some(_) => "failed",
        }
    }

    /// What the failure of a phase means for the job.
    pub(super) fn settle(&mut self, phase: &Phase, failure: Failure, runner: &Runner<'_>) {
        let say = |line: String| runner.context.say(&line);
        let in_script = is_user_script(&phase.run);
        match &failure {
            Failure::Stopped(EndCause::CanceledByUser) if in_script && runner.brakes.stop.cause().is_none() => {
                say(style::warning("script canceled externally (UI, API)"));
            }
            // No shell of the job would come any further.
            Failure::Profile(..) => {
                self.over = true;
                self.fail(failure);
                return;
            }
            Failure::Stopped(_) | Failure::JobTimeout(_) => self.over = true,
            // A limit of the script leaves time for after_script; the others leave no environment to go on in.
            Failure::PhaseTimeout(_) if !phase.allow_failure => self.over |= !in_script,
            _ => {}
        }
        if phase.allow_failure && !self.over {
            say(style::warning(&if is_after_script(&phase.run) {
                format!("after_script failed, but job will continue unaffected: {failure}")
            } else {
                format!("{} failed, but the job goes on: {failure}", phase.name)
            }));
            return;
        }
        self.fail(failure);
    }
}
