//! The consequences of an event: processes all state changes that follow from it, until none is left.

use muster_job::{FailureReason, JobStatus, PipelineId};

use super::children::DEPTH_MAX;
use super::engine::Engine;
use super::event::{Action, JobState};
use super::groups::{Claim, Member};
use super::state::{PipelineState, Turn};

impl Engine {
    /// Processes all pending work.
    ///
    /// The order matters. Revived jobs come first, so that no decision uses a job that is about to become active again. Ready jobs come
    /// before resource groups, so that a group chooses among all ready jobs. The status of a child comes before that of its parent.
    pub(super) fn settle(&mut self) {
        loop {
            if let Some((pipeline, place)) = self.work.revived.pop_front() {
                self.revive_dependants(pipeline, place);
                continue;
            }
            self.work.revived_from.clear();
            if let Some((pipeline, place)) = self.work.wake.pop_front() {
                self.take_turn(pipeline, place);
            } else if let Some(group) = self.work.freed.pop_first() {
                self.grant(group);
            } else if let Some(pipeline) = self.work.touched.pop_last() {
                self.publish(pipeline);
            } else {
                return;
            }
        }
    }

    /// Changes a job in a way that needs no action.
    pub(super) fn change(&mut self, pipeline: PipelineId, place: usize, change: impl FnOnce(&mut JobState)) {
        if let Some(state) = self.pipelines.get_mut(&pipeline) {
            state.change(place, &mut self.work.wake, change);
        }
    }

    /// Changes the status of a job and records all that may follow from it.
    ///
    /// The caller has checked that the transition is legal. A bridge that mirrors its child makes the transitions of the child.
    pub(super) fn move_to(&mut self, pipeline: PipelineId, place: usize, to: JobStatus, reason: Option<FailureReason>) {
        let Some(state) = self.pipelines.get_mut(&pipeline) else { return };
        let from = state.jobs[place].status;
        if from == to {
            return;
        }
        state.change(place, &mut self.work.wake, |job| {
            job.status = to;
            job.started |= matches!(to, JobStatus::Running | JobStatus::Success);
            if to != JobStatus::Scheduled {
                job.timer_at = None;
            }
        });
        let allowed = state.jobs[place].allowed;
        self.work.actions.push(Action::JobStatusChanged { job: state.job_ref(place), from, to, reason, allowed });
        self.after_move(pipeline, place, from, to);
    }

    /// Records the consequences of a status change for revived jobs, the resource group and the pipeline's status.
    pub(super) fn after_move(&mut self, pipeline: PipelineId, place: usize, from: JobStatus, to: JobStatus) {
        let stopped = |status: JobStatus| status.is_complete() || status == JobStatus::Manual;
        if stopped(from) && !stopped(to) {
            self.work.revived.push_back((pipeline, place));
        }
        self.claim_resource(pipeline, place);
        self.work.touched.insert(pipeline);
    }

    /// Starts, delays or skips a created job that is ready, as its `when` says.
    fn take_turn(&mut self, pipeline: PipelineId, place: usize) {
        let Some(state) = self.pipelines.get(&pipeline) else { return };
        match state.turn(place) {
            Turn::NotYet => {}
            Turn::Skip => self.move_to(pipeline, place, JobStatus::Skipped, None),
            Turn::AskPerson => self.move_to(pipeline, place, JobStatus::Manual, None),
            Turn::Start => self.start(pipeline, place),
            Turn::Delay => {
                let at = self.work.now.saturating_add(state.graph.nodes[place].start_in_ms);
                let job = state.job_ref(place);
                self.change(pipeline, place, |job| job.timer_at = Some(at));
                self.move_to(pipeline, place, JobStatus::Scheduled, None);
                self.work.actions.push(Action::StartTimer { job, at });
            }
        }
    }

    /// Starts a job: it gets its resource group or waits for it, and then enters the queue.
    pub(super) fn start(&mut self, pipeline: PipelineId, place: usize) {
        let Some(state) = self.pipelines.get(&pipeline) else { return };
        if state.depth >= DEPTH_MAX && state.graph.nodes[place].bridge.is_some_and(|bridge| bridge.child) {
            return self.fail(pipeline, place, FailureReason::ReachedMaxDescendantPipelinesDepth, None);
        }
        if let Some(group) = state.groups[place] {
            let member = member(state, place);
            self.groups.claim(group, member, Claim::Waits);
            if !self.groups.admits(group, member, |below, holder| self.is_below(below, holder)) {
                // Other jobs may have been waiting when this same event freed the group.
                self.work.freed.insert(group);
                return self.move_to(pipeline, place, JobStatus::WaitingForResource, None);
            }
        }
        self.enqueue(pipeline, place);
    }

