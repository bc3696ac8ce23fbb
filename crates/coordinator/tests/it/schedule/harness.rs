//! Test harness of the engine: applies events, checks the returned actions, and finds jobs by name.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_coordinator::schedule::{
    Action, Engine, Event, Graph, JobRef, Outcome, PipelineOptions, RejectedEvent, StoredPipeline, Target,
};
use muster_job::{FailureReason, JobStatus, PipelineId};
use muster_pipeline::model::{
    AllowFailure, AutoCancel, Bridge, BridgeTarget, Job, Need, Pipeline, Retry, Strategy, When, Work,
};

pub(crate) fn job(name: &str, stage: &str, stage_index: usize) -> Job {
    Job {
        group_name: name.split([':', ' ']).next().unwrap_or(name).to_owned(),
        stage: stage.to_owned(),
        stage_index,
        work: Work::Script(Box::default()),
        ..crate::support::job(name)
    }
}

pub(crate) fn bridge_work(strategy: Strategy) -> Work {
    let target = BridgeTarget::Child(Vec::new());
    let bridge = Bridge { target, strategy, forward_yaml_variables: true, forward_pipeline_variables: false };
    Work::Bridge(Box::new(bridge))
}

/// Returns the pipeline that `notation` describes: `b: b1 b2; t: t1` is a stage `b` with the jobs `b1` and `b2`, and a
/// stage `t` with the job `t1`.
pub(crate) fn pipeline(notation: &str) -> Pipeline {
    let mut model = Pipeline {
        name: None,
        stages: Vec::new(),
        variables: Vec::new(),
        auto_cancel: AutoCancel::default(),
        jobs: Vec::new(),
        excluded: Vec::new(),
    };
    for (index, part) in notation.split(';').enumerate() {
        let (stage, names) = part.split_once(':').expect("the notation is not `stage: jobs`");
        model.stages.push(stage.trim().to_owned());
        model.jobs.extend(names.split_whitespace().map(|name| job(name, stage.trim(), index)));
    }
    model
}

pub(crate) trait Build: Sized {
    fn with(self, name: &str, change: impl FnOnce(&mut Job)) -> Self;
    fn when(self, name: &str, when: When) -> Self;
    fn needs(self, name: &str, needs: &[&str]) -> Self;
    fn retry(self, name: &str, max: u32, when: &[FailureReason], exit_codes: &[i32]) -> Self;
    fn bridge(self, name: &str, strategy: Strategy) -> Self;
    fn group(self, name: &str, group: &str) -> Self;
}

impl Build for Pipeline {
    fn with(mut self, name: &str, change: impl FnOnce(&mut Job)) -> Self {
        change(self.jobs.iter_mut().find(|job| job.name == name).expect("no job of that name"));
        self
    }

    /// Sets `when`. A manual job becomes optional, as with `when: manual` on a job.
    fn when(self, name: &str, when: When) -> Self {
        self.with(name, |job| {
            job.when = when;
            if when == When::Manual {
                job.allow_failure = AllowFailure::Yes;
            }
            if when == When::Delayed {
                job.start_in = Some(Duration::from_secs(60));
            }
        })
    }

    fn needs(self, name: &str, needs: &[&str]) -> Self {
        let need = |name: &&str| Need::Job { name: (*name).to_owned(), artifacts: true, optional: false };
        self.with(name, |job| job.needs = Some(needs.iter().map(need).collect()))
    }

    fn retry(self, name: &str, max: u32, when: &[FailureReason], exit_codes: &[i32]) -> Self {
        let retry = Retry { max, when: when.to_vec(), exit_codes: exit_codes.to_vec(), always: false };
        self.with(name, |job| job.retry = retry)
    }

    fn bridge(self, name: &str, strategy: Strategy) -> Self {
        self.with(name, |job| job.work = bridge_work(strategy))
    }

    fn group(self, name: &str, group: &str) -> Self {
        self.with(name, |job| job.resource_group = Some(group.to_owned()))
    }
}

pub(crate) struct EngineHarness {
    pub(crate) engine: Engine,
    pub(crate) now: u64,
    pipelines: BTreeMap<PipelineId, (Pipeline, PipelineOptions)>,
    stored: BTreeMap<JobRef, JobStatus>,
    published: BTreeMap<PipelineId, JobStatus>,
    pub(crate) enqueued: BTreeMap<JobRef, usize>,
    pub(crate) timers: BTreeMap<JobRef, u64>,
    pub(crate) requested_children: Vec<JobRef>,
    /// Jobs that were canceled on their runners, and whether gracefully.
    pub(crate) cancels_on_runners: Vec<(JobRef, bool)>,
    pub(crate) reasons: BTreeMap<JobRef, FailureReason>,
}

