//! What ends a job that no agent executes right now: heard while its actor waits for a slot or for an agent.

use muster_job::FailureReason;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::uploader::{Uploader, Verdict};
use super::{Actor, JobError, Next};
use crate::state::JobState;

/// Why the wait is over.
#[derive(Debug)]
pub(super) enum Interruption {
    /// The coordinator wants the job wound down.
    Canceled,
    /// The coordinator has no use for the job.
    Gone,
    /// The manager wants its jobs to wind down.
    Stopping,
    /// Preparing the job has taken too long (`prepare_timeout`).
    Late,
}

/// Stays in touch with the coordinator until there is a reason to end the job; being later than `by` is one.
///
/// May be dropped at any time: bytes that were on their way are told apart by the coordinator's length.
pub(super) async fn heard(uploader: &mut Uploader, stop: &CancellationToken, by: Option<Instant>) -> Interruption {
    loop {
        let contact = async {
            sleep_until(uploader.due()).await;
            uploader.send().await
        };
        tokio::select! {
            verdict = contact => match verdict {
                Verdict::Cancel => return Interruption::Canceled,
                Verdict::Gone => return Interruption::Gone,
                Verdict::GoOn | Verdict::FollowAgain => {}
            },
            () = stop.cancelled() => return Interruption::Stopping,
            () = async { sleep_until(by.unwrap_or_else(Instant::now)).await }, if by.is_some() => {
                return Interruption::Late;
            }
        }
    }
}

impl Actor {
    /// The job ends by what was heard. Closing it ends what an agent may have started all the same.
    pub(super) async fn interrupted(&mut self, why: Interruption) -> Result<Next, JobError> {
        match why {
            Interruption::Gone => Ok(Next::Gone),
            Interruption::Canceled => self.end(FailureReason::JobCanceled, None, "canceled").await,
            // A reason that every GitLab knows and retries (`retry: { when: runner_system_failure }`).
            Interruption::Stopping if matches!(self.state, JobState::Taken { .. }) => {
                self.system_failure("the manager was stopped before the job began").await
            }
            Interruption::Stopping => {
                self.end(FailureReason::RunnerInterrupted, None, "aborted: the manager stops").await
            }
            Interruption::Late => {
                let limit = self.context.runner.prepare_timeout.unwrap_or_default();
                let message = format!("prepare timeout: exceeded timeout of {}", muster_job::go_duration(limit));
                self.end(FailureReason::JobExecutionTimeout, None, &message).await
            }
        }
    }
}
