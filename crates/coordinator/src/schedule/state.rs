//! The state of one pipeline: the state of each job, and counters that show which jobs are ready without a scan of all jobs.
//!
//! - Jobs without `needs` wait for all earlier stages. The *current stage* is the first stage with an unfinished job: a job that later
//!   jobs must wait for. A job without `needs` is ready if and only if it is in this stage. All these jobs have the same input: the
//!   composite status of the earlier stages.
//! - For a job with `needs`, the number of unfinished needs is counted.

use std::collections::VecDeque;

use muster_job::{JobStatus, PipelineId};
use muster_pipeline::model::{AllowFailure, When};

use super::composite::{Counts, StatusClass};
use super::event::{JobRef, JobState, PipelineOptions};
use super::graph::{Graph, Node};
use super::groups::Member;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Readiness {
    NotYet,
    /// The job is skipped because its condition is not met.
    Skip,
    Start,
    WaitForManualStart,
    Delay,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct PipelineState {
    pub(super) id: PipelineId,
    pub(super) graph: Graph,
    pub(super) parent: Option<JobRef>,
    /// Pipeline at the top of the hierarchy. The pipeline itself if it has no parent.
    pub(super) root: PipelineId,
    /// Number of ancestors.
    pub(super) depth: u32,
    pub(super) jobs: Vec<JobState>,
    /// For each job, the number of its resource group in the engine.
    pub(super) groups: Vec<Option<usize>>,
    pub(super) status: JobStatus,
    total: Counts,
    stages: Vec<StageCounts>,
    /// Index of the first stage with an unfinished job, or the number of stages.
    current_stage: usize,
    /// Counts of the jobs of all stages before the current one.
    earlier_stages: Counts,
    /// For each job, the number of its needs that are unfinished.
    pending_needs: Vec<u32>,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct StageCounts {
    all: Counts,
    /// Number of jobs that later jobs must wait for.
    unfinished: u32,
}

#[derive(Clone, Copy)]
pub(super) struct JobEntry<'a> {
    pub(super) pipeline: &'a PipelineState,
    pub(super) job_index: usize,
    pub(super) node: &'a Node,
    pub(super) state: &'a JobState,
    pub(super) group: Option<usize>,
}

impl JobEntry<'_> {
    pub(super) fn job_ref(&self) -> JobRef {
        JobRef { pipeline: self.pipeline.id, job_index: self.job_index, retry: self.state.retry }
    }

    pub(super) fn group_member(&self) -> Member {
        Member { root: self.pipeline.root, pipeline: self.pipeline.id, job_index: self.job_index }
    }
}

pub(super) fn new_jobs(graph: &Graph, options: &PipelineOptions) -> Vec<JobState> {
    let new = |node: &Node| JobState {
        retry: 0,
        status: JobStatus::Created,
        failure_allowed: node.allow_failure == AllowFailure::Yes,
        requested_by_user: options.play.contains(&node.name),
        started: false,
        supports_graceful_cancel: false,
        timer_at: None,
        child: None,
    };
    graph.nodes.iter().map(new).collect()
}

impl PipelineState {
    /// Creates the state of a pipeline. `jobs` has as many entries as the graph.
    pub(super) fn new(
        id: PipelineId,
        graph: Graph,
        jobs: Vec<JobState>,
        parent: Option<&Self>,
        bridge: Option<JobRef>,
    ) -> Self {
        let mut total = Counts::default();
        let mut stages = vec![StageCounts::default(); graph.stage_jobs.len()];
        let mut pending_needs = vec![0; jobs.len()];
        for (node, job) in graph.nodes.iter().zip(&jobs) {
            let class = class_of(job);
            total.add(class);
            let Some(stage) = stages.get_mut(node.stage) else { continue };
            stage.all.add(class);
            if !class.is_non_blocking() {
                stage.unfinished += 1;
                for dependent in &node.dependents {
                    if let Some(count) = pending_needs.get_mut(*dependent) {
                        *count += 1;
                    }
                }
            }
        }
        let mut state = Self {
            id,
            parent: bridge.filter(|_| parent.is_some()),
            root: parent.map_or(id, |parent| parent.root),
            depth: parent.map_or(0, |parent| parent.depth + 1),
            groups: vec![None; jobs.len()],
            status: JobStatus::Created,
            total,
            stages,
            current_stage: 0,
            earlier_stages: Counts::default(),
            pending_needs,
            graph,
            jobs,
        };
        while state.enter_next_stage() {}
        state
    }

