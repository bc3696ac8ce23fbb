//! `builtin://artifacts/upload` and `builtin://artifacts/download` (job-execution 9).

mod download;
mod upload;

use std::time::Duration;

use muster_runner_api::client::ClientError;
use muster_runner_api::retry::{Backoff, Policy};
use muster_steps::stop::Stop;
use tokio::time::Instant;

pub(crate) use download::download;
pub(crate) use upload::upload;

use crate::failure::Failure;

/// Tries for a transfer that the coordinator does not take, for no reason that is known to be final.
const TRIES: u32 = 3;
/// For how long a coordinator that is out of reach, or says that it cannot now, is tried: gitlab-runner's `upload_timeout`.
/// The job's own timeout may end it before. The files wait on disk meanwhile.
const PATIENCE: Duration = Duration::from_secs(3600);
const WAITS: Policy = Policy { first: Duration::from_millis(500), cap: Duration::from_secs(30), attempts: None };

/// How often and for how long one transfer is tried.
struct Tries {
    backoff: Backoff,
    until: Instant,
    refused: u32,
}

impl Tries {
    fn new() -> Self {
        Self { backoff: Backoff::new(WAITS), until: Instant::now() + PATIENCE, refused: 0 }
    }

    /// After an error: the wait before the next try, or none where it is final.
    fn next_wait(&mut self, error: &ClientError) -> Option<Duration> {
        let again = match error {
            ClientError::Forbidden { .. } | ClientError::Rejected { code: 413, .. } => false,
            error if error.is_gone() => false,
            ClientError::Transient { .. } => Instant::now() < self.until,
            _ => {
                self.refused += 1;
                self.refused < TRIES
            }
        };
        again.then(|| self.backoff.next_wait(error.transient().flatten())).flatten()
    }
}

/// Waits before another try.
async fn pause(time: Duration, stop: &Stop) -> Result<(), Failure> {
    tokio::select! {
        cause = stop.stopped() => Err(Failure::Stopped(cause)),
        () = tokio::time::sleep(time) => Ok(()),
    }
}

/// The status of an answer, in the trace's words.
fn word(error: &ClientError) -> String {
    match error {
        ClientError::Forbidden { code: 401, .. } => "unauthorized".to_owned(),
        ClientError::Forbidden { code: 404 | 410, .. } => "not found".to_owned(),
        ClientError::Forbidden { .. } => "forbidden".to_owned(),
        ClientError::Rejected { code: 413, .. } => "too large".to_owned(),
        other => format!("failed ({other})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_can_heal_is_tried_for_an_hour_and_what_cannot_is_not() {
        let away = ClientError::unreachable("test", "no route");
        let (mut tries, mut waited) = (Tries::new(), Duration::ZERO);
        while let Some(wait) = tries.next_wait(&away) {
            tokio::time::advance(wait).await;
            waited += wait;
        }
        assert!(waited >= PATIENCE && waited < PATIENCE + WAITS.cap, "{waited:?}");
        let refused = |code| ClientError::Rejected { call: "test", code, message: String::new() };
        assert_eq!(Tries::new().next_wait(&refused(413)), None);
        let mut tries = Tries::new();
        let told: Vec<bool> = (0..3).map(|_| tries.next_wait(&refused(400)).is_some()).collect();
        assert_eq!(told, [true, true, false]);
        let forbidden = ClientError::Forbidden { call: "test", code: 403, status: None, message: String::new() };
        assert_eq!(Tries::new().next_wait(&forbidden), None);
    }
}
