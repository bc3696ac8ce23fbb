//! Imitates GitLab's job requests (docs/spec/runner-api.md, section 2.3): without idempotency keys, a lost response
//! loses the job.
//!
//! The front end holds a request whose `last_update` is the version of the queue, until the queue changes or the long
//! poll ends. A disconnect drops the held request. Other requests are forwarded and get a job even after a disconnect.

use std::time::Duration;

use super::{MemoryCoordinator, State};
use crate::service::{JobRequestAnswer, ServiceError};

#[derive(Debug, Clone, Copy)]
pub(super) struct JobSearch {
    time: Duration,
}

#[derive(Debug, Default)]
pub(super) struct Front {
    pub(super) version: u64,
    /// Whether requests are held, not forwarded.
    forwarding_disabled: bool,
    /// Whether forwarded requests wait for a job.
    assignment_disabled: bool,
    /// Number of forwarded requests without an answer.
    pending: usize,
}

impl Front {
    /// Counts a request as forwarded and returns true. If forwarding is disabled, only returns false.
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
    /// Makes the coordinator behave like GitLab: it takes `time` to select a job, and assigns it even after a
    /// disconnect.
    #[must_use]
    pub fn as_gitlab(self, time: Duration) -> Self {
        Self { gitlab: Some(JobSearch { time }), ..self }
    }

    /// Returns whether the coordinator behaves like GitLab.
    #[must_use]
    pub fn imitates_gitlab(&self) -> bool {
        self.gitlab.is_some()
    }

    /// Returns the numbers of assignments and of finished jobs.
    #[must_use]
    pub fn assigned_and_ended(&self) -> (usize, usize) {
        let state = self.state.lock();
        let assigned = state.jobs.values().map(|job| job.assignments as usize).sum();
        (assigned, state.jobs.values().filter(|job| job.status.is_complete()).count())
    }

    /// Sets whether the front end forwards new job requests.
    ///
    /// A request that arrives while forwarding is disabled never gets a job. Thus a test can kill the caller of such a
    /// request without losing a job, although the coordinator notices late that the caller is gone.
    pub fn set_forwarding_enabled(&self, enabled: bool) {
        self.change(|state| state.front.forwarding_disabled = !enabled);
    }

    /// Sets whether forwarded requests get jobs. Otherwise, they wait.
    pub fn set_assignment_enabled(&self, enabled: bool) {
        self.change(|state| state.front.assignment_disabled = !enabled);
    }

    /// Waits until this number of forwarded requests have no answer.
    ///
    /// # Panics
    /// After the wait timeout.
    pub async fn wait_for_pending_requests(&self, count: usize) {
        let waited = tokio::time::timeout(self.wait_timeout, self.until(|state| state.front.pending == count)).await;
        let now = self.state.lock().front.pending;
        assert!(waited.is_ok(), "{now} requests instead of {count} were forwarded and not answered");
    }

    /// Waits until no job is being selected, and all assigned jobs have sent an update or a trace, which a manager
    /// sends only after it has stored the job.
    ///
    /// # Panics
    /// After the wait timeout.
    pub async fn wait_until_assigned_jobs_are_known(&self) {
        let known = |state: &State| {
            let mut assigned = state.jobs.values().filter(|job| job.assignments > 0);
            state.front.pending == 0 && assigned.all(|job| !job.updates.is_empty() || !job.trace.is_empty())
        };
        let waited = tokio::time::timeout(self.wait_timeout, self.until(known)).await;
        assert!(waited.is_ok(), "a job is still being selected, or nothing has arrived for an assigned job");
    }

    /// Waits until this number of job requests has been received in total.
    ///
    /// # Panics
    /// After the wait timeout.
    pub async fn wait_for_requests(&self, count: usize) {
        let waited = tokio::time::timeout(self.wait_timeout, self.until(|state| state.requests >= count)).await;
        assert!(waited.is_ok(), "received {} job requests instead of {count}", self.requests());
    }

    pub(super) async fn until(&self, wanted: impl Fn(&State) -> bool) {
        let mut changes = self.changed.subscribe();
        while !wanted(&self.state.lock()) && changes.changed().await.is_ok() {}
    }

    /// Handles a job request like GitLab. `last_update` is the caller's version of the queue.
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
            // The response has neither a job nor a version (docs/spec/runner-api.md, section 2.3).
            let _ = tokio::time::timeout(self.long_poll, changed).await;
            return Ok(JobRequestAnswer { job: None, last_update: String::new() });
        }
        if !self.change(|state| state.front.forward()) {
            self.until(|state| !state.front.forwarding_disabled).await;
            return Ok(self.state.lock().answer_without_job());
        }
        let (state, changed) = (std::sync::Arc::clone(&self.state), self.changed.clone());
        // A disconnect does not cancel a separate task.
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