pub(crate) fn engine_with(pipeline: Pipeline) -> EngineHarness {
    let mut harness = EngineHarness::empty();
    harness.add(pipeline);
    harness
}

impl EngineHarness {
    pub(crate) fn empty() -> Self {
        Self {
            engine: Engine::new(),
            now: 1_000_000,
            pipelines: BTreeMap::new(),
            stored: BTreeMap::new(),
            published: BTreeMap::new(),
            enqueued: BTreeMap::new(),
            timers: BTreeMap::new(),
            requested_children: Vec::new(),
            cancels_on_runners: Vec::new(),
            reasons: BTreeMap::new(),
        }
    }

    pub(crate) fn add(&mut self, pipeline: Pipeline) -> PipelineId {
        self.add_with(pipeline, PipelineOptions::default()).expect("the pipeline was rejected")
    }

    pub(crate) fn add_with_requested_jobs(&mut self, pipeline: Pipeline, names: &[&str]) -> PipelineId {
        let play: BTreeSet<String> = names.iter().map(|name| (*name).to_owned()).collect();
        self.add_with(pipeline, PipelineOptions { play, parent: None }).expect("the pipeline was rejected")
    }

    pub(crate) fn add_child(&mut self, bridge: &str, pipeline: Pipeline) -> Result<PipelineId, RejectedEvent> {
        self.add_child_of(self.job(bridge), pipeline)
    }

    pub(crate) fn add_child_of(&mut self, bridge: JobRef, pipeline: Pipeline) -> Result<PipelineId, RejectedEvent> {
        self.add_with(pipeline, PipelineOptions { play: BTreeSet::new(), parent: Some(bridge) })
    }

    pub(crate) fn is_bridge(&self, job: JobRef) -> bool {
        matches!(self.pipelines[&job.pipeline].0.jobs[job.job_index].work, Work::Bridge(_))
    }

    fn add_with(&mut self, pipeline: Pipeline, options: PipelineOptions) -> Result<PipelineId, RejectedEvent> {
        let id = PipelineId(i64::try_from(self.pipelines.len()).expect("a small number") + 1);
        let graph = Graph::new(&pipeline).expect("the graph is invalid");
        for job_index in 0..graph.len() {
            self.stored.insert(JobRef { pipeline: id, job_index, retry: 0 }, JobStatus::Created);
        }
        self.published.insert(id, JobStatus::Created);
        self.pipelines.insert(id, (pipeline, options.clone()));
        self.apply(Event::PipelineCreated { pipeline: id, graph: Box::new(graph), options }).map(|()| id)
    }

    /// Returns a job by name: `d1` is a job of the first pipeline, `2.d1` one of the second.
    pub(crate) fn job(&self, name: &str) -> JobRef {
        let (id, name) = match name.split_once('.') {
            Some((number, name)) => (PipelineId(number.parse().expect("not a number")), name),
            None => (PipelineId(1), name),
        };
        let job_index =
            self.pipelines[&id].0.jobs.iter().position(|job| job.name == name).expect("no job of that name");
        self.engine.newest(id, job_index).expect("the job is unknown")
    }

    /// Applies an event, checks that the actions are consistent with earlier ones, and records them.
    pub(crate) fn apply(&mut self, event: Event) -> Result<(), RejectedEvent> {
        let actions = self.engine.apply(event, self.now)?;
        for action in actions {
            self.record(action);
        }
        self.check();
        Ok(())
    }

    fn record(&mut self, action: Action) {
        match action {
            Action::JobStatusChanged { job, from, to, reason, .. } => {
                let previous = self.stored.insert(job, to);
                assert_eq!(previous, Some(from), "stored status of {job}");
                assert_ne!(from, to, "the status of {job} must change");
                assert_eq!(reason.is_some(), to == JobStatus::Failed, "only a failed job has a failure reason: {job}");
                self.reasons.extend(reason.map(|reason| (job, reason)));
            }
            Action::CreateRetry { old, new } => {
                assert!(self.stored[&old].is_complete(), "{old} must end before it is replaced");
                assert_eq!((old.pipeline, old.job_index, old.retry + 1), (new.pipeline, new.job_index, new.retry));
                assert_eq!(self.stored.insert(new, JobStatus::Created), None);
            }
            Action::Enqueue { job } => {
                assert_eq!(self.stored[&job], JobStatus::Pending);
                *self.enqueued.entry(job).or_default() += 1;
            }
            Action::StartTimer { job, at } => {
                assert_eq!(self.stored[&job], JobStatus::Scheduled);
                self.timers.insert(job, at);
            }
            Action::CreateChild { bridge } => {
                assert_eq!(self.stored[&bridge], JobStatus::Pending);
                self.requested_children.push(bridge);
            }
            Action::CancelOnRunner { job, gracefully } => self.cancels_on_runners.push((job, gracefully)),
            Action::PipelineStatusChanged { pipeline, from, to, .. } => {
                assert_eq!(self.published.insert(pipeline, to), Some(from), "pipeline {pipeline}");
            }
        }
    }

