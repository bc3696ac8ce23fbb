//! Processes the consequences of an event, until no further state change follows.

use muster_job::{FailureReason, JobStatus, PipelineId};

use super::children::MAX_DEPTH;
use super::engine::Engine;
use super::event::{Action, JobState};
use super::groups::Claim;
use super::state::Readiness;

impl Engine {
    /// Processes all pending work.
    ///
    /// The order matters. Revived jobs come first, so that no decision uses a job that is about to become active again. Ready jobs come
    /// before resource groups, so that a group chooses among all ready jobs. The status of a child comes before the status of its parent.
    pub(super) fn propagate(&mut self) {
        loop {
            if let Some((pipeline, job_index)) = self.work.revived.pop_front() {
                self.revive_dependents(pipeline, job_index);
                continue;
            }
            self.work.revived_from_stage.clear();
            if let Some((pipeline, job_index)) = self.work.wake.pop_front() {
                self.decide_job(pipeline, job_index);
            } else if let Some(group) = self.work.freed.pop_first() {
                self.assign_resource(group);
            } else if let Some(pipeline) = self.work.touched.pop_last() {
                self.publish(pipeline);
            } else {
                return;
            }
        }
    }

    pub(super) fn change(&mut self, pipeline: PipelineId, job_index: usize, change: impl FnOnce(&mut JobState)) {
        if let Some(state) = self.pipelines.get_mut(pipeline) {
            state.change(job_index, &mut self.work.wake, change);
        }
    }

    /// Changes the status of a job and records the possible consequences.
    ///
    /// The caller has checked that the transition is valid. The exception is a bridge that mirrors its child: it makes
    /// every transition that the child makes.
    pub(super) fn move_to(
        &mut self,
        pipeline: PipelineId,
        job_index: usize,
        to: JobStatus,
        reason: Option<FailureReason>,
    ) {
        let Some(entry) = self.pipelines.job(pipeline, job_index) else { return };
        let (job, from, failure_allowed) = (entry.job_ref(), entry.state.status, entry.state.failure_allowed);
        if from == to {
            return;
        }
        self.change(pipeline, job_index, |job| {
            job.status = to;
            job.started |= matches!(to, JobStatus::Running | JobStatus::Success);
            if to != JobStatus::Scheduled {
                job.timer_at = None;
            }
        });
        self.work.actions.push(Action::JobStatusChanged { job, from, to, reason, failure_allowed });
        self.after_transition(pipeline, job_index, from, to);
    }

    pub(super) fn after_transition(&mut self, pipeline: PipelineId, job_index: usize, from: JobStatus, to: JobStatus) {
        let stopped = |status: JobStatus| status.is_complete() || status == JobStatus::Manual;
        if stopped(from) && !stopped(to) {
            self.work.revived.push_back((pipeline, job_index));
        }
        self.update_claim(pipeline, job_index);
        self.work.touched.insert(pipeline);
    }

    /// Starts, delays or skips a created job that is ready, according to its `when`.
    fn decide_job(&mut self, pipeline: PipelineId, job_index: usize) {
        let Some(entry) = self.pipelines.job(pipeline, job_index) else { return };
        match entry.pipeline.readiness(job_index) {
            Readiness::NotYet => {}
            Readiness::Skip => self.move_to(pipeline, job_index, JobStatus::Skipped, None),
            Readiness::WaitForManualStart => self.move_to(pipeline, job_index, JobStatus::Manual, None),
            Readiness::Start => self.start(pipeline, job_index),
            Readiness::Delay => {
                let at = self.work.now.saturating_add(entry.node.start_in_ms);
                let job = entry.job_ref();
                self.change(pipeline, job_index, |job| job.timer_at = Some(at));
                self.move_to(pipeline, job_index, JobStatus::Scheduled, None);
                self.work.actions.push(Action::StartTimer { job, at });
            }
        }
    }

