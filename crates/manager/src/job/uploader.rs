//! Sends a job's trace and its final update to the coordinator.
//!
//! The trace is sent in pieces, in order. A job without new output sends a keep-alive instead. The length that the
//! coordinator acknowledged is authoritative (R5). The uploader takes no more bytes while it has [`MAX_PIECE_BYTES`] that are
//! not acknowledged. These bytes wait in the agent's spool.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use muster_config::settings::RunnerSettings;
use muster_job::JobStatus;
use muster_runner_api::client::{Client, ClientError};
use muster_runner_api::payload::JobPayload;
use muster_runner_api::retry::{Backoff, Policy};
use muster_runner_api::wire::UpdateRequest;
use tokio::time::Instant;

use super::backoff::NoProgressBackoff;
use crate::failure;
use crate::observe::JobWatch;

/// Maximum size of one piece of a trace, as in gitlab-runner.
const MAX_PIECE_BYTES: usize = 1024 * 1024;
/// Time between two uploads, unless the coordinator sets another one.
const UPDATE_INTERVAL: Duration = Duration::from_secs(3);
/// Time after which a job without new output is reported as running.
///
/// The coordinator can cancel a job only in its answer to a call, so the manager must call even if it has nothing to send.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// Minimum keep-alive of a job whose coordinator sets its own trace interval.
///
/// Only Muster's own coordinator does so. Calls to it are cheap, so a quiet job contacts it once in ten intervals to notice a
/// cancellation early.
const MIN_KEEP_ALIVE: Duration = Duration::from_secs(1);
/// Lower bound of the longest wait between two attempts.
const MIN_RETRY_CAP: Duration = Duration::from_secs(1);
/// Default delay before a report is repeated while the coordinator still processes it.
const REPORT_RETRY_DELAY: Duration = Duration::from_secs(1);

/// Consequence of an answer of the coordinator for the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UploadOutcome {
    /// The job continues. A failed call is repeated after [`Uploader::pause`].
    Continue,
    /// The coordinator's length is not in the buffer: follow the agent's log from [`Uploader::end`].
    Resync,
    /// The coordinator cancels the job.
    Cancel,
    /// The job has ended at the coordinator, or belongs to another manager.
    JobGone,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReportOutcome {
    /// The coordinator has acknowledged the final update.
    Acknowledged,
    /// The job has ended at the coordinator, or belongs to another manager.
    /// Also returned if the coordinator rejected the final update too often.
    JobGone,
    /// The coordinator's copy of the trace is wrong. The whole trace must be sent again.
    ResendTrace,
}

pub(super) enum ReportAttempt {
    /// No further attempt is needed.
    Ended(ReportOutcome),
    /// The coordinator did not accept the report. It is repeated at this time.
    RetryAt(Instant),
}

pub(super) struct Uploader {
    client: Client,
    payload: Arc<JobPayload>,
    acknowledged: u64,
    buffer: BytesMut,
    interval: Duration,
    keep_alive: Duration,
    /// Whether the payload sets the interval. The intervals in the coordinator's answers are then ignored.
    is_interval_fixed: bool,
    sent_at: Instant,
    contact_at: Instant,
    /// Time before which nothing is sent, after a failure.
    not_before: Option<Instant>,
    backoff: Backoff,
    rejections: u32,
    /// Whether the coordinator rejected the last call as invalid.
    was_last_rejected: bool,
    /// Whether the job has ended, and only its report is left.
    has_ended: bool,
    /// Whether the coordinator accepts no more of the trace. It may still accept the report.
    trace_refused: bool,
    /// Whether the coordinator has canceled the job.
    canceled: bool,
    /// Number of rejections of a call after which they count as final.
    max_rejections: u32,
    debug_trace: bool,
    watch: Arc<JobWatch>,
}

