//! Retries of transfers.

use std::time::Duration;

use muster_runner_api::client::ClientError;
use muster_runner_api::retry::{Backoff, Policy};
use muster_steps::failure::Failure;
use muster_steps::stop::Stop;
use tokio::time::Instant;

/// Time after which a transfer fails if the coordinator is unreachable or unavailable. This is gitlab-runner's `upload_timeout`.
///
/// The job's timeout may end the transfer earlier. Meanwhile the files are kept on disk.
const PATIENCE: Duration = Duration::from_secs(3600);
const WAITS: Policy = Policy { first: Duration::from_millis(500), cap: Duration::from_secs(30), attempts: None };

/// When to retry a failed transfer. A transfer that the coordinator rejects permanently is never retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endurance {
    /// Transient errors are retried for an hour, other errors twice. Used by jobs.
    Patient,
    /// Every error counts as an attempt. Used by commands.
    Counted {
        /// Maximum number of attempts.
        tries: u32,
        /// Maximum number of attempts if the response is 503.
        unavailable: u32,
        /// Delays between the attempts.
        waits: Policy,
    },
}

/// Attempts of one transfer.
pub(super) struct Tries {
    endurance: Endurance,
    backoff: Backoff,
    until: Instant,
    counted: u32,
}

impl Tries {
    pub(super) fn new(endurance: Endurance) -> Self {
        let waits = match endurance {
            Endurance::Patient => WAITS,
            Endurance::Counted { waits, .. } => waits,
        };
        Self { endurance, backoff: Backoff::new(waits), until: Instant::now() + PATIENCE, counted: 0 }
    }

    /// Returns the delay before the next attempt, after an error. `None` means that the transfer must not be retried.
    pub(super) fn next_wait(&mut self, error: &ClientError) -> Option<Duration> {
        /// Maximum number of attempts if the coordinator rejects the transfer, but perhaps not permanently.
        const REFUSED: u32 = 3;
        if matches!(error, ClientError::Rejected { code: 413, .. }) || error.is_job_gone() {
            return None;
        }
        let most = match (self.endurance, error) {
            (Endurance::Patient, ClientError::Transient { .. }) if Instant::now() < self.until => u32::MAX,
            (Endurance::Patient, ClientError::Transient { .. }) => 0,
            (Endurance::Patient, _) => REFUSED,
            (Endurance::Counted { unavailable, .. }, ClientError::Transient { code: Some(503), .. }) => unavailable,
            (Endurance::Counted { tries, .. }, _) => tries,
        };
        if most < u32::MAX {
            self.counted = self.counted.saturating_add(1);
        }
        (self.counted < most).then(|| self.backoff.next_wait(error.transient().flatten())).flatten()
    }
}

/// Waits for `time`, unless the job is stopped.
pub(super) async fn pause(time: Duration, stop: &Stop) -> Result<(), Failure> {
    tokio::select! {
        cause = stop.stopped() => Err(Failure::Stopped(cause)),
        () = tokio::time::sleep(time) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(code: u16) -> ClientError {
        ClientError::Transient {
            call: "test",
            code: Some(code),
            retry_after: None,
            status: None,
            message: String::new(),
        }
    }

    fn refused(code: u16) -> ClientError {
        ClientError::Rejected { call: "test", code, message: String::new() }
    }

    /// Returns the number of attempts.
    fn count(endurance: Endurance, error: &ClientError) -> usize {
        let mut tries = Tries::new(endurance);
        1 + std::iter::from_fn(|| tries.next_wait(error)).take(100).count()
    }

    #[tokio::test(start_paused = true)]
    async fn what_can_heal_is_tried_for_an_hour_and_what_cannot_is_not() {
        let away = ClientError::unreachable("test", "no route");
        let (mut tries, mut waited) = (Tries::new(Endurance::Patient), Duration::ZERO);
        while let Some(wait) = tries.next_wait(&away) {
            tokio::time::advance(wait).await;
            waited += wait;
        }
        assert!(waited >= PATIENCE && waited < PATIENCE + WAITS.cap, "{waited:?}");
        assert_eq!(count(Endurance::Patient, &refused(413)), 1);
        assert_eq!(count(Endurance::Patient, &refused(400)), 3);
        let forbidden = ClientError::Forbidden { call: "test", code: 403, status: None, message: String::new() };
        assert_eq!(count(Endurance::Patient, &forbidden), 1);
    }

    #[tokio::test]
    async fn a_command_counts_and_has_more_patience_with_503() {
        let counted = Endurance::Counted { tries: 3, unavailable: 6, waits: WAITS };
        assert_eq!(count(counted, &status(503)), 6);
        assert_eq!(count(counted, &status(500)), 3);
        assert_eq!(count(counted, &ClientError::unreachable("test", "no route")), 3);
        assert_eq!(count(counted, &refused(400)), 3);
        assert_eq!(count(counted, &refused(413)), 1);
    }
}
