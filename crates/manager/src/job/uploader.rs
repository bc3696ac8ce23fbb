//! Sends a job's trace and its final update to the coordinator.
//!
//! The acknowledged length of the trace is authoritative (R5). Unacknowledged bytes beyond [`MAX_PIECE_BYTES`] remain in the agent's spool.

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

/// Maximum size of one piece, as in gitlab-runner.
const MAX_PIECE_BYTES: usize = 1024 * 1024;
/// Default time between two uploads.
const UPDATE_INTERVAL: Duration = Duration::from_secs(3);
/// Time after which a job without output is reported as running.
///
/// The coordinator can cancel a job only in its answer to a call.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// Minimum time between two keep-alives if the coordinator sets a trace interval, as only Muster's does.
///
/// If ten intervals are longer, a keep-alive is sent every ten intervals.
const MIN_KEEP_ALIVE: Duration = Duration::from_secs(1);
/// The wait between two attempts grows to the update interval, but at least to this time.
const MIN_RETRY_CAP: Duration = Duration::from_secs(1);
/// Default delay before repeating a report that the coordinator still processes.
const REPORT_RETRY_DELAY: Duration = Duration::from_secs(1);

/// What the coordinator's answer to a call means for the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UploadOutcome {
    /// A failed call is repeated after [`Uploader::pause`].
    Continue,
    /// The agent's log must be followed from [`Uploader::end`].
    Resync,
    Cancel,
    /// The job has ended at the coordinator, or belongs to another manager.
    JobGone,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReportOutcome {
    Acknowledged,
    /// The job has ended, or belongs to another manager, or its final update was rejected too often.
    JobGone,
    /// The whole trace must be sent again.
    ResendTrace,
}

pub(super) enum ReportAttempt {
    Ended(ReportOutcome),
    /// The report is repeated at this time.
    RetryAt(Instant),
}

pub(super) struct Uploader {
    client: Client,
    payload: Arc<JobPayload>,
    acknowledged: u64,
    buffer: BytesMut,
    interval: Duration,
    keep_alive: Duration,
    /// Whether the payload sets the interval, so that the intervals in answers are ignored.
    is_interval_fixed: bool,
    sent_at: Instant,
    last_answer_at: Instant,
    /// Time before which nothing is sent after a failure.
    not_before: Option<Instant>,
    backoff: Backoff,
    rejections: u32,
    /// Whether the coordinator rejected the last failed call as invalid.
    was_last_rejected: bool,
    /// Whether only the report is left.
    has_ended: bool,
    /// Whether the coordinator accepts no more trace. It may still accept the report.
    trace_refused: bool,
    canceled: bool,
    /// Number of rejections after which a call is not repeated.
    max_rejections: u32,
    debug_trace: bool,
    watch: Arc<JobWatch>,
}

impl Uploader {
    /// Starts at the beginning of the trace.
    pub(super) fn new(client: Client, payload: Arc<JobPayload>, watch: Arc<JobWatch>, runner: &RunnerSettings) -> Self {
        let payload_interval =
            payload.muster.as_ref().and_then(|extension| extension.trace_interval_ms).map(Duration::from_millis);
        let is_set = |name| payload.variables.iter().any(|var| var.key == name && matches!(&*var.value, "true" | "1"));
        // GitLab shows a log with a debug trace to fewer users.
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
            last_answer_at: now,
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

    /// Returns the offset in the trace of the next pushed byte.
    pub(super) fn end(&self) -> u64 {
        self.acknowledged + self.buffer.len() as u64
    }

    /// Returns whether the last call failed because the coordinator rejected it as invalid.
    pub(super) fn was_rejected(&self) -> bool {
        self.must_repeat() && self.was_last_rejected
    }

    pub(super) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Records that the job has ended.
    ///
    /// From now on, the rest of the trace is skipped after several rejections, because the report must not wait for it.
    pub(super) fn set_ended(&mut self) {
        self.has_ended = true;
    }

    /// Returns whether the job has ended, and the coordinator accepts no more of its trace.
    pub(super) fn is_trace_refused(&self) -> bool {
        self.has_ended && self.trace_refused
    }

    /// Returns whether more bytes may be pushed. Otherwise, the agent's stream must wait.
    pub(super) fn has_capacity(&self) -> bool {
        self.buffer.len() < MAX_PIECE_BYTES
    }

    /// Adds bytes at [`Self::end`].
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
        self.watch.log_received(bytes);
        self.watch.uploaded(self.acknowledged, self.buffer.len() as u64);
    }