impl Uploader {
    /// Returns the upload of a job of `runner`, from the start of its trace.
    pub(super) fn new(client: Client, payload: Arc<JobPayload>, watch: Arc<JobWatch>, runner: &RunnerSettings) -> Self {
        let payload_interval =
            payload.muster.as_ref().and_then(|extension| extension.trace_interval_ms).map(Duration::from_millis);
        let is_set = |name| payload.variables.iter().any(|var| var.key == name && matches!(&*var.value, "true" | "1"));
        // GitLab shows the log of a job with a debug trace to fewer users.
        let debug_trace = !runner.debug_trace_disabled && (is_set("CI_DEBUG_TRACE") || is_set("CI_DEBUG_SERVICES"));
        let now = Instant::now();
        Self {
            client,
            acknowledged: 0,
            buffer: BytesMut::new(),
            interval: payload_interval.unwrap_or(UPDATE_INTERVAL),
            keep_alive: payload_interval
                .map_or(KEEP_ALIVE, |interval| interval.saturating_mul(10).clamp(MIN_KEEP_ALIVE, KEEP_ALIVE)),
            is_interval_fixed: payload_interval.is_some(),
            sent_at: now,
            contact_at: now,
            not_before: None,
            backoff: Backoff::new(Policy::UNTIL_ACKNOWLEDGED),
            rejections: 0,
            was_last_rejected: false,
            has_ended: false,
            trace_refused: false,
            canceled: false,
            max_rejections: runner.final_update_retry_limit.max(1),
            debug_trace,
            watch,
            payload,
        }
    }

    /// Returns the offset in the trace at which the next pushed byte is placed.
    pub(super) fn end(&self) -> u64 {
        self.acknowledged + self.buffer.len() as u64
    }

    /// Returns whether the coordinator rejected the last call as invalid.
    pub(super) fn was_rejected(&self) -> bool {
        self.must_repeat() && self.was_last_rejected
    }

    /// Returns the length of the trace that the coordinator has acknowledged.
    pub(super) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Records that the job has ended.
    /// From now on rejections count, because the report must not wait for the trace.
    pub(super) fn set_ended(&mut self) {
        self.has_ended = true;
    }

    /// Returns whether the job has ended, and the coordinator accepts no more of its trace.
    /// Only the final update is left.
    pub(super) fn is_trace_refused(&self) -> bool {
        self.has_ended && self.trace_refused
    }

    /// Returns whether more bytes may be pushed. Otherwise the agent's stream must wait.
    pub(super) fn has_capacity(&self) -> bool {
        self.buffer.len() < MAX_PIECE_BYTES
    }

