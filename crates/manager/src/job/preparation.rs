//! The preparation of a job before an agent has it: its plan, the slots that were lost, and the time limit.

use std::time::Duration;

use muster_config::settings::{RunnerSettings, TlsFiles};
use muster_job::Secret;
use muster_runner_api::payload::JobPayload;
use tokio::time::Instant;

use crate::lower::{Certificates, JobContext, LowerError, LoweredJob, job_timeout, lower};
use crate::observe::JobWatch;

/// Number of failed attempts to reach an agent, in one or several slots, after which the job fails.
const MAX_UNREACHABLE_SLOTS: u32 = 3;
/// Number of lost slots after which a job fails instead of being rescheduled.
const MAX_RESCHEDULES: usize = 10;

/// Preparation of one job: everything between its slot and its start.
pub(super) struct Preparation {
    /// Maximum time to prepare the job. `None` means that only the job's own timeout applies.
    timeout: Option<Duration>,
    deadline: Option<Instant>,
    /// Plan for the current slot.
    lowered: Option<LoweredJob>,
    /// Lines for the trace about slots that were lost before anything was started.
    reschedule_notes: Vec<String>,
    unreachable_slots: u32,
}

impl Preparation {
    pub(super) fn new(payload: &JobPayload, runner: &RunnerSettings) -> Self {
        // A limit longer than the job's own timeout has no effect.
        let timeout = runner.prepare_timeout.filter(|limit| *limit <= job_timeout(payload));
        let mut preparation =
            Self { timeout, deadline: None, lowered: None, reschedule_notes: Vec::new(), unreachable_slots: 0 };
        preparation.restart_deadline();
        preparation
    }

    pub(super) fn restart_deadline(&mut self) {
        self.deadline = self.timeout.map(|timeout| Instant::now() + timeout);
    }

    /// Returns the time by which an agent must have the job.
    /// `None` means that only the job's own timeout applies.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Counts a failed attempt to reach an agent.
    /// Returns whether the job may try again, in this slot or another one.
    pub(super) fn count_unreachable(&mut self) -> bool {
        self.unreachable_slots += 1;
        self.unreachable_slots < MAX_UNREACHABLE_SLOTS
    }

    /// Returns the number of failed attempts to reach an agent.
    pub(super) fn unreachable_slots(&self) -> u32 {
        self.unreachable_slots
    }

    pub(super) fn may_reschedule(&self) -> bool {
        self.reschedule_notes.len() < MAX_RESCHEDULES
    }

    /// Adds a line about a lost slot, in which nothing was started, to the trace.
    /// `had_machine` shows whether the slot had a separate virtual machine.
    pub(super) fn note_reschedule(&mut self, message: &str, had_machine: bool) {
        let target = if had_machine { "another virtual machine" } else { "another instance" };
        self.reschedule_notes
            .push(format!("{message}; none of the job's commands had started, so the job was rescheduled to {target}"));
    }

    /// Returns the lines about slots that were lost before anything was started.
    pub(super) fn reschedule_notes(&self) -> &[String] {
        &self.reschedule_notes
    }

    /// Returns the plan for the current slot. `None` until the payload is lowered.
    pub(super) fn lowered(&self) -> Option<&LoweredJob> {
        self.lowered.as_ref()
    }

    /// Drops the plan: the job gets another slot.
    pub(super) fn reset_plan(&mut self) {
        self.lowered = None;
    }

    /// Lowers the payload. The same slot always gets the same plan.
    ///
    /// # Errors
    /// [`LowerError`] if the job requests something that the runner does not support.
    pub(super) fn lower(
        &mut self,
        payload: &JobPayload,
        job: &JobContext,
        watch: &JobWatch,
        require_start_approval: bool,
    ) -> Result<(), LowerError> {
        let lowered = lower(payload, job);
        watch.lowered(&lowered);
        let mut lowered = lowered?;
        // A job's own `TRACEPARENT` takes precedence.
        let traceparent =
            watch.traceparent().filter(|added| lowered.variables.iter().all(|known| known.key != added.key));
        lowered.variables.extend(traceparent);
        lowered.plan.require_start_approval = require_start_approval;
        self.lowered = Some(lowered);
        Ok(())
    }
}

/// Reads the runner's TLS files.
///
/// The files are read for each job, because certificates are replaced while a manager runs. A file that cannot be read is left out: the
/// calls that need it fail with a better error.
pub(super) fn certificates(files: &TlsFiles) -> Certificates {
    let read = |path: &Option<std::path::PathBuf>| {
        let path = path.as_ref()?;
        std::fs::read_to_string(path)
            .inspect_err(|error| tracing::warn!(path = %path.display(), %error, "failed to read a TLS file"))
            .ok()
            .map(Secret::new)
    };
    Certificates { ca: read(&files.ca), certificate: read(&files.certificate), key: read(&files.key) }
}
