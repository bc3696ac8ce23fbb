//! Progress of a job between two steps, which determines the steps that may still run.

use muster_agent_api::plan::{UploadRole, When};
use muster_job::TerminationCause;

use super::JobCancellation;
use crate::builtin::{Role, Step};
use crate::failure::Failure;
use crate::style;

#[derive(Debug, Default)]
pub(super) struct JobProgress {
    failure: Option<Failure>,
    /// Whether only cleanup steps may still run.
    is_finishing: bool,
    /// Whether an operator's step that checks or signs artifacts failed, so that no artifacts are uploaded.
    refuses_upload: bool,
    script_started: bool,
    script_ended: bool,
}

impl JobProgress {
    fn record_first_failure(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
    }

    pub(super) fn failure(self) -> Option<Failure> {
        self.failure
    }

    pub(super) fn observe_cancel(&mut self, cancellation: &JobCancellation) {
        if let Some(cause) = cancellation.stop.cause() {
            self.record_first_failure(Failure::Stopped(cause));
            self.is_finishing = true;
        }
        if cancellation.cancel.is_cancelled() && !self.is_canceled() {
            self.record_first_failure(Failure::Stopped(TerminationCause::CanceledByUser));
            // A cancel between two script steps cancels the script. A cancel before or after the script ends the job.
            self.is_finishing |= !self.script_started || self.script_ended;
        }
    }

    fn is_canceled(&self) -> bool {
        self.failure == Some(Failure::Stopped(TerminationCause::CanceledByUser))
    }

    pub(super) fn allows<J>(&self, step: &Step<J>) -> bool {
        if step.policy.when == When::Finally {
            return true;
        }
        if self.refuses_upload && step.policy.upload_role == UploadRole::Upload {
            return false;
        }
        if self.is_finishing || (step.role() == Role::AfterScript && !self.script_started) {
            return false;
        }
        step.policy.when.allows(self.failure.is_some())
    }

    pub(super) fn begin_step<J>(&mut self, step: &Step<J>) {
        let is_script = step.role() == Role::Script;
        self.script_ended = self.script_started && !is_script;
        self.script_started |= is_script;
    }

    /// Returns whether a cancel ends the step while it runs. A cancel never ends after_script.
    pub(super) fn is_cancelable<J>(&self, step: &Step<J>) -> bool {
        step.role() != Role::AfterScript && step.policy.when != When::Finally && !self.is_canceled()
    }

    /// Returns `CI_JOB_STATUS` for the step: `running` until the scripts have ended (docs/spec/job-execution.md, section 1.6).
    pub(super) fn ci_job_status<J>(&self, step: &Step<J>) -> &'static str {
        match &self.failure {
            _ if step.role() == Role::Script => "running",
            // An operator's step after a job whose script never started gets the result of the job.
            failure if !self.script_started && (failure.is_none() || !step.policy.by_operator) => "running",
            None => "success",
            Some(Failure::Stopped(TerminationCause::CanceledByUser)) => "canceled",
            Some(Failure::Stopped(TerminationCause::TimedOut) | Failure::StepTimeout(_) | Failure::JobTimeout(_)) => {
                "timedout"
            }
            Some(_) => "failed",
        }
    }

    pub(super) fn record_failure<J>(
        &mut self,
        step: &Step<J>,
        failure: Failure,
        cancellation: &JobCancellation,
        print: impl Fn(&str),
    ) {
        let in_script = step.role() == Role::Script;
        self.refuses_upload |= step.policy.upload_role == UploadRole::Check && !step.policy.allow_failure;
        match &failure {
            Failure::Stopped(TerminationCause::CanceledByUser) if in_script && cancellation.stop.cause().is_none() => {
                print(&style::warning("script canceled externally (UI, API)"));
            }
            // Every later shell of the job would fail in the same way.
            Failure::Profile(..) => {
                self.is_finishing = true;
                self.record_first_failure(failure);
                return;
            }
            Failure::Stopped(_) | Failure::JobTimeout(_) => self.is_finishing = true,
            // After a timeout outside of the script, only cleanup steps run.
            Failure::StepTimeout(_) if !step.policy.allow_failure => self.is_finishing |= !in_script,
            _ => {}
        }
        if step.policy.by_operator && self.failure.is_some() {
            // The job reports only its first failure.
            print(&style::warning(&failure.to_string()));
            return;
        }
        if step.policy.allow_failure && !self.is_finishing {
            print(&style::warning(&if step.role() == Role::AfterScript {
                format!("after_script failed, but job will continue unaffected: {failure}")
            } else {
                format!("{} failed, but the job continues: {failure}", step.name)
            }));
            return;
        }
        self.record_first_failure(failure);
    }
}
