//! GitLab's way with job requests (runner-api 2.3): no idempotency key, and an answer that is not read is a job lost.
//!
//! A request whose `last_update` is the queue's version is held by the front end, which looks for no job: it is released
//! without one when the queue changes, and forgotten when the caller goes away. Any other request is passed on, and then
//! nothing calls it back: the job that is found for it is assigned, whether the caller is still there or not.

use std::time::Duration;

use super::{MemoryCoordinator, State};
use crate::service::{Assignment, ServiceError};

/// How long GitLab looks for a job.
#[derive(Debug, Clone, Copy)]
pub(super) struct Looks {
    time: Duration,
}

/// What the front end knows, and what a test did to it.
#[derive(Debug, Default)]
pub(super) struct Front {
    /// The queue's version.
    pub(super) version: u64,
    /// Requests are not passed on.
    closed: bool,
    /// Requests that were passed on wait before a job is looked for.
    paused: bool,
    /// Requests that were passed on and are not answered.
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
    fn nothing(&self) -> Assignment {
        Assignment { job: None, last_update: self.front.version.to_string() }
    }
}

impl MemoryCoordinator {
    /// A coordinator that behaves as GitLab: it takes `time` to look for a job, and assigns it to whoever asked, also if
    /// the connection was closed meanwhile.
    #[must_use]
    pub fn as_gitlab(self, time: Duration) -> Self {
        Self { gitlab: Some(Looks { time }), ..self }
    }

    /// Whether it behaves so.
    #[must_use]
    pub fn is_as_gitlab(&self) -> bool {
        self.gitlab.is_some()
    }

    /// How often jobs were assigned, and how many jobs have ended.
    #[must_use]
    pub fn assigned_and_ended(&self) -> (usize, usize) {
        let state = self.state.lock();
        let assigned = state.jobs.values().map(|job| job.handouts as usize).sum();
        (assigned, state.jobs.values().filter(|job| job.status.is_complete()).count())
    }

    /// Whether the front end passes requests on. Those that were passed on already are looked at.
    ///
    /// A request that finds it closed gets no job, also when it opens: whether its caller still lives is known here only a
    /// while after the caller has died, and a test that kills callers while it is closed wants no job assigned to them.
    pub fn pass_requests_on(&self, passes: bool) {
        self.change(|state| state.front.closed = !passes);
    }

    /// Whether a job is looked for when a request was passed on; else the request waits for that.
    pub fn look_for_jobs(&self, looks: bool) {
        self.change(|state| state.front.paused = !looks);
    }

    /// Waits until so many requests were passed on and are not answered, for as long as it has patience.
    ///
    /// # Panics
    /// After that time.
    pub async fn wait_for_looking(&self, count: usize) {
        let waited = tokio::time::timeout(self.patience, self.until(|state| state.front.looking == count)).await;
        let now = self.state.lock().front.looking;
        assert!(waited.is_ok(), "{now} requests, not {count}, were passed on and are not answered");
    }

    /// Waits until no request is on its way to a job and each job that was assigned was heard of, for as long as it has
    /// patience. A job is stored at its manager when it is heard of, so nothing is known by this coordinator alone then.
    ///
    /// # Panics
    /// After that time.
    pub async fn wait_until_assigned_jobs_are_known(&self) {
        let known = |state: &State| {
            let mut assigned = state.jobs.values().filter(|job| job.handouts > 0);
            state.front.looking == 0 && assigned.all(|job| !job.updates.is_empty() || !job.trace.is_empty())
        };
        let waited = tokio::time::timeout(self.patience, self.until(known)).await;
        assert!(waited.is_ok(), "a job that was assigned was never heard of");
    }

    /// Waits until so many job requests have come since the start, for as long as it has patience.
    ///
    /// # Panics
    /// After that time.
    pub async fn wait_for_requests(&self, count: usize) {
        let waited = tokio::time::timeout(self.patience, self.until(|state| state.requests >= count)).await;
        assert!(waited.is_ok(), "{} requests came, and not {count}", self.requests());
    }

    async fn until(&self, wanted: impl Fn(&State) -> bool) {
        let mut changes = self.changed.subscribe();
        while !wanted(&self.state.lock()) && changes.changed().await.is_ok() {}
    }

    /// One job request.
    pub(super) async fn request_of_gitlab(&self, known: &str, looks: Looks) -> Result<Assignment, ServiceError> {
        let mut changes = self.changed.subscribe();
        let version = self.state.lock().front.version;
        if known == version.to_string() {
            let changed =
                async { while self.state.lock().front.version == version && changes.changed().await.is_ok() {} };
            // Timeout or change: in both cases there is no job, and no version (runner-api 2.3).
            let _ = tokio::time::timeout(self.long_poll, changed).await;
            return Ok(Assignment { job: None, last_update: String::new() });
        }
        if !self.change(|state| state.front.pass_on()) {
            self.until(|state| !state.front.closed).await;
            return Ok(self.state.lock().nothing());
        }
        let (state, changed) = (std::sync::Arc::clone(&self.state), self.changed.clone());
        // Not a part of this call: nothing that becomes of the connection ends it.
        let look = tokio::spawn(async move {
            let mut changes = changed.subscribe();
            tokio::time::sleep(looks.time).await;
            while state.lock().front.paused && changes.changed().await.is_ok() {}
            let assignment = {
                let mut state = state.lock();
                state.front.looking -= 1;
                let nothing = state.nothing();
                let job = state.assign().and_then(|id| state.jobs.get(&id)).map(|job| Box::new(job.payload.clone()));
                // With a job there is no version (runner-api 2.3).
                if job.is_some() { Assignment { job, last_update: String::new() } } else { nothing }
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
        coordinator.push(serde_json::from_value(serde_json::json!({ "id": 1, "token": "secret" })).unwrap());
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