    fn check(&self) {
        for (&pipeline, status) in &self.published {
            let Some(jobs) = self.engine.jobs(pipeline) else { continue };
            assert_eq!(self.engine.status(pipeline), Some(*status));
            for (job_index, job) in jobs.iter().enumerate() {
                assert_eq!(self.stored[&JobRef { pipeline, job_index, retry: job.retry }], job.status);
            }
        }
    }

    pub(crate) fn rows(&self) -> Vec<StoredPipeline> {
        let row = |(&pipeline, (model, options)): (&PipelineId, &(Pipeline, PipelineOptions))| StoredPipeline {
            pipeline,
            graph: Graph::new(model).expect("the graph is invalid"),
            parent: options.parent,
            status: self.published[&pipeline],
            jobs: self.engine.jobs(pipeline).expect("the pipeline is unknown").to_vec(),
        };
        self.pipelines.iter().map(row).collect()
    }

    /// Restores the engine from the rows. The restored engine must have the same state.
    pub(crate) fn restart(&mut self) {
        let (engine, actions) = Engine::restore(self.rows(), &BTreeMap::new(), self.now).expect("a row is invalid");
        let is_repeatable = |action: &Action| {
            matches!(
                action,
                Action::Enqueue { .. }
                    | Action::CreateChild { .. }
                    | Action::StartTimer { .. }
                    | Action::CancelOnRunner { gracefully: true, .. }
            )
        };
        assert!(actions.iter().all(is_repeatable), "{actions:?}");
        self.engine = engine;
        self.check();
    }

    pub(crate) fn assign(&mut self, name: &str) {
        let job = self.job(name);
        self.apply(Event::JobAssigned { job, supports_graceful_cancel: false }).expect("no pending job");
    }

    pub(crate) fn assign_with_graceful_cancel(&mut self, name: &str) {
        let job = self.job(name);
        self.apply(Event::JobAssigned { job, supports_graceful_cancel: true }).expect("no pending job");
    }

    fn finish(&mut self, name: &str, outcome: Outcome) {
        if self.status(name) == JobStatus::Pending {
            self.assign(name);
        }
        let job = self.job(name);
        self.apply(Event::JobFinished { job, outcome }).expect("no running job");
    }

    /// Ends the jobs with success. Assigns them first, if necessary.
    pub(crate) fn pass(&mut self, names: &str) {
        names.split_whitespace().for_each(|name| self.finish(name, Outcome::Success));
    }

    pub(crate) fn fail(&mut self, name: &str) {
        self.fail_with(name, FailureReason::ScriptFailure, Some(1));
    }

    pub(crate) fn fail_with(&mut self, name: &str, reason: FailureReason, exit_code: Option<i32>) {
        self.finish(name, Outcome::Failed { reason, exit_code });
    }

    pub(crate) fn play(&mut self, name: &str) {
        let job = self.job(name);
        self.apply(Event::Play { job }).expect("the job is neither manual nor delayed");
    }

    pub(crate) fn retry(&mut self, name: &str) {
        let job = self.job(name);
        self.apply(Event::RetryJob { job }).expect("the job has not ended");
    }

    pub(crate) fn cancel(&mut self, pipeline: i64) {
        self.apply(Event::Cancel { target: Target::Pipeline(PipelineId(pipeline)) }).expect("the pipeline is unknown");
    }

    pub(crate) fn status(&self, name: &str) -> JobStatus {
        self.engine.job(self.job(name)).expect("the job has no newest record").status
    }

    pub(crate) fn pipeline_status(&self, number: i64) -> JobStatus {
        self.engine.status(PipelineId(number)).expect("the pipeline is unknown")
    }

    /// Checks statuses, such as `b1:success t1:skipped` for jobs, or `@1:failed` for the first pipeline.
    #[track_caller]
    pub(crate) fn expect(&self, statuses: &str) {
        for entry in statuses.split_whitespace() {
            let (name, status) = entry.split_once(':').expect("the notation is not `name:status`");
            let actual = match name.strip_prefix('@') {
                Some(number) => self.pipeline_status(number.parse().expect("not a number")),
                None => self.status(name),
            };
            assert_eq!(actual.as_str(), status, "{name}");
        }
    }
}
