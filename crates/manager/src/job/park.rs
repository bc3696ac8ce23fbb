//! The end of a job whose environment is left for a later one (runner-api 2.5.8).
//!
//! ```text
//! result told --stored: parked, with the report--> agent closed --> suspended (or why not) --> said in the trace --> reported
//! ```
//!
//! From the first of these on nothing is needed of the agent, so that a manager that is killed in between goes on: whether the
//! environment was suspended is in the scaler's ledger, by the task key of the job's lease.

use muster_agent_api::client;
use muster_agent_api::result::{JobResult, Outcome};
use muster_runner_api::wire::UpdateRequest;

use super::place::NOT_SUSPENDABLE;
use super::progress::EnvironmentUse;
use super::report::Reported;
use super::{Actor, CLOSE_LIMIT, JobError, Next};
use crate::lower::suspension;
use crate::state::JobState;

impl Actor {
    /// The job has its result: where it asks for it, its environment is left. None where it does not.
    pub(super) async fn park(&mut self, result: &JobResult, update: &UpdateRequest) -> Result<Option<Next>, JobError> {
        let is_success = matches!(result.outcome, Outcome::Success);
        let is_its_own = matches!(self.state, JobState::Leased { .. } | JobState::Running { .. });
        if !is_its_own || self.lease.is_none() || self.uploader.is_trace_refused() {
            return Ok(None);
        }
        let Some(owner) = suspension::leaves(&self.payload, &self.context.runner, is_success) else { return Ok(None) };
        if self.uploader.is_canceled() || self.context.cancel.is_cancelled() {
            return Ok(None);
        }
        let next = self.state.clone().park(update.clone(), owner, self.uploader.end())?;
        self.move_to(next).await.map(Some)
    }

    /// Leaves it, says so, and reports.
    pub(super) async fn leave_environment(
        &mut self,
        task_key: Option<&str>,
        mut update: UpdateRequest,
        owner: &str,
        at: u64,
    ) -> Next {
        let mut suspended = Err("its instance is lost".to_owned());
        if let (Some(lease), Some(id)) = (&self.lease, self.run_id()) {
            let closed = client::close(lease.environment.as_ref(), &id, self.context.agent_grace);
            if !matches!(tokio::time::timeout(CLOSE_LIMIT, closed).await, Ok(Ok(()))) {
                tracing::warn!("the agent did not close the job; its retention will");
            }
            suspended = match lease.environment.suspendable() {
                Some(environment) => tokio::time::timeout(CLOSE_LIMIT, environment.suspend(owner))
                    .await
                    .unwrap_or_else(|_| Err(format!("the scaler did not answer within {} s", CLOSE_LIMIT.as_secs()))),
                None => Err(NOT_SUSPENDABLE.to_owned()),
            };
        }
        self.environment_use = EnvironmentUse::Retired;
        // An earlier manager may have done it. The job is reported in any case.
        let task_key = task_key.unwrap_or_default();
        if suspended.is_err()
            && let Some(executor) = self.context.provider.elastic()
        {
            let has_suspended = executor.has_suspended(task_key);
            if tokio::time::timeout(CLOSE_LIMIT, has_suspended).await.unwrap_or_default() {
                suspended = Ok(());
            }
        }
        let words = match suspended {
            Ok(()) => {
                self.environment_use = EnvironmentUse::Suspended;
                let key = suspension::key(&self.context.runner, task_key);
                let words = format!("Job environment suspended: {key}\n");
                update.runtime_environment_key = Some(key);
                words
            }
            Err(why) => {
                tracing::warn!(why, "the job environment is not suspended");
                format!("WARNING: Job environment not suspended: {why}\n")
            }
        };
        self.uploader.ending();
        if !self.say(&words, at).await {
            return Next::Gone;
        }
        // Nobody has seen all of a trace with these words.
        update.output.checksum = None;
        update.output.bytesize = Some(at + words.len() as u64);
        match self.report(&update).await {
            // The agent has forgotten its log: what the coordinator has is all there is.
            Reported::Done | Reported::ResendTrace => Next::Reported,
            Reported::Gone => Next::Gone,
        }
    }
}
