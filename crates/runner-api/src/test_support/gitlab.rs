//! Imitates GitLab's handling of job requests (docs/spec/runner-api.md, section 2.3): without idempotency keys, a lost
//! response loses the job.
//!
//! The front end holds a request whose `last_update` equals the version of the queue. It answers without a job when the
//! queue changes or the long poll ends, and drops the request if the caller disconnects. Any other request is forwarded
//! and cannot be canceled: a job is assigned even if the caller has disconnected.

use std::time::Duration;

use super::{MemoryCoordinator, State};
use crate::service::{JobRequestAnswer, ServiceError};

/// Time that GitLab needs to find a job.
#[derive(Debug, Clone, Copy)]
pub(super) struct JobSearch {
    time: Duration,
}

/// State of the front end, which tests can control.
#[derive(Debug, Default)]
pub(super) struct Front {
    /// Version of the queue.
    pub(super) version: u64,
    /// Whether requests are held instead of being forwarded.
    forwarding_disabled: bool,
    /// Whether requests that were forwarded wait before a job is selected.
    assignment_disabled: bool,
    /// Number of requests that were forwarded and are not answered.
    pending: usize,
}

impl Front {
    /// Counts a request as forwarded. Returns false if forwarding is disabled.
    fn forward(&mut self) -> bool {
        self.pending += usize::from(!self.forwarding_disabled);
        !self.forwarding_disabled
    }
}

impl State {
    fn answer_without_job(&self) -> JobRequestAnswer {
        JobRequestAnswer { job: None, last_update: self.front.version.to_string() }
    }
}

impl MemoryCoordinator {
    /// Makes the coordinator behave like GitLab: it takes `time` to select a job, and assigns it even if the caller has
    /// disconnected.
    #[must_use]
    pub fn as_gitlab(self, time: Duration) -> Self {
        Self { gitlab: Some(JobSearch { time }), ..self }
    }

    /// Returns true if the coordinator behaves like GitLab ([`Self::as_gitlab`]).
    #[must_use]
    pub fn imitates_gitlab(&self) -> bool {
        self.gitlab.is_some()
    }

    /// Returns the number of assignments, and the number of finished jobs.
    #[must_use]
    pub fn assigned_and_ended(&self) -> (usize, usize) {
        let state = self.state.lock();
        let assigned = state.jobs.values().map(|job| job.assignments as usize).sum();
        (assigned, state.jobs.values().filter(|job| job.status.is_complete()).count())
    }

    /// Sets whether the front end forwards job requests. Requests that were already forwarded are not affected.
    ///
    /// A request that arrives while forwarding is disabled never gets a job, even if forwarding is enabled later. A test can thus kill the
    /// caller of such a request: the coordinator notices the death late, and must not assign a job to the dead caller meanwhile.
    pub fn set_forwarding_enabled(&self, enabled: bool) {
        self.change(|state| state.front.forwarding_disabled = !enabled);
    }

    /// Sets whether jobs are assigned to requests that were forwarded. While assignment is disabled, these requests wait.
    pub fn set_assignment_enabled(&self, enabled: bool) {
        self.change(|state| state.front.assignment_disabled = !enabled);
    }

    /// Waits until exactly this number of forwarded requests are unanswered.
    ///
    /// # Panics
    /// Panics after the wait timeout.
    pub async fn wait_for_pending_requests(&self, count: usize) {
        let waited = tokio::time::timeout(self.wait_timeout, self.until(|state| state.front.pending == count)).await;
        let now = self.state.lock().front.pending;
        assert!(waited.is_ok(), "{now} requests instead of {count} were forwarded and not answered");
    }

    /// Waits until no job is being selected, and every assigned job has sent an update or a part of the trace.
    ///
    /// A manager stores a job before it sends an update or a trace.
    ///
    /// # Panics
    /// Panics after the wait timeout.
    pub async fn wait_until_assigned_jobs_are_known(&self) {
        let known = |state: &State| {
            let mut assigned = state.jobs.values().filter(|job| job.assignments > 0);
            state.front.pending == 0 && assigned.all(|job| !job.updates.is_empty() || !job.trace.is_empty())
        };
        let waited = tokio::time::timeout(self.wait_timeout, self.until(known)).await;
        assert!(waited.is_ok(), "a job is still being selected, or nothing has arrived for an assigned job");
    }

    /// Waits until at least this number of job requests has been received in total.
    ///
    /// # Panics
    /// Panics after the wait timeout.
    pub async fn wait_for_requests(&self, count: usize) {
        let waited = tokio::time::timeout(self.wait_timeout, self.until(|state| state.requests >= count)).await;
        assert!(waited.is_ok(), "received {} job requests instead of {count}", self.requests());
    }

    pub(super) async fn until(&self, wanted: impl Fn(&State) -> bool) {
        let mut changes = self.changed.subscribe();
        while !wanted(&self.state.lock()) && changes.changed().await.is_ok() {}
    }

    /// Handles a job request as GitLab does. `last_update` is the version of the queue that the caller knows.
    pub(super) async fn request_job_as_gitlab(
        &self,
        last_update: &str,
        search: JobSearch,
    ) -> Result<JobRequestAnswer, ServiceError> {
        let mut changes = self.changed.subscribe();
        let version = self.state.lock().front.version;
        if last_update == version.to_string() {
            let changed =
                async { while self.state.lock().front.version == version && changes.changed().await.is_ok() {} };
            // After a timeout or a change, the response has neither a job nor a version (docs/spec/runner-api.md, section 2.3).
            let _ = tokio::time::timeout(self.long_poll, changed).await;
            return Ok(JobRequestAnswer { job: None, last_update: String::new() });
        }
        if !self.change(|state| state.front.forward()) {
            self.until(|state| !state.front.forwarding_disabled).await;
            return Ok(self.state.lock().answer_without_job());
        }
        let (state, changed) = (std::sync::Arc::clone(&self.state), self.changed.clone());
        // A separate task, so that a disconnect does not cancel it.
        let task = tokio::spawn(async move {
            let mut changes = changed.subscribe();
            tokio::time::sleep(search.time).await;
            while state.lock().front.assignment_disabled && changes.changed().await.is_ok() {}
            let assignment = {
                let mut state = state.lock();
                state.front.pending -= 1;
                let answer_without_job = state.answer_without_job();
                let job = state.assign().and_then(|id| state.jobs.get(&id)).map(|job| Box::new(job.payload.clone()));
                // A response with a job has no version (docs/spec/runner-api.md, section 2.3).
                if job.is_some() { JobRequestAnswer { job, last_update: String::new() } } else { answer_without_job }
            };
            changed.send_modify(|version| *version += 1);
            assignment
        });
        task.await.map_err(|error| ServiceError::Internal(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn request_held_while_forwarding_is_disabled_gets_no_job() {
        let coordinator = MemoryCoordinator::new(Duration::from_secs(50)).as_gitlab(Duration::ZERO);
        let search = coordinator.gitlab.unwrap();
        coordinator.enqueue(serde_json::from_value(serde_json::json!({ "id": 1, "token": "secret" })).unwrap());
        coordinator.set_forwarding_enabled(false);
        let (held, ()) = tokio::join!(coordinator.request_job_as_gitlab("", search), async {
            tokio::task::yield_now().await;
            coordinator.set_forwarding_enabled(true);
        });
        assert!(held.unwrap().job.is_none());
        let next = coordinator.request_job_as_gitlab("", search).await.unwrap();
        assert_eq!(next.job.unwrap().id.0, 1);
    }
}
