//! Watches for reasons to end a job while the job waits for a slot or for its agent.

use std::time::Duration;

use muster_job::FailureReason;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::uploader::{UploadOutcome, Uploader};
use crate::state::JobState;

/// Reason why a wait ended.
#[derive(Debug)]
pub(super) enum Interruption {
    /// The coordinator cancels the job.
    Canceled,
    /// The coordinator no longer expects a report of the job.
    JobGone,
    /// The manager stops and ends its jobs.
    ManagerStopping,
    /// Preparing the job took longer than `prepare_timeout`.
    PrepareTimeout,
}

impl Interruption {
    /// Returns how a job in `state` fails because of the interruption.
    /// `None` if there is nothing to report.
    pub(super) fn failure(&self, state: &JobState, prepare_timeout: Duration) -> Option<(FailureReason, String)> {
        match self {
            Self::JobGone => None,
            Self::Canceled => Some((FailureReason::JobCanceled, "canceled".to_owned())),
            // Every version of GitLab knows this reason, and can retry the job (`retry: { when: runner_system_failure }`).
            Self::ManagerStopping if matches!(state, JobState::Received { .. }) => Some((
                FailureReason::RunnerSystemFailure,
                "the runner manager was stopped before the job started".to_owned(),
            )),
            Self::ManagerStopping => {
                Some((FailureReason::RunnerInterrupted, "aborted: the runner manager is stopping".to_owned()))
            }
            Self::PrepareTimeout => Some((
                FailureReason::JobExecutionTimeout,
                format!("prepare timeout: exceeded timeout of {}", muster_job::go_duration(prepare_timeout)),
            )),
        }
    }
}

/// Stays in contact with the coordinator until a reason to end the job occurs.
/// Passing `deadline` is such a reason.
///
/// Cancel-safe: after an interrupted upload, the next answer of the coordinator contains the length of the trace that it has, and the upload
/// continues there.
pub(super) async fn watch_for_interruption(
    uploader: &mut Uploader,
    stop: &CancellationToken,
    deadline: Option<Instant>,
) -> Interruption {
    loop {
        let contact = async {
            sleep_until(uploader.due()).await;
            uploader.send().await
        };
        tokio::select! {
            outcome = contact => match outcome {
                UploadOutcome::Cancel => return Interruption::Canceled,
                UploadOutcome::JobGone => return Interruption::JobGone,
                UploadOutcome::Continue | UploadOutcome::Resync => {}
            },
            () = stop.cancelled() => return Interruption::ManagerStopping,
            () = async { sleep_until(deadline.unwrap_or_else(Instant::now)).await }, if deadline.is_some() => {
                return Interruption::PrepareTimeout;
            }
        }
    }
}
