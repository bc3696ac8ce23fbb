//! The final update: said until it is acknowledged, or until the coordinator says that there is nothing to report (R5).

use std::time::Duration;

use muster_job::JobStatus;
use muster_runner_api::wire::UpdateRequest;
use tokio::time::sleep;

use super::follow::Pace;
use super::uploader::Verdict;
use super::{Actor, Next};
use crate::failure;
use crate::state::OwnEnd;

/// A server that works on a report is asked again after this, unless it says when.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// How reporting ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reported {
    /// Acknowledged.
    Done,
    /// The job is not this manager's, or has ended.
    Gone,
    /// The coordinator's copy of the trace is wrong.
    ResendTrace,
}

impl Actor {
    /// Says `update` until it is acknowledged. The waits grow to a minute; only the coordinator ends it.
    pub(super) async fn report(&mut self, update: &UpdateRequest) -> Reported {
        loop {
            match self.context.client.update_job(self.id(), update).await {
                Ok(reply) if reply.applied => return Reported::Done,
                Ok(reply) if reply.resend_trace => {
                    sleep(reply.interval.unwrap_or(ASK_AGAIN)).await;
                    return Reported::ResendTrace;
                }
                // On a report of a failed job these states are its acknowledgement (runner-api 4.2).
                Ok(reply) if matches!(reply.status, Some(JobStatus::Canceled | JobStatus::Failed)) => {
                    return Reported::Done;
                }
                Ok(reply) => {
                    self.give_back().await;
                    sleep(reply.interval.unwrap_or(ASK_AGAIN)).await;
                }
                Err(error) => {
                    if self.uploader.report_failed(&error) == Verdict::Gone {
                        return Reported::Gone;
                    }
                    self.give_back().await;
                    self.uploader.pause().await;
                }
            }
        }
    }

    /// Appends the manager's own words where they belong, as far as they are not there yet, and reports.
    pub(super) async fn say_own_end(&mut self, end: &OwnEnd) -> Next {
        self.uploader.ending();
        if !self.say(&end.words, end.at).await {
            return Next::Gone;
        }
        match self.report(&failure::of_own_end(&self.payload, end)).await {
            // The rest of the trace is with an agent that is lost: what the coordinator has is all there is.
            Reported::Done | Reported::ResendTrace => Next::Reported,
            Reported::Gone => Next::Gone,
        }
    }

    /// Appends words to the trace at this length, as far as they are not there yet. False where the coordinator has no use for
    /// the job.
    pub(super) async fn say(&mut self, words: &str, at: u64) -> bool {
        let mut pace = Pace::new(self.uploader.acknowledged());
        loop {
            if self.ask().await == Verdict::Gone {
                return false;
            }
            if self.uploader.is_trace_refused() {
                break;
            }
            let said = self.uploader.end().checked_sub(at).and_then(|said| usize::try_from(said).ok());
            let left = said.and_then(|said| words.as_bytes().get(said..)).unwrap_or_default();
            if left.is_empty() {
                break;
            }
            self.uploader.push(left);
            match self.uploader.send().await {
                Verdict::Gone => return false,
                _ => self.uploader.pause().await,
            }
            sleep(pace.pause(self.uploader.acknowledged())).await;
        }
        true
    }
}
