//! One pipeline in memory: the state of each job, and counters that tell whose turn it is without looking at the rest.
//!
//! - Jobs without `needs` wait for all earlier stages. The *front* is the first stage that has a job which others must
//!   wait for; exactly the jobs of that stage can have their turn, and all have the same input: the composite of the
//!   stages behind the front.
//! - Jobs with `needs` count those of their needs that they must still wait for.
//!
//! So the end of a job costs time in proportion to what it wakes.

use std::collections::VecDeque;

use muster_job::{JobStatus, PipelineId};
use muster_pipeline::model::{AllowFailure, When};

use super::composite::{Class, Counts};
use super::event::{JobRef, JobState, PipelineOptions};
use super::graph::Graph;

/// What a created job should become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// Its turn has not come.
    NotYet,
    /// Its condition is not met.
    Skip,
    /// It starts.
    Start,
    /// It waits for a person.
    AskPerson,
    /// Its delay begins.
    Delay,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct PipelineState {
    pub(super) id: PipelineId,
    pub(super) graph: Graph,
    pub(super) parent: Option<JobRef>,
    /// The pipeline at the top of the hierarchy of parents.
    pub(super) root: PipelineId,
    /// How many parents are above it.
    pub(super) depth: u32,
    /// Newest record of each job.
    pub(super) jobs: Vec<JobState>,
    /// Per job, the number of its resource group in the engine.
    pub(super) groups: Vec<Option<usize>>,
    /// As last published.
    pub(super) status: JobStatus,
    total: Counts,
    by_stage: Vec<Counts>,
    /// Per stage, how many jobs others must wait for.
    unrest: Vec<u32>,
    /// First stage with unrest, or the number of stages.
    front: usize,
    /// All stages before the front.
    behind: Counts,
    /// Per job, how many of its needs it must wait for.
    open_needs: Vec<u32>,
}

/// The state of each job at the creation of a pipeline.
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
    /// `jobs` has as many entries as the graph.
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

    pub(super) fn job_ref(&self, place: usize) -> JobRef {
        JobRef { pipeline: self.id, place, retry: self.jobs[place].retry }
    }

    /// The composite of all jobs, now.
    pub(super) fn composite(&self) -> JobStatus {
        self.total.composite(false)
    }

    pub(super) fn has_warnings(&self) -> bool {
        self.total.has_warnings()
    }

    fn class(&self, place: usize) -> Class {
        Class::of(self.jobs[place].status, self.jobs[place].allowed)
    }

    /// Changes one job, keeps the counters right, and adds to `wake` the created jobs whose turn that may bring.
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

    fn retreat(&mut self, stage: usize) {
        while self.front > stage {
            self.front -= 1;
            self.behind.remove_all(&self.by_stage[self.front]);
        }
    }

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

    /// All created jobs whose turn may have come.
    pub(super) fn candidates(&self) -> impl Iterator<Item = (PipelineId, usize)> + '_ {
        (0..self.jobs.len()).filter(|&place| self.turn(place) != Turn::NotYet).map(|place| (self.id, place))
    }

    /// Whether it is the turn of a created job, and what it does with it (pipeline-yaml 5.2).
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
        // A need that did not run makes the input complete while others still run. That is enough to skip a job early,
        // but not to start one (`when: always`) before all its needs are over.
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

/// The table of pipeline-yaml 5.2 for a complete input.
fn condition_met(when: When, asked: bool, input: JobStatus, dag: bool) -> bool {
    match when {
        When::OnSuccess | When::Manual | When::Delayed => {
            input == JobStatus::Success || !dag && input == JobStatus::Skipped
        }
        When::OnFailure if !asked => input == JobStatus::Failed,
        When::OnFailure | When::Always => input != JobStatus::Canceled,
    }
}
