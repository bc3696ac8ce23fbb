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

use super::composite::{Class, Counts};
use super::event::{JobRef, JobState, PipelineOptions};
use super::graph::Graph;

/// What should happen to a created job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// The job waits for other jobs.
    NotYet,
    /// The job is skipped because its condition is not met.
    Skip,
    /// The job starts.
    Start,
    /// The job waits for a manual start.
    AskPerson,
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
    unrest: Vec<u32>,
    /// Index of the first stage with an unfinished job, or the number of stages.
    front: usize,
    /// Counts of the jobs of all stages before the current one.
    behind: Counts,
    /// For each job, the number of its needs that are unfinished.
    open_needs: Vec<u32>,
}

/// Returns the state of each job of a new pipeline.
pub(super) fn new_jobs(graph: &Graph, options: &PipelineOptions) -> Vec<JobState> {
    let new = |node: &super::graph::Node| JobState {
        retry: 0,
        status: JobStatus::Created,
        allowed: node.allow_failure == AllowFailure::Yes,
        asked: options.play.contains(&node.name),
        started: false,
        winds_down: false,
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
            unrest: vec![0; stages],
            front: 0,
            behind: Counts::default(),
            open_needs: vec![0; jobs.len()],
            graph,
            jobs,
        };
        for place in 0..state.jobs.len() {
            let class = state.class(place);
            let stage = state.graph.nodes[place].stage;
            state.total.add(class);
            state.by_stage[stage].add(class);
            if !class.rests() {
                state.unrest[stage] += 1;
                for &dependent in &state.graph.dependents[place] {
                    state.open_needs[dependent] += 1;
                }
            }
        }
        while state.unrest.get(state.front) == Some(&0) {
            state.behind.add_all(&state.by_stage[state.front]);
            state.front += 1;
        }
        state
    }

    /// Returns the newest record of the job at an index.
    pub(super) fn job_ref(&self, place: usize) -> JobRef {
        JobRef { pipeline: self.id, place, retry: self.jobs[place].retry }
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
    fn class(&self, place: usize) -> Class {
        Class::of(self.jobs[place].status, self.jobs[place].allowed)
    }

    /// Changes one job, updates the counters, and adds the created jobs that may be ready because of it to `wake`.
    pub(super) fn change(
        &mut self,
        place: usize,
        wake: &mut VecDeque<(PipelineId, usize)>,
        change: impl FnOnce(&mut JobState),
    ) {
        let before = self.class(place);
        change(&mut self.jobs[place]);
        let after = self.class(place);
        if before == after {
            return;
        }
        let stage = self.graph.nodes[place].stage;
        self.total.shift(before, after);
        self.by_stage[stage].shift(before, after);
        if stage < self.front {
            self.behind.shift(before, after);
        }
        match (before.rests(), after.rests()) {
            (true, false) => {
                self.unrest[stage] += 1;
                self.retreat(stage);
            }
            (false, true) => self.unrest[stage] -= 1,
            _ => {}
        }
        self.tell_dependents(place, before, after, wake);
        if after.rests() && stage == self.front {
            self.advance(wake);
        }
    }

    /// Moves the current stage back to `stage`.
    fn retreat(&mut self, stage: usize) {
        while self.front > stage {
            self.front -= 1;
            self.behind.remove_all(&self.by_stage[self.front]);
        }
    }

    /// Moves the current stage forward to the next stage with an unfinished job, and wakes the created jobs of each stage on the way.
    fn advance(&mut self, wake: &mut VecDeque<(PipelineId, usize)>) {
        while self.unrest.get(self.front) == Some(&0) {
            self.behind.add_all(&self.by_stage[self.front]);
            self.front += 1;
            for &place in self.graph.stage_jobs.get(self.front).into_iter().flatten() {
                if self.jobs[place].status == JobStatus::Created {
                    wake.push_back((self.id, place));
                }
            }
        }
    }

    /// Updates the counters of the jobs that need a job whose status class changed, and wakes those that may be ready.
    fn tell_dependents(&mut self, place: usize, before: Class, after: Class, wake: &mut VecDeque<(PipelineId, usize)>) {
        if before.rests() == after.rests() && !after.did_not_run() {
            return;
        }
        for &dependent in &self.graph.dependents[place] {
            match (before.rests(), after.rests()) {
                (true, false) => self.open_needs[dependent] += 1,
                (false, true) => self.open_needs[dependent] -= 1,
                _ => {}
            }
            let awake = self.open_needs[dependent] == 0 || after.did_not_run();
            if awake && self.jobs[dependent].status == JobStatus::Created {
                wake.push_back((self.id, dependent));
            }
        }
    }

    /// Returns all created jobs that are ready.
    pub(super) fn candidates(&self) -> impl Iterator<Item = (PipelineId, usize)> + '_ {
        (0..self.jobs.len()).filter(|&place| self.turn(place) != Turn::NotYet).map(|place| (self.id, place))
    }

    /// Returns what should happen to a job (docs/spec/pipeline-yaml.md, section 5.2). `NotYet` if it is not a created job.
    pub(super) fn turn(&self, place: usize) -> Turn {
        let node = &self.graph.nodes[place];
        let job = &self.jobs[place];
        if job.status != JobStatus::Created {
            return Turn::NotYet;
        }
        let (input, dag) = match &node.needs {
            None if node.stage != self.front => return Turn::NotYet,
            None => (composite_or_success(&self.behind, false), false),
            Some(needs) => (self.input_of_needs(needs), true),
        };
        if !input.is_complete() {
            return Turn::NotYet;
        }
        if !condition_met(node.when, job.asked, input, dag) {
            return Turn::Skip;
        }
        // A need that did not run makes the input complete while other needs still run. That is enough to skip a job early, but not to
        // start one with `when: always` before all its needs have ended.
        if self.open_needs[place] > 0 {
            return Turn::NotYet;
        }
        match node.when {
            When::Manual if !job.asked => Turn::AskPerson,
            When::Delayed if !job.asked => Turn::Delay,
            _ => Turn::Start,
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
fn condition_met(when: When, asked: bool, input: JobStatus, dag: bool) -> bool {
    match when {
        When::OnSuccess | When::Manual | When::Delayed => {
            input == JobStatus::Success || !dag && input == JobStatus::Skipped
        }
        When::OnFailure if !asked => input == JobStatus::Failed,
        When::OnFailure | When::Always => input != JobStatus::Canceled,
    }
}
