//! Imitates GitLab's handling of job requests (docs/spec/runner-api.md, section 2.3): without idempotency keys, a lost
//! response loses the job.
//!
//! The front end holds a request whose `last_update` equals the version of the queue. It answers without a job when the
//! queue changes, and drops the request if the caller disconnects. Any other request is passed on and cannot be
//! canceled: a job is assigned even if the caller has disconnected.

use std::time::Duration;

use super::{MemoryCoordinator, State};
use crate::service::{JobRequestAnswer, ServiceError};

/// Time that GitLab needs to find a job.
#[derive(Debug, Clone, Copy)]
pub(super) struct Looks {
    time: Duration,
}

/// State of the front end, which tests can control.
#[derive(Debug, Default)]
pub(super) struct Front {
    /// Version of the queue.
    pub(super) version: u64,
    /// Whether requests are held instead of being passed on.
    closed: bool,
    /// Whether requests that were passed on wait before a job is selected.
    paused: bool,
    /// Number of requests that were passed on and are not answered.
    looking: usize,
}

impl Front {
    /// Counts a request as passed on, unless requests are not passed on now.
    fn pass_on(&mut self) -> bool {
        self.looking += usize::from(!self.closed);
        !self.closed
    }
}

impl State {
    fn nothing(&self) -> JobRequestAnswer {
        JobRequestAnswer { job: None, last_update: self.front.version.to_string() }
    }
}

impl MemoryCoordinator {
    /// Makes the coordinator behave like GitLab: it takes `time` to select a job, and assigns it even if the caller has
    /// disconnected.
    /// the connection was closed meanwhile.
    #[must_use]
    pub fn as_gitlab(self, time: Duration) -> Self {
        Self { gitlab: Some(Looks { time }), ..self }
    }

    /// Returns true if the coordinator behaves like GitLab.
    #[must_use]
    pub fn is_as_gitlab(&self) -> bool {
        self.gitlab.is_some()
    }

    /// Returns the number of assignments and of finished jobs.
    #[must_use]
    pub fn assigned_and_ended(&self) -> (usize, usize) {
        let state = self.state.lock();
        let assigned = state.jobs.values().map(|job| job.assignments as usize).sum();
        (assigned, state.jobs.values().filter(|job| job.status.is_complete()).count())
    }

    /// Sets whether the front end passes requests on. Requests that were already passed on are not affected.
    ///
    /// A request that arrives while it does not gets no job, even when it passes requests on again: the coordinator notices
    /// a dead caller late, and tests that kill callers must not have jobs assigned to them.
    pub fn pass_requests_on(&self, passes: bool) {
        self.change(|state| state.front.closed = !passes);
    }

    /// Sets whether jobs are selected for requests that were passed on. Otherwise these requests wait.
    pub fn look_for_jobs(&self, looks: bool) {
        self.change(|state| state.front.paused = !looks);
    }

    /// Waits until this number of requests were passed on and are not answered.
    ///
    /// # Panics
    /// Panics after the wait timeout.
    pub async fn wait_for_looking(&self, count: usize) {
        let waited = tokio::time::timeout(self.wait_timeout, self.until(|state| state.front.looking == count)).await;
        let now = self.state.lock().front.looking;
        assert!(waited.is_ok(), "{now} requests, not {count}, were passed on and are not answered");
    }

    /// Waits until no job is being selected and every assigned job has sent something. A manager stores a job before
    /// that, so no assigned job is unknown to its manager then.
    ///
    /// # Panics
    /// Panics after the wait timeout.
    pub async fn wait_until_assigned_jobs_are_known(&self) {
        let known = |state: &State| {
            let mut assigned = state.jobs.values().filter(|job| job.assignments > 0);
            state.front.looking == 0 && assigned.all(|job| !job.updates.is_empty() || !job.trace.is_empty())
        };
        let waited = tokio::time::timeout(self.wait_timeout, self.until(known)).await;
        assert!(waited.is_ok(), "a job that was assigned was never heard of");
    }

    /// Waits until this number of job requests have been received in total.
    ///
    /// # Panics
    /// Panics after the wait timeout.
    pub async fn wait_for_requests(&self, count: usize) {
        let waited = tokio::time::timeout(self.wait_timeout, self.until(|state| state.requests >= count)).await;
        assert!(waited.is_ok(), "{} requests came, and not {count}", self.requests());
    }

    async fn until(&self, wanted: impl Fn(&State) -> bool) {
        let mut changes = self.changed.subscribe();
        while !wanted(&self.state.lock()) && changes.changed().await.is_ok() {}
    }

    /// Handles a job request.
    pub(super) async fn request_of_gitlab(&self, known: &str, looks: Looks) -> Result<JobRequestAnswer, ServiceError> {
        let mut changes = self.changed.subscribe();
        let version = self.state.lock().front.version;
        if known == version.to_string() {
            let changed =
                async { while self.state.lock().front.version == version && changes.changed().await.is_ok() {} };
            // After a timeout or a change there is neither a job nor a version (docs/spec/runner-api.md, section 2.3).
            let _ = tokio::time::timeout(self.long_poll, changed).await;
            return Ok(JobRequestAnswer { job: None, last_update: String::new() });
        }
        if !self.change(|state| state.front.pass_on()) {
            self.until(|state| !state.front.closed).await;
            return Ok(self.state.lock().nothing());
        }
        let (state, changed) = (std::sync::Arc::clone(&self.state), self.changed.clone());
        // Not part of this call, so that a disconnect does not cancel it.
        let look = tokio::spawn(async move {
            let mut changes = changed.subscribe();
            tokio::time::sleep(looks.time).await;
            while state.lock().front.paused && changes.changed().await.is_ok() {}
            let assignment = {
                let mut state = state.lock();
                state.front.looking -= 1;
                let nothing = state.nothing();
                let job = state.assign().and_then(|id| state.jobs.get(&id)).map(|job| Box::new(job.payload.clone()));
                // With a job, there is no version (docs/spec/runner-api.md, section 2.3).
                if job.is_some() { JobRequestAnswer { job, last_update: String::new() } } else { nothing }
            };
            changed.send_modify(|version| *version += 1);
            assignment
        });
        look.await.map_err(|error| ServiceError::Internal(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_request_that_found_the_front_end_closed_gets_no_job_when_it_opens() {
        let coordinator = MemoryCoordinator::new(Duration::from_secs(50)).as_gitlab(Duration::ZERO);
        let looks = coordinator.gitlab.unwrap();
        coordinator.enqueue(serde_json::from_value(serde_json::json!({ "id": 1, "token": "secret" })).unwrap());
        coordinator.pass_requests_on(false);
        let (held, ()) = tokio::join!(coordinator.request_of_gitlab("", looks), async {
            tokio::task::yield_now().await;
            coordinator.pass_requests_on(true);
        });
        assert!(held.unwrap().job.is_none());
        let next = coordinator.request_of_gitlab("", looks).await.unwrap();
        assert_eq!(next.job.unwrap().id.0, 1);
    }
}