    pub(super) fn entry(&self, job_index: usize) -> Option<JobEntry<'_>> {
        let (node, state) = self.graph.nodes.get(job_index).zip(self.jobs.get(job_index))?;
        let group = self.groups.get(job_index).copied().flatten();
        Some(JobEntry { pipeline: self, job_index, node, state, group })
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = JobEntry<'_>> {
        (0..self.jobs.len()).filter_map(|job_index| self.entry(job_index))
    }

    pub(super) fn composite(&self) -> JobStatus {
        self.total.composite(false)
    }

    pub(super) fn has_warnings(&self) -> bool {
        self.total.has_warnings()
    }

    /// Changes one job, updates the counters, and adds the created jobs that may be ready now to `wake`.
    pub(super) fn change(
        &mut self,
        job_index: usize,
        wake: &mut VecDeque<(PipelineId, usize)>,
        change: impl FnOnce(&mut JobState),
    ) {
        let Some((job, node)) = self.jobs.get_mut(job_index).zip(self.graph.nodes.get(job_index)) else { return };
        let before = class_of(job);
        change(job);
        let after = class_of(job);
        if before == after {
            return;
        }
        let stage = node.stage;
        self.total.shift(before, after);
        if let Some(counts) = self.stages.get_mut(stage) {
            counts.all.shift(before, after);
            match (before.is_non_blocking(), after.is_non_blocking()) {
                (true, false) => counts.unfinished += 1,
                (false, true) => counts.unfinished -= 1,
                _ => {}
            }
        }
        if stage < self.current_stage {
            self.earlier_stages.shift(before, after);
        }
        if before.is_non_blocking() && !after.is_non_blocking() {
            self.move_back(stage);
        }
        self.notify_dependents(job_index, before, after, wake);
        if after.is_non_blocking() && stage == self.current_stage {
            self.advance(wake);
        }
    }

    fn move_back(&mut self, stage: usize) {
        while self.current_stage > stage {
            self.current_stage -= 1;
            if let Some(counts) = self.stages.get(self.current_stage) {
                self.earlier_stages.remove_all(&counts.all);
            }
        }
    }

    fn enter_next_stage(&mut self) -> bool {
        match self.stages.get(self.current_stage) {
            Some(counts) if counts.unfinished == 0 => {
                self.earlier_stages.add_all(&counts.all);
                self.current_stage += 1;
                true
            }
            _ => false,
        }
    }

    /// Enters stages until one has an unfinished job, and wakes the created jobs of each entered stage.
    fn advance(&mut self, wake: &mut VecDeque<(PipelineId, usize)>) {
        while self.enter_next_stage() {
            let jobs = self.graph.stage_jobs.get(self.current_stage).into_iter().flatten().copied();
            wake.extend(
                jobs.filter(|job_index| is_created(&self.jobs, *job_index)).map(|job_index| (self.id, job_index)),
            );
        }
    }

    /// Updates the number of unfinished needs of each dependent, and wakes the dependents that may be ready now.
    fn notify_dependents(
        &mut self,
        job_index: usize,
        before: StatusClass,
        after: StatusClass,
        wake: &mut VecDeque<(PipelineId, usize)>,
    ) {
        if before.is_non_blocking() == after.is_non_blocking() && !after.did_not_run() {
            return;
        }
        let Some(node) = self.graph.nodes.get(job_index) else { return };
        for &dependent in &node.dependents {
            let Some(pending) = self.pending_needs.get_mut(dependent) else { continue };
            match (before.is_non_blocking(), after.is_non_blocking()) {
                (true, false) => *pending += 1,
                (false, true) => *pending -= 1,
                _ => {}
            }
            let may_be_ready = *pending == 0 || after.did_not_run();
            if may_be_ready && is_created(&self.jobs, dependent) {
                wake.push_back((self.id, dependent));
            }
        }
    }

    /// Returns all created jobs that do not wait for other jobs.
    pub(super) fn candidates(&self) -> impl Iterator<Item = (PipelineId, usize)> + '_ {
        (0..self.jobs.len())
            .filter(|&job_index| self.readiness(job_index) != Readiness::NotYet)
            .map(|job_index| (self.id, job_index))
    }

    /// Returns what happens with a created job now (docs/spec/pipeline-yaml.md, section 5.2).
    ///
    /// `NotYet` also if the status of the job is not `created`.
    pub(super) fn readiness(&self, job_index: usize) -> Readiness {
        let Some(JobEntry { node, state: job, .. }) = self.entry(job_index) else { return Readiness::NotYet };
        if job.status != JobStatus::Created {
            return Readiness::NotYet;
        }
        let (input, has_needs) = match &node.needs {
            None if node.stage != self.current_stage => return Readiness::NotYet,
            None => (composite_or_success(&self.earlier_stages, false), false),
            Some(needs) => (self.input_of_needs(needs), true),
        };
        if !input.is_complete() {
            return Readiness::NotYet;
        }
        if !condition_met(node.when, job.requested_by_user, input, has_needs) {
            return Readiness::Skip;
        }
        // A need that did not run makes the input complete while other needs still run. This suffices to skip the job,
        // but not to start it.
        if self.pending_needs.get(job_index).is_some_and(|pending| *pending > 0) {
            return Readiness::NotYet;
        }
        match node.when {
            When::Manual if !job.requested_by_user => Readiness::WaitForManualStart,
            When::Delayed if !job.requested_by_user => Readiness::Delay,
            _ => Readiness::Start,
        }
    }

    fn input_of_needs(&self, needs: &[usize]) -> JobStatus {
        let mut counts = Counts::default();
        needs.iter().filter_map(|need| self.jobs.get(*need)).for_each(|need| counts.add(class_of(need)));
        composite_or_success(&counts, true)
    }
}

fn class_of(job: &JobState) -> StatusClass {
    StatusClass::new(job.status, job.failure_allowed)
}

fn is_created(jobs: &[JobState], job_index: usize) -> bool {
    jobs.get(job_index).is_some_and(|job| job.status == JobStatus::Created)
}

/// Returns the composite status of the counted jobs, or success if there are no jobs.
fn composite_or_success(counts: &Counts, of_needs: bool) -> JobStatus {
    if counts.is_empty() { JobStatus::Success } else { counts.composite(of_needs) }
}

/// Returns whether the condition of `when` is met. `input` must be complete (docs/spec/pipeline-yaml.md, section 5.2).
fn condition_met(when: When, requested_by_user: bool, input: JobStatus, has_needs: bool) -> bool {
    match when {
        When::OnSuccess | When::Manual | When::Delayed => {
            input == JobStatus::Success || !has_needs && input == JobStatus::Skipped
        }
        When::OnFailure if !requested_by_user => input == JobStatus::Failed,
        When::OnFailure | When::Always => input != JobStatus::Canceled,
    }
}
