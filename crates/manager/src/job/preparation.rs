//! The preparation of a job for an agent: its plan, its lost slots, and its deadline.

use std::time::Duration;

use muster_config::settings::{RunnerSettings, TlsFiles};
use muster_job::Secret;
use muster_runner_api::payload::JobPayload;
use tokio::time::Instant;

use crate::lower::{Certificates, JobContext, LowerError, LoweredJob, job_timeout, lower};
use crate::observe::JobWatch;

const MAX_UNREACHABLE_ATTEMPTS: u32 = 3;
const MAX_RESCHEDULES: usize = 10;

pub(super) struct Preparation {
    /// Maximum time to prepare the job. `None` means the job's own timeout.
    timeout: Option<Duration>,
    deadline: Option<Instant>,
    lowered: Option<LoweredJob>,
    /// Lines for the trace about lost slots.
    reschedule_notes: Vec<String>,
    unreachable_attempts: u32,
}

impl Preparation {
    pub(super) fn new(payload: &JobPayload, runner: &RunnerSettings) -> Self {
        // A limit that is longer than the job's timeout has no effect.
        let timeout = runner.prepare_timeout.filter(|limit| *limit <= job_timeout(payload));
        let mut preparation =
            Self { timeout, deadline: None, lowered: None, reschedule_notes: Vec::new(), unreachable_attempts: 0 };
        preparation.restart_deadline();
        preparation
    }

    pub(super) fn restart_deadline(&mut self) {
        self.deadline = self.timeout.map(|timeout| Instant::now() + timeout);
    }

    /// Returns when an agent must have accepted the job. `None` means the job's own timeout.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Counts a failed attempt to reach an agent. Returns whether another may follow.
    pub(super) fn count_unreachable(&mut self) -> bool {
        self.unreachable_attempts += 1;
        self.unreachable_attempts < MAX_UNREACHABLE_ATTEMPTS
    }

    pub(super) fn unreachable_attempts(&self) -> u32 {
        self.unreachable_attempts
    }

    pub(super) fn may_reschedule(&self) -> bool {
        self.reschedule_notes.len() < MAX_RESCHEDULES
    }

    /// `had_machine` means that the lost slot had a separate virtual machine.
    pub(super) fn note_reschedule(&mut self, message: &str, had_machine: bool) {
        let target = if had_machine { "another virtual machine" } else { "another instance" };
        self.reschedule_notes
            .push(format!("{message}; none of the job's commands had started, so the job was rescheduled to {target}"));
    }

    pub(super) fn reschedule_notes(&self) -> &[String] {
        &self.reschedule_notes
    }

    /// `None` until [`Self::lower`] has succeeded.
    pub(super) fn lowered(&self) -> Option<&LoweredJob> {
        self.lowered.as_ref()
    }

    /// Drops the plan, because the job gets another slot.
    pub(super) fn reset_plan(&mut self) {
        self.lowered = None;
    }

    /// Lowers the payload. The same slot always gets the same plan.
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

/// Reads the runner's TLS files. Is called for each job, because the files may be replaced.
///
/// Omits an unreadable file: the calls that need it fail with a better error.
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
