//! Sends a job's trace to the coordinator: pieces in order, each once, and a sign of life where there is nothing to send.
//!
//! The coordinator's acknowledged length is the truth (life-of-a-job R5). What is not acknowledged is held here, at most
//! [`PIECE_MAX_BYTES`]; the rest waits in the agent's spool.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use muster_config::settings::RunnerSettings;
use muster_job::JobStatus;
use muster_runner_api::client::{Client, ClientError};
use muster_runner_api::payload::JobPayload;
use muster_runner_api::retry::{Backoff, Policy};
use tokio::time::Instant;

use crate::failure;
use crate::observe::JobWatch;

/// One piece of a trace (job-execution 1.10).
const PIECE_MAX_BYTES: usize = 1024 * 1024;
/// Between two uploads, until the coordinator says otherwise (runner-api 3.2).
const INTERVAL: Duration = Duration::from_secs(3);
/// A job that says nothing is reported as running so often. Only with an answer the coordinator can say that the job is
/// to be canceled: the protocol has no other way, so this is a timer.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// A coordinator that asks for an interval of its own is one of ours and near: a quiet job speaks up as often as every
/// tenth interval, but not more often than this, so that a cancel is soon heard.
const KEEP_ALIVE_NEAR: Duration = Duration::from_secs(1);
/// The least that the longest wait between two tries may be.
const RETRY_CAP_MIN: Duration = Duration::from_secs(1);

/// What an answer of the coordinator means for the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Go on.
    GoOn,
    /// The coordinator's length is not one that the held bytes reach: follow the agent's log from [`Uploader::end`].
    FollowAgain,
    /// Wind the job down.
    Cancel,
    /// The job is not this manager's, or has ended: stop everything.
    Gone,
}

/// The trace of one job on its way.
pub(super) struct Uploader {
    client: Client,
    payload: Arc<JobPayload>,
    acknowledged: u64,
    held: BytesMut,
    interval: Duration,
    keep_alive: Duration,
    /// The interval is ours: the coordinator cannot say less than a second.
    fixed_interval: bool,
    sent_at: Instant,
    contact_at: Instant,
    /// After a failure: nothing is sent before.
    not_before: Option<Instant>,
    backoff: Backoff,
    rejections: u32,
    /// The last call was one that the coordinator takes for wrong.
    rejected_last: bool,
    /// The job has ended: what is left is to report it.
    ending: bool,
    /// The coordinator takes no more of the trace, but may take the report.
    trace_refused: bool,
    /// The coordinator has said that the job is canceled.
    canceled: bool,
    /// Times that the coordinator may say that a call is wrong, before it is taken for final.
    rejections_max: u32,
    debug_trace: bool,
    watch: Arc<JobWatch>,
}

impl Uploader {
    /// Of a job of `runner`.
    pub(super) fn new(client: Client, payload: Arc<JobPayload>, watch: Arc<JobWatch>, runner: &RunnerSettings) -> Self {
        let own = payload.muster.as_ref().and_then(|extension| extension.trace_interval_ms).map(Duration::from_millis);
        let on = |name| payload.variables.iter().any(|var| var.key == name && matches!(&*var.value, "true" | "1"));
        // A job that traces itself has a log that is shown to fewer people.
        let debug_trace = !runner.debug_trace_disabled && (on("CI_DEBUG_TRACE") || on("CI_DEBUG_SERVICES"));
        let now = Instant::now();
        Self {
            client,
            acknowledged: 0,
            held: BytesMut::new(),
            interval: own.unwrap_or(INTERVAL),
            keep_alive: own.map_or(KEEP_ALIVE, |own| own.saturating_mul(10).clamp(KEEP_ALIVE_NEAR, KEEP_ALIVE)),
            fixed_interval: own.is_some(),
            sent_at: now,
            contact_at: now,
            not_before: None,
            backoff: Backoff::new(Policy::UNTIL_ACKNOWLEDGED),
            rejections: 0,
            rejected_last: false,
            ending: false,
            trace_refused: false,
            canceled: false,
            rejections_max: runner.final_update_retry_limit.max(1),
            debug_trace,
            watch,
            payload,
        }
    }

