//! The state of one pipeline: the state of each job, and counters that show which jobs are ready without looking at all jobs.
//!
//! - Jobs without `needs` wait for all earlier stages. The *current stage* is the first stage with an unfinished job, which is a job
//!   that later jobs must wait for. Exactly the jobs of this stage can start, and all of them have the same input: the composite
//!   status of the earlier stages.
//! - For a job with `needs`, the number of unfinished needs is counted.
//!
//! The end of a job therefore takes time in proportion to the jobs that it makes ready.

use std::collections::VecDeque;

use muster_job::{JobStatus, PipelineId};
use muster_pipeline::model::{AllowFailure, When};

use super::composite::{Counts, StatusClass};
use super::event::{JobRef, JobState, PipelineOptions};
use super::graph::Graph;

/// What should happen to a created job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Readiness {
    /// The job waits for other jobs.
    NotYet,
    /// The job is skipped because its condition is not met.
    Skip,
    /// The job starts.
    Start,
    /// The job waits for a manual start.
    WaitForManualStart,
    /// The delay of the job begins.
    Delay,
}

/// The state of one pipeline.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PipelineState {
    pub(super) id: PipelineId,
    pub(super) graph: Graph,
    pub(super) parent: Option<JobRef>,
    /// Pipeline at the top of the hierarchy. The pipeline itself if it has no parent.
    pub(super) root: PipelineId,
    /// Number of ancestors.
    pub(super) depth: u32,
    /// Newest record of each job.
    pub(super) jobs: Vec<JobState>,
    /// For each job, the number of its resource group in the engine.
    pub(super) groups: Vec<Option<usize>>,
    /// Status that was last published.
    pub(super) status: JobStatus,
    /// Counts of all jobs.
    total: Counts,
    /// Counts of the jobs of each stage.
    by_stage: Vec<Counts>,
    /// For each stage, the number of jobs that later jobs must wait for.
    unfinished: Vec<u32>,
    /// Index of the first stage with an unfinished job, or the number of stages.
    current_stage: usize,
    /// Counts of the jobs of all stages before the current one.
    earlier_stages: Counts,
    /// For each job, the number of its needs that are unfinished.
    pending_needs: Vec<u32>,
}