    pub(super) fn start(&mut self, pipeline: PipelineId, job_index: usize) {
        let Some(entry) = self.pipelines.job(pipeline, job_index) else { return };
        if entry.pipeline.depth >= MAX_DEPTH && entry.node.bridge.is_some_and(|bridge| bridge.starts_child) {
            return self.fail(pipeline, job_index, FailureReason::ReachedMaxDescendantPipelinesDepth, None);
        }
        if let Some(group) = entry.group {
            let member = entry.group_member();
            self.groups.claim(group, member, Claim::Waiting);
            if !self.groups.may_acquire(group, member, |below, holder| self.pipelines.is_below(below, holder)) {
                // If the group is free, another waiting job comes first, which then gets the group.
                self.work.freed.insert(group);
                return self.move_to(pipeline, job_index, JobStatus::WaitingForResource, None);
            }
        }
        self.enqueue(pipeline, job_index);
    }

    fn enqueue(&mut self, pipeline: PipelineId, job_index: usize) {
        self.move_to(pipeline, job_index, JobStatus::Pending, None);
        if let Some(entry) = self.pipelines.job(pipeline, job_index) {
            let (job, is_bridge) = (entry.job_ref(), entry.node.bridge.is_some());
            self.work.actions.push(if is_bridge {
                Action::CreateChild { bridge: job }
            } else {
                Action::Enqueue { job }
            });
        }
    }

    pub(super) fn update_claim(&mut self, pipeline: PipelineId, job_index: usize) {
        let Some(entry) = self.pipelines.job(pipeline, job_index) else { return };
        let Some(group) = entry.group else { return };
        let claim = match entry.state.status {
            status if status.is_complete() => Claim::None,
            // A bridge holds its group until its child ends, regardless of the status that it shows.
            _ if entry.state.child.is_some() => Claim::Holding,
            JobStatus::Created | JobStatus::Scheduled => Claim::Upcoming,
            JobStatus::WaitingForResource => Claim::Waiting,
            JobStatus::Pending | JobStatus::Running | JobStatus::Canceling => Claim::Holding,
            _ => Claim::None,
        };
        if self.groups.claim(group, entry.group_member(), claim) {
            self.work.freed.insert(group);
        }
    }

    fn assign_resource(&mut self, group: usize) {
        let next = self.groups.next(group, |below, holder| self.pipelines.is_below(below, holder));
        if let Some(member) = next {
            self.enqueue(member.pipeline, member.job_index);
        }
    }

    /// Makes jobs wait again if they were skipped because of a job that is now active again.
    ///
    /// See docs/spec/pipeline-yaml.md, section 5.1.
    fn revive_dependents(&mut self, pipeline: PipelineId, job_index: usize) {
        let Some(entry) = self.pipelines.job(pipeline, job_index) else { return };
        let state = entry.pipeline;
        let is_skipped =
            |job_index: &usize| state.jobs.get(*job_index).is_some_and(|job| job.status == JobStatus::Skipped);
        let mut revived: Vec<usize> = entry.node.dependents.iter().copied().filter(is_skipped).collect();
        let stages = &state.graph.stage_jobs;
        let after = entry.node.stage + 1;
        let until = self.work.revived_from_stage.get(&pipeline).copied().unwrap_or(stages.len());
        if let Some(later) = stages.get(after..until).filter(|later| !later.is_empty()) {
            revived.extend(later.iter().flatten().copied().filter(is_skipped));
            self.work.revived_from_stage.insert(pipeline, after);
        }
        for job_index in revived {
            self.change(pipeline, job_index, |job| job.child = None);
            self.move_to(pipeline, job_index, JobStatus::Created, None);
            self.work.wake.push_back((pipeline, job_index));
        }
    }

    /// If the status of a pipeline has changed, publishes it and updates the bridge that started the pipeline.
    fn publish(&mut self, pipeline: PipelineId) {
        let Some(state) = self.pipelines.get_mut(pipeline) else { return };
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
