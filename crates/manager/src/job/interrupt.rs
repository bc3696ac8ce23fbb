//! Watches for reasons to end a job that waits for a slot or for its agent.

use std::time::Duration;

use muster_job::FailureReason;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::uploader::{UploadOutcome, Uploader};
use crate::state::JobState;

#[derive(Debug)]
pub(super) enum Interruption {
    Canceled,
    JobGone,
    ManagerStopping,
    PrepareTimeout,
}

impl Interruption {
    /// `None` means that there is nothing to report.
    pub(super) fn failure(&self, state: &JobState, prepare_timeout: Duration) -> Option<(FailureReason, String)> {
        match self {
            Self::JobGone => None,
            Self::Canceled => Some((FailureReason::JobCanceled, "canceled".to_owned())),
            // Every version of GitLab can retry a job with this reason.
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

/// Waits for a reason to end the job, such as `deadline`. Contacts the coordinator as needed.
///
/// Cancel-safe: the coordinator's next answer contains the length from which the upload continues.
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
