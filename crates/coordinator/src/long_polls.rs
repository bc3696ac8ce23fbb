//! Long polls: job requests that are held until a job for their runner is available.
//!
//! A new job is assigned to the first held request that matches it, in the order of arrival.

use std::collections::{HashMap, VecDeque};

use muster_job::{JobId, RunnerId};
use muster_runner_api::service::JobRequestAnswer;
use muster_runner_api::wire::JobRequest;

use crate::command::ServiceReply;

pub(crate) struct HeldRequest {
    /// Number of the request, for its timer.
    pub(crate) number: u64,
    pub(crate) runner: RunnerId,
    pub(crate) request: Box<JobRequest>,
    pub(crate) reply: ServiceReply<JobRequestAnswer>,
}

#[derive(Default)]
pub(crate) struct LongPolls {
    held: VecDeque<HeldRequest>,
    last_number: u64,
}

impl LongPolls {
    pub(crate) fn hold(
        &mut self,
        runner: RunnerId,
        request: Box<JobRequest>,
        reply: ServiceReply<JobRequestAnswer>,
    ) -> u64 {
        self.last_number += 1;
        let number = self.last_number;
        self.held.push_back(HeldRequest { number, runner, request, reply });
        number
    }

    pub(crate) fn release(&mut self, mut predicate: impl FnMut(&HeldRequest) -> bool) -> Vec<HeldRequest> {
        let (released, held): (VecDeque<_>, _) =
            std::mem::take(&mut self.held).into_iter().partition(|request| predicate(request));
        self.held = held;
        released.into()
    }

    /// If more than `limit` requests are held, drops those with a closed connection, and then removes and returns the
    /// newest beyond `limit`.
    pub(crate) fn shed_newest(&mut self, limit: usize) -> VecDeque<HeldRequest> {
        if self.held.len() <= limit {
            return VecDeque::new();
        }
        self.held.retain(|request| !request.reply.is_closed());
        self.held.split_off(limit.min(self.held.len()))
    }

    /// Returns the index of the first request that gets a job from `best_job`, and the job. Drops requests with a
    /// closed connection.
    pub(crate) fn first_match(&mut self, best_job: impl Fn(RunnerId) -> Option<JobId>) -> Option<(usize, JobId)> {
        self.held.retain(|request| !request.reply.is_closed());
        // One runner can have many held requests, so the best job is looked up once per runner.
        let mut by_runner: HashMap<RunnerId, Option<JobId>> = HashMap::new();
        self.held.iter().enumerate().find_map(|(index, request)| {
            let job = *by_runner.entry(request.runner).or_insert_with(|| best_job(request.runner));
            job.map(|job| (index, job))
        })
    }

    pub(crate) fn get(&self, index: usize) -> Option<&HeldRequest> {
        self.held.get(index)
    }

    pub(crate) fn take(&mut self, index: usize) -> Option<HeldRequest> {
        self.held.remove(index)
    }
}