    /// Adds the bytes that follow [`Self::end`].
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
        self.watch.log(bytes);
        self.watch.uploaded(self.acknowledged, self.buffer.len() as u64);
    }

    /// Returns whether every byte is acknowledged.
    pub(super) fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Empties the buffer and continues the trace at `length`.
    pub(super) fn reset_to(&mut self, length: u64) {
        self.buffer.clear();
        self.acknowledged = length;
        self.watch.restored_trace_length(length);
    }

    /// Returns the time of the next call of [`Self::send`].
    pub(super) fn due(&self) -> Instant {
        let due = match self.buffer.len() {
            0 => self.contact_at + self.keep_alive,
            length if length >= MAX_PIECE_BYTES => self.sent_at,
            _ => self.sent_at + self.interval,
        };
        self.not_before.map_or(due, |earliest| due.max(earliest))
    }

    /// Sends one piece, or a keep-alive if the buffer is empty.
    pub(super) async fn send(&mut self) -> UploadOutcome {
        if self.buffer.is_empty() {
            let answer = self.client.update_job(self.payload.id, &failure::running(&self.payload)).await;
            return match answer {
                Ok(reply) => self.answered(reply.status, reply.interval),
                Err(error) => self.failed(&error),
            };
        }
        let piece = BytesMut::from(self.buffer.get(..MAX_PIECE_BYTES).unwrap_or(&self.buffer)).freeze();
        let (id, token) = (self.payload.id, &self.payload.token);
        let answer = self.client.patch_trace(id, token, self.acknowledged, piece, self.debug_trace).await;
        self.sent_at = Instant::now();
        match answer {
            Ok(reply) => {
                self.trace_refused = false;
                let is_in_buffer = self.acknowledge(reply.size);
                match self.answered(reply.status, reply.interval) {
                    UploadOutcome::Continue if !is_in_buffer => UploadOutcome::Resync,
                    outcome => outcome,
                }
            }
            Err(error) => self.trace_failed(&error),
        }
    }

    /// Queries the acknowledged length until the coordinator answers, and continues there.
    ///
    /// Returns [`UploadOutcome::JobGone`] if the coordinator no longer expects the job. Gives up if it refuses the trace of an ended job.
    pub(super) async fn resync(&mut self) -> UploadOutcome {
        loop {
            let outcome = self.query_length().await;
            if outcome == UploadOutcome::JobGone || !self.must_repeat() || self.is_trace_refused() {
                return outcome;
            }
            self.pause().await;
        }
    }

    async fn query_length(&mut self) -> UploadOutcome {
        let (id, token) = (self.payload.id, &self.payload.token);
        match self.client.patch_trace(id, token, 0, bytes::Bytes::new(), self.debug_trace).await {
            Ok(reply) => {
                self.trace_refused = false;
                self.reset_to(reply.size);
                self.answered(reply.status, reply.interval)
            }
            Err(error) => self.trace_failed(&error),
        }
    }

    /// Waits until a failed call may be repeated. Returns at once if the last call succeeded.
    pub(super) async fn pause(&mut self) {
        if let Some(earliest) = self.not_before {
            tokio::time::sleep_until(earliest).await;
        }
    }

    /// Returns whether the last call failed and must be repeated.
    pub(super) fn must_repeat(&self) -> bool {
        self.not_before.is_some()
    }

    /// Removes from the buffer the bytes before `size`, the coordinator's length of the trace.
    ///
    /// If `size` is outside the buffer, empties the buffer and returns false.
    fn acknowledge(&mut self, size: u64) -> bool {
        let new_bytes = size.checked_sub(self.acknowledged).and_then(|new_bytes| usize::try_from(new_bytes).ok());
        match new_bytes.filter(|new_bytes| *new_bytes <= self.buffer.len()) {
            Some(new_bytes) => {
                drop(self.buffer.split_to(new_bytes));
                self.acknowledged = size;
                self.watch.uploaded(size, self.buffer.len() as u64);
                true
            }
            None => {
                tracing::info!(
                    from = self.acknowledged,
                    size,
                    "coordinator has a different trace length, continuing from there"
                );
                self.reset_to(size);
                false
            }
        }
    }

    fn answered(&mut self, status: Option<JobStatus>, interval: Option<Duration>) -> UploadOutcome {
        self.contact_at = Instant::now();
        self.not_before = None;
        self.rejections = 0;
        self.backoff.reset();
        if let Some(interval) = interval.filter(|_| !self.is_interval_fixed) {
            self.interval = interval;
        }
        match status {
            Some(JobStatus::Canceling) => {
                self.canceled = true;
                UploadOutcome::Cancel
            }
            Some(JobStatus::Canceled | JobStatus::Failed) => UploadOutcome::JobGone,
            _ => UploadOutcome::Continue,
        }
    }

    pub(super) fn is_canceled(&self) -> bool {
        self.canceled
    }

    /// Sends the final update once.
    pub(super) async fn report(&mut self, update: &UpdateRequest) -> ReportAttempt {
        match self.client.update_job(self.payload.id, update).await {
            Ok(reply) if reply.applied => ReportAttempt::Ended(ReportOutcome::Acknowledged),
            Ok(reply) if reply.resend_trace => {
                tokio::time::sleep(reply.interval.unwrap_or(REPORT_RETRY_DELAY)).await;
                ReportAttempt::Ended(ReportOutcome::ResendTrace)
            }
            // GitLab acknowledges the report of a failed job with these states.
            Ok(reply) if matches!(reply.status, Some(JobStatus::Canceled | JobStatus::Failed)) => {
                ReportAttempt::Ended(ReportOutcome::Acknowledged)
            }
            Ok(reply) => ReportAttempt::RetryAt(Instant::now() + reply.interval.unwrap_or(REPORT_RETRY_DELAY)),
            Err(error) => match self.report_failed(&error) {
                UploadOutcome::JobGone => ReportAttempt::Ended(ReportOutcome::JobGone),
                _ => ReportAttempt::RetryAt(self.not_before.unwrap_or_else(Instant::now)),
            },
        }
    }

    /// Appends the part of `message` that the trace does not have yet.
    /// `offset` is the position of the message in the trace.
    ///
    /// Returns false if the coordinator no longer expects the job.
    pub(super) async fn append_trace_message(&mut self, message: &str, offset: u64) -> bool {
        let mut backoff = NoProgressBackoff::new(self.acknowledged);
        loop {
            if self.resync().await == UploadOutcome::JobGone {
                return false;
            }
            if self.is_trace_refused() {
                return true;
            }
            let sent = self.end().checked_sub(offset).and_then(|sent| usize::try_from(sent).ok());
            let rest = sent.and_then(|sent| message.as_bytes().get(sent..)).unwrap_or_default();
            if rest.is_empty() {
                return true;
            }
            self.push(rest);
            match self.send().await {
                UploadOutcome::JobGone => return false,
                _ => self.pause().await,
            }
            tokio::time::sleep(backoff.pause(self.acknowledged)).await;
        }
    }

    /// Handles a failed final update.
    /// Gives up after `job_status_final_update_retry_limit` rejections, as gitlab-runner does.
    fn report_failed(&mut self, error: &ClientError) -> UploadOutcome {
        if self.rejected(error) {
            tracing::error!(
                %error,
                rejections = self.rejections,
                "coordinator rejected the final update, giving up; \
                 set job_status_final_update_retry_limit to change the number of attempts"
            );
            return UploadOutcome::JobGone;
        }
        self.failed(error)
    }

    /// Handles a failed upload of the trace.
    ///
    /// The trace of a running job is sent again after every error, as in gitlab-runner. The rest of the trace of a job
    /// that has ended is skipped if the coordinator keeps rejecting it, because it must not delay the job's report.
    fn trace_failed(&mut self, error: &ClientError) -> UploadOutcome {
        if self.has_ended && (error.is_missing() || self.rejected(error)) {
            tracing::error!(%error, trace_offset = self.acknowledged, "coordinator rejected the trace, skipping the rest");
            self.trace_refused = true;
            self.rejections = 0;
        }
        self.failed(error)
    }

    /// Counts a rejection. Returns whether the limit is reached.
    fn rejected(&mut self, error: &ClientError) -> bool {
        self.rejections += u32::from(error.transient().is_none() && !error.is_job_closed());
        self.rejections >= self.max_rejections
    }

    /// Ends the job if the coordinator no longer expects it. Otherwise schedules a repetition of the call.
    fn failed(&mut self, error: &ClientError) -> UploadOutcome {
        if error.is_job_closed() {
            tracing::info!(%error, "coordinator no longer expects the job");
            return UploadOutcome::JobGone;
        }
        self.was_last_rejected = error.transient().is_none();
        self.watch.repeated();
        // The longest wait is one update interval (1 to 60 seconds): a coordinator that recovers has everything within one interval, and one that is
        // overloaded gets no more calls than a healthy one.
        self.backoff.set_cap(retry_cap(self.interval));
        let wait = self.backoff.next_wait(error.transient().flatten()).unwrap_or(KEEP_ALIVE);
        tracing::warn!(%error, failures = self.backoff.failures(), wait_ms = muster_job::milliseconds(wait), "failed to send the trace or job state, retrying");
        self.not_before = Some(Instant::now() + wait);
        UploadOutcome::Continue
    }
}

/// Returns the longest wait between two attempts for the coordinator's interval.
fn retry_cap(interval: Duration) -> Duration {
    interval.clamp(MIN_RETRY_CAP, Policy::UNTIL_ACKNOWLEDGED.cap)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_retry_wait_is_one_update_interval_but_at_least_a_second_and_at_most_a_minute() {
        let seconds = Duration::from_secs;
        assert_eq!(retry_cap(UPDATE_INTERVAL), UPDATE_INTERVAL);
        assert_eq!(retry_cap(seconds(60)), seconds(60));
        assert_eq!(retry_cap(seconds(900)), seconds(60));
        assert_eq!(retry_cap(Duration::from_millis(20)), seconds(1));
    }
}