    /// Returns whether every pushed byte is acknowledged.
    pub(super) fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Empties the buffer and continues the trace at `length`.
    pub(super) fn reset_to(&mut self, length: u64) {
        self.buffer.clear();
        self.acknowledged = length;
        self.watch.restored_trace_length(length);
    }

    /// Returns when [`Self::send`] must be called next.
    pub(super) fn due(&self) -> Instant {
        let due = match self.buffer.len() {
            0 => self.last_answer_at + self.keep_alive,
            length if length >= MAX_PIECE_BYTES => self.sent_at,
            _ => self.sent_at + self.interval,
        };
        self.not_before.map_or(due, |earliest| due.max(earliest))
    }

    /// Sends one piece, or a keep-alive if the buffer is empty.
    pub(super) async fn send(&mut self) -> UploadOutcome {
        if self.buffer.is_empty() {
            let answer = self.client.update_job(self.payload.id, &failure::running_update(&self.payload)).await;
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

    /// Continues at the acknowledged length, which is queried until the coordinator answers.
    ///
    /// Gives up if the job is no longer expected, or the trace of an ended job is refused.
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

    /// If the last call failed, waits until it may be repeated.
    pub(super) async fn pause(&mut self) {
        if let Some(earliest) = self.not_before {
            tokio::time::sleep_until(earliest).await;
        }
    }

    /// Returns whether the last call failed and must be repeated.
    pub(super) fn must_repeat(&self) -> bool {
        self.not_before.is_some()
    }

    /// Removes the bytes before the coordinator's length `size`.
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
        self.last_answer_at = Instant::now();
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

    /// Appends the missing part of `message`, which begins at `offset` in the trace.
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

    /// Gives up after `job_status_final_update_retry_limit` rejections, as gitlab-runner does.
    fn report_failed(&mut self, error: &ClientError) -> UploadOutcome {
        if self.count_rejection(error) {
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

    /// Sends the trace of a running job again after every error, as in gitlab-runner.
    ///
    /// Gives up on the trace of an ended job after several rejections, because it must not delay the report.
    fn trace_failed(&mut self, error: &ClientError) -> UploadOutcome {
        if self.has_ended && (error.is_missing() || self.count_rejection(error)) {
            tracing::error!(%error, trace_offset = self.acknowledged, "coordinator rejected the trace, skipping the rest");
            self.trace_refused = true;
            self.rejections = 0;
        }
        self.failed(error)
    }

    /// Returns whether the limit is reached.
    fn count_rejection(&mut self, error: &ClientError) -> bool {
        self.rejections += u32::from(error.transient().is_none() && !error.is_job_closed());
        self.rejections >= self.max_rejections
    }

    /// Repeats the call later, unless the coordinator no longer expects the job.
    fn failed(&mut self, error: &ClientError) -> UploadOutcome {
        if error.is_job_closed() {
            tracing::info!(%error, "coordinator no longer expects the job");
            return UploadOutcome::JobGone;
        }
        self.was_last_rejected = error.transient().is_none();
        self.watch.report_retried();
        // The wait grows up to the update interval: an overloaded coordinator gets no more calls than a healthy one.
        self.backoff.set_cap(retry_cap(self.interval));
        let wait = self.backoff.next_wait(error.transient().flatten()).unwrap_or(KEEP_ALIVE);
        tracing::warn!(%error, failures = self.backoff.failures(), wait_ms = muster_job::milliseconds(wait), "failed to send the trace or job state, retrying");
        self.not_before = Some(Instant::now() + wait);
        UploadOutcome::Continue
    }
}

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