/// Returns the state of each job of a new pipeline.
pub(super) fn new_jobs(graph: &Graph, options: &PipelineOptions) -> Vec<JobState> {
    let new = |node: &super::graph::Node| JobState {
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
        let stages = graph.stage_jobs.len();
        let mut state = Self {
            id,
            parent: bridge.filter(|_| parent.is_some()),
            root: parent.map_or(id, |parent| parent.root),
            depth: parent.map_or(0, |parent| parent.depth + 1),
            groups: vec![None; jobs.len()],
            status: JobStatus::Created,
            total: Counts::default(),
            by_stage: vec![Counts::default(); stages],
            unfinished: vec![0; stages],
            current_stage: 0,
            earlier_stages: Counts::default(),
            pending_needs: vec![0; jobs.len()],
            graph,
            jobs,
        };
        for job_index in 0..state.jobs.len() {
            let class = state.class(job_index);
            let stage = state.graph.nodes[job_index].stage;
            state.total.add(class);
            state.by_stage[stage].add(class);
            if !class.is_non_blocking() {
                state.unfinished[stage] += 1;
                for &dependent in &state.graph.dependents[job_index] {
                    state.pending_needs[dependent] += 1;
                }
            }
        }
        while state.unfinished.get(state.current_stage) == Some(&0) {
            state.earlier_stages.add_all(&state.by_stage[state.current_stage]);
            state.current_stage += 1;
        }
        state
    }

    /// Returns the newest record of the job at an index.
    pub(super) fn job_ref(&self, job_index: usize) -> JobRef {
        JobRef { pipeline: self.id, job_index, retry: self.jobs[job_index].retry }
    }

    /// Returns the current composite status of all jobs.
    pub(super) fn composite(&self) -> JobStatus {
        self.total.composite(false)
    }

    /// Returns whether a job failed that is allowed to fail.
    pub(super) fn has_warnings(&self) -> bool {
        self.total.has_warnings()
    }

    /// Returns the status class of the job at an index.
    fn class(&self, job_index: usize) -> StatusClass {
        StatusClass::of(self.jobs[job_index].status, self.jobs[job_index].failure_allowed)
    }

    /// Changes one job, updates the counters, and adds the created jobs that may be ready because of it to `wake`.
    pub(super) fn change(
        &mut self,
        job_index: usize,
        wake: &mut VecDeque<(PipelineId, usize)>,
        change: impl FnOnce(&mut JobState),
    ) {
        let before = self.class(job_index);
        change(&mut self.jobs[job_index]);
        let after = self.class(job_index);
        if before == after {
            return;
        }
        let stage = self.graph.nodes[job_index].stage;
        self.total.shift(before, after);
        self.by_stage[stage].shift(before, after);
        if stage < self.current_stage {
            self.earlier_stages.shift(before, after);
        }
        match (before.is_non_blocking(), after.is_non_blocking()) {
            (true, false) => {
                self.unfinished[stage] += 1;
                self.move_back(stage);
            }
            (false, true) => self.unfinished[stage] -= 1,
            _ => {}
        }
        self.notify_dependents(job_index, before, after, wake);
        if after.is_non_blocking() && stage == self.current_stage {
            self.advance(wake);
        }
    }

    /// Moves the current stage back to `stage`.
    fn move_back(&mut self, stage: usize) {
        while self.current_stage > stage {
            self.current_stage -= 1;
            self.earlier_stages.remove_all(&self.by_stage[self.current_stage]);
        }
    }

    /// Moves the current stage forward to the next stage with an unfinished job, and wakes the created jobs of each stage on the way.
    fn advance(&mut self, wake: &mut VecDeque<(PipelineId, usize)>) {
        while self.unfinished.get(self.current_stage) == Some(&0) {
            self.earlier_stages.add_all(&self.by_stage[self.current_stage]);
            self.current_stage += 1;
            for &job_index in self.graph.stage_jobs.get(self.current_stage).into_iter().flatten() {
                if self.jobs[job_index].status == JobStatus::Created {
                    wake.push_back((self.id, job_index));
                }
            }
        }
    }

    /// Updates the counters of the jobs that need a job whose status class changed, and wakes those that may be ready.
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
        for &dependent in &self.graph.dependents[job_index] {
            match (before.is_non_blocking(), after.is_non_blocking()) {
                (true, false) => self.pending_needs[dependent] += 1,
                (false, true) => self.pending_needs[dependent] -= 1,
                _ => {}
            }
            let awake = self.pending_needs[dependent] == 0 || after.did_not_run();
            if awake && self.jobs[dependent].status == JobStatus::Created {
                wake.push_back((self.id, dependent));
            }
        }
    }

    /// Returns all created jobs that are ready.
    pub(super) fn candidates(&self) -> impl Iterator<Item = (PipelineId, usize)> + '_ {
        (0..self.jobs.len())
            .filter(|&job_index| self.readiness(job_index) != Readiness::NotYet)
            .map(|job_index| (self.id, job_index))
    }

    /// Returns what should happen to a job (docs/spec/pipeline-yaml.md, section 5.2). `NotYet` if it is not a created job.
    pub(super) fn readiness(&self, job_index: usize) -> Readiness {
        let node = &self.graph.nodes[job_index];
        let job = &self.jobs[job_index];
        if job.status != JobStatus::Created {
            return Readiness::NotYet;
        }
        let (input, dag) = match &node.needs {
            None if node.stage != self.current_stage => return Readiness::NotYet,
            None => (composite_or_success(&self.earlier_stages, false), false),
            Some(needs) => (self.input_of_needs(needs), true),
        };
        if !input.is_complete() {
            return Readiness::NotYet;
        }
        if !condition_met(node.when, job.requested_by_user, input, dag) {
            return Readiness::Skip;
        }
        // A need that did not run makes the input complete while other needs still run. That is enough to skip a job early, but not to
        // start one with `when: always` before all its needs have ended.
        if self.pending_needs[job_index] > 0 {
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
        needs.iter().for_each(|&need| counts.add(self.class(need)));
        composite_or_success(&counts, true)
    }
}

fn composite_or_success(counts: &Counts, dag: bool) -> JobStatus {
    if counts.is_empty() { JobStatus::Success } else { counts.composite(dag) }
}

/// Returns whether `when` allows a job to run, for a complete input (table in docs/spec/pipeline-yaml.md, section 5.2).
fn condition_met(when: When, requested_by_user: bool, input: JobStatus, dag: bool) -> bool {
    match when {
        When::OnSuccess | When::Manual | When::Delayed => {
            input == JobStatus::Success || !dag && input == JobStatus::Skipped
        }
        When::OnFailure if !requested_by_user => input == JobStatus::Failed,
        When::OnFailure | When::Always => input != JobStatus::Canceled,
    }
}