    fn enqueue(&mut self, pipeline: PipelineId, place: usize) {
        self.move_to(pipeline, place, JobStatus::Pending, None);
        if let Some(state) = self.pipelines.get(&pipeline) {
            let job = state.job_ref(place);
            let bridge = state.graph.nodes[place].bridge.is_some();
            self.work.actions.push(if bridge { Action::CreateChild { bridge: job } } else { Action::Enqueue { job } });
        }
    }

    /// Updates what a job claims of its resource group.
    pub(super) fn claim_resource(&mut self, pipeline: PipelineId, place: usize) {
        let Some(state) = self.pipelines.get(&pipeline) else { return };
        let Some(group) = state.groups[place] else { return };
        let job = &state.jobs[place];
        let claim = match job.status {
            status if status.is_complete() => Claim::None,
            // A bridge holds its group for the whole life of its child, whatever status of the child it shows.
            _ if job.child.is_some() => Claim::Holds,
            JobStatus::Created | JobStatus::Scheduled => Claim::Later,
            JobStatus::WaitingForResource => Claim::Waits,
            JobStatus::Pending | JobStatus::Running | JobStatus::Canceling => Claim::Holds,
            _ => Claim::None,
        };
        if self.groups.claim(group, member(state, place), claim) {
            self.work.freed.insert(group);
        }
    }

    /// Assigns a resource group to the next waiting job, if the group is free.
    fn grant(&mut self, group: usize) {
        let next = self.groups.next(group, |below, holder| self.is_below(below, holder));
        if let Some(member) = next {
            self.enqueue(member.pipeline, member.place);
        }
    }

    /// Returns whether a pipeline is a descendant of a bridge.
    fn is_below(&self, pipeline: PipelineId, bridge: Member) -> bool {
        let mut above = self.pipelines.get(&pipeline).and_then(|state| state.parent);
        while let Some(parent) = above {
            if (parent.pipeline, parent.place) == (bridge.pipeline, bridge.place) {
                return true;
            }
            above = self.pipelines.get(&parent.pipeline).and_then(|state| state.parent);
        }
        false
    }

    /// Lets jobs wait again that were skipped because of a job that is active again (docs/spec/pipeline-yaml.md, section 5.1).
    fn revive_dependants(&mut self, pipeline: PipelineId, place: usize) {
        let Some(state) = self.pipelines.get(&pipeline) else { return };
        let skipped = |place: &&usize| state.jobs[**place].status == JobStatus::Skipped;
        let mut revived: Vec<usize> = state.graph.dependents[place].iter().filter(skipped).copied().collect();
        let stages = &state.graph.stage_jobs;
        let after = state.graph.nodes[place].stage + 1;
        let until = self.work.revived_from.get(&pipeline).copied().unwrap_or(stages.len());
        if after < until {
            revived.extend(stages[after..until].iter().flatten().filter(skipped));
            self.work.revived_from.insert(pipeline, after);
        }
        for place in revived {
            self.change(pipeline, place, |job| job.child = None);
            self.move_to(pipeline, place, JobStatus::Created, None);
            self.work.wake.push_back((pipeline, place));
        }
    }

    /// Publishes the status of a pipeline if it changed, and updates the bridge that started it.
    fn publish(&mut self, pipeline: PipelineId) {
        let Some(state) = self.pipelines.get_mut(&pipeline) else { return };
        let (from, to) = (state.status, state.composite());
        if from == to {
            return;
        }
        state.status = to;
        let warnings = state.has_warnings();
        let parent = state.parent;
        self.work.actions.push(Action::PipelineStatusChanged { pipeline, from, to, warnings });
        if let Some(bridge) = parent {
            self.follow(bridge, pipeline, to);
        }
    }
}

fn member(state: &PipelineState, place: usize) -> Member {
    Member { root: state.root, pipeline: state.id, place }
}