    /// Where the next byte of the log belongs.
    pub(super) fn end(&self) -> u64 {
        self.acknowledged + self.held.len() as u64
    }

    /// Whether the coordinator took the last call for wrong.
    pub(super) fn was_rejected(&self) -> bool {
        self.must_repeat() && self.rejected_last
    }

    /// The length that the coordinator has acknowledged.
    pub(super) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// The job has ended. From now on refusals count: somebody has to hear of the end.
    pub(super) fn ending(&mut self) {
        self.ending = true;
    }

    /// The job has ended, and its trace is not taken any more: what is left to do is the final update.
    pub(super) fn is_trace_refused(&self) -> bool {
        self.ending && self.trace_refused
    }

    /// Whether more bytes may be pushed: else the agent's stream has to wait.
    pub(super) fn has_room(&self) -> bool {
        self.held.len() < PIECE_MAX_BYTES
    }

    /// Takes bytes that follow [`Self::end`].
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
        self.watch.log(bytes);
        self.watch.uploaded(self.acknowledged, self.held.len() as u64);
    }

    /// Everything was acknowledged.
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Forgets what is held: the trace goes on from `length`.
    pub(super) fn rewind(&mut self, length: u64) {
        self.held.clear();
        self.acknowledged = length;
        self.watch.found_uploaded(length);
    }

    /// When [`Self::send`] is to be called next.
    pub(super) fn due(&self) -> Instant {
        let wanted = match self.held.len() {
            0 => self.contact_at + self.keep_alive,
            length if length >= PIECE_MAX_BYTES => self.sent_at,
            _ => self.sent_at + self.interval,
        };
        self.not_before.map_or(wanted, |earliest| wanted.max(earliest))
    }

    /// Sends one piece, or a sign of life where nothing is held.
    pub(super) async fn send(&mut self) -> Verdict {
        if self.held.is_empty() {
            let answer = self.client.update_job(self.payload.id, &failure::running(&self.payload)).await;
            return match answer {
                Ok(reply) => self.heard(reply.status, reply.interval),
                Err(error) => self.failed(&error),
            };
        }
        let piece = BytesMut::from(self.held.get(..PIECE_MAX_BYTES).unwrap_or(&self.held)).freeze();
        let (id, token) = (self.payload.id, &self.payload.token);
        let answer = self.client.patch_trace(id, token, self.acknowledged, piece, self.debug_trace).await;
        self.sent_at = Instant::now();
        match answer {
            Ok(reply) => {
                self.trace_refused = false;
                let reached = self.acknowledge(reply.size);
                match self.heard(reply.status, reply.interval) {
                    Verdict::GoOn if !reached => Verdict::FollowAgain,
                    verdict => verdict,
                }
            }
            Err(error) => self.trace_failed(&error),
        }
    }

    /// Asks for the acknowledged length, and goes on from there.
    pub(super) async fn ask(&mut self) -> Verdict {
        let (id, token) = (self.payload.id, &self.payload.token);
        match self.client.patch_trace(id, token, 0, bytes::Bytes::new(), self.debug_trace).await {
            Ok(reply) => {
                self.trace_refused = false;
                self.rewind(reply.size);
                self.heard(reply.status, reply.interval)
            }
            Err(error) => self.trace_failed(&error),
        }
    }

    /// A call failed for which nothing has to be changed: waits before the next one. Gone where there is none.
    pub(super) async fn pause(&mut self) {
        if let Some(earliest) = self.not_before {
            tokio::time::sleep_until(earliest).await;
        }
    }

    /// Whether the last call failed and is to be repeated.
    pub(super) fn must_repeat(&self) -> bool {
        self.not_before.is_some()
    }

    /// Takes the coordinator's length; false where it is not one that the held bytes reach.
    fn acknowledge(&mut self, size: u64) -> bool {
        let taken = size.checked_sub(self.acknowledged).and_then(|taken| usize::try_from(taken).ok());
        match taken.filter(|taken| *taken <= self.held.len()) {
            Some(taken) => {
                drop(self.held.split_to(taken));
                self.acknowledged = size;
                self.watch.uploaded(size, self.held.len() as u64);
                true
            }
            None => {
                tracing::info!(
                    from = self.acknowledged,
                    size,
                    "the coordinator has another length, going on from there"
                );
                self.rewind(size);
                false
            }
        }
    }

    fn heard(&mut self, status: Option<JobStatus>, interval: Option<Duration>) -> Verdict {
        self.contact_at = Instant::now();
        self.not_before = None;
        self.rejections = 0;
        self.backoff.reset();
        if let Some(interval) = interval.filter(|_| !self.fixed_interval) {
            self.interval = interval;
        }
        match status {
            Some(JobStatus::Canceling) => {
                self.canceled = true;
                Verdict::Cancel
            }
            Some(JobStatus::Canceled | JobStatus::Failed) => Verdict::Gone,
            _ => Verdict::GoOn,
        }
    }

    /// Whether the coordinator wants the job canceled, and this manager has heard of it.
    pub(super) fn is_canceled(&self) -> bool {
        self.canceled
    }

    /// Sorts a failed final update. One that the coordinator takes for wrong again and again is given up: nobody else would
    /// end it (runner-api 3.4).
    pub(super) fn report_failed(&mut self, error: &ClientError) -> Verdict {
        if self.rejected(error) {
            tracing::error!(
                %error,
                refusals = self.rejections,
                "the coordinator takes no more reports of the job, giving it up; \
                 job_status_final_update_retry_limit says after how many"
            );
            return Verdict::Gone;
        }
        self.failed(error)
    }

    /// Sorts a failed upload of the trace: one of a job that runs is repeated, whatever was answered (runner-api 3.1); that
    /// of a job that has ended must not stand in the way of its report.
    fn trace_failed(&mut self, error: &ClientError) -> Verdict {
        if self.ending && (error.is_missing() || self.rejected(error)) {
            tracing::error!(%error, at = self.acknowledged, "the coordinator takes no more of the trace, the rest is left out");
            self.trace_refused = true;
            self.rejections = 0;
        }
        self.failed(error)
    }

    /// Counts a refusal; whether there were enough of them.
    fn rejected(&mut self, error: &ClientError) -> bool {
        self.rejections += u32::from(error.transient().is_none() && !error.is_job_gone());
        self.rejections >= self.rejections_max
    }

    /// Sorts a failed call: gone, or to be repeated after a while.
    fn failed(&mut self, error: &ClientError) -> Verdict {
        if error.is_job_gone() {
            tracing::info!(%error, "the coordinator has no use for the job any more");
            return Verdict::Gone;
        }
        self.rejected_last = error.transient().is_none();
        self.watch.repeated();
        // No longer than between two uploads: then a coordinator that is back has everything within one interval, and one
        // that is in trouble is asked no more often than one that is well.
        self.backoff.set_cap(retry_cap(self.interval));
        let wait = self.backoff.next_wait(error.transient().flatten()).unwrap_or(KEEP_ALIVE);
        tracing::warn!(%error, failures = self.backoff.failures(), wait_ms = wait.as_millis(), "report failed, will be repeated");
        self.not_before = Some(Instant::now() + wait);
        Verdict::GoOn
    }
}

/// The longest wait between two tries, by the coordinator's interval.
fn retry_cap(interval: Duration) -> Duration {
    interval.clamp(RETRY_CAP_MIN, Policy::UNTIL_ACKNOWLEDGED.cap)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_coordinator_that_is_back_is_found_within_one_update_interval() {
        let seconds = Duration::from_secs;
        assert_eq!(retry_cap(INTERVAL), INTERVAL);
        assert_eq!(retry_cap(seconds(60)), seconds(60));
        assert_eq!(retry_cap(seconds(900)), seconds(60));
        assert_eq!(retry_cap(Duration::from_millis(20)), seconds(1));
    }
}
