//! The dependency graph of a compiled pipeline: job names resolved to indexes, with edges in both directions.

use std::collections::HashMap;

use muster_job::milliseconds;
use muster_pipeline::model::{
    AllowFailure, AutoCancel, BridgeTarget, Job, Need, Pipeline, Retry, Strategy, When, Work,
};

/// Reason why a pipeline cannot be scheduled.
///
/// The compiler already reports these errors. This check is for pipelines that do not come from the compiler: without
/// it, their jobs could wait indefinitely.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    /// A job needs a job that does not exist.
    #[error("job `{job}` needs `{need}`, which is not in the pipeline")]
    UnknownNeed {
        /// Name of the job with the need.
        job: String,
        /// Name of the needed job.
        need: String,
    },
    /// A job needs a job of a later stage, which could make jobs wait for each other.
    #[error("job `{job}` needs `{need}` of a later stage")]
    LaterNeed {
        /// Name of the job with the need.
        job: String,
        /// Name of the needed job.
        need: String,
    },
    /// Needs form a cycle.
    #[error("job `{job}` needs itself, directly or through others")]
    Cycle {
        /// Name of one job in the cycle.
        job: String,
    },
    /// A stage index is outside the list of stages.
    #[error("job `{job}` is in stage {stage}, but the pipeline has {stages} stages")]
    UnknownStage {
        /// Name of the job.
        job: String,
        /// Stage index of the job.
        stage: usize,
        /// Number of stages.
        stages: usize,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) stage: usize,
    pub(super) when: When,
    pub(super) start_in_ms: u64,
    pub(super) allow_failure: AllowFailure,
    pub(super) retry: Retry,
    pub(super) interruptible: bool,
    pub(super) resource_group: Option<String>,
    /// Indexes of the needed jobs. `None` means that the job waits for all earlier stages.
    pub(super) needs: Option<Vec<usize>>,
    /// Indexes of the jobs that need this job.
    pub(super) dependents: Vec<usize>,
    pub(super) bridge: Option<BridgeKind>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BridgeKind {
    pub(super) strategy: Strategy,
    /// Whether the bridge starts a child pipeline, whose depth is limited.
    pub(super) starts_child: bool,
}

/// The jobs of one pipeline with their dependencies. Jobs are identified by their index in the model's list.
#[derive(Debug, Clone, PartialEq)]
pub struct Graph {
    pub(super) nodes: Vec<Node>,
    /// For each stage, its jobs without `needs`.
    pub(super) stage_jobs: Vec<Vec<usize>>,
    /// All jobs, ordered by stage, and within a stage with needed jobs first.
    pub(super) order: Vec<usize>,
    pub(super) auto_cancel: AutoCancel,
}

impl Graph {
    /// Creates the graph of a compiled pipeline.
    ///
    /// # Errors
    /// [`GraphError`] if the stage or the needs of a job are invalid.
    pub fn new(pipeline: &Pipeline) -> Result<Self, GraphError> {
        let stages = pipeline.stages.len();
        let indexes = pipeline.jobs.iter().enumerate();
        let indexes = indexes.map(|(job_index, job)| (job.name.as_str(), (job_index, job.stage_index))).collect();
        let mut nodes = Vec::with_capacity(pipeline.jobs.len());
        let mut stage_jobs = vec![Vec::new(); stages];
        for (job_index, job) in pipeline.jobs.iter().enumerate() {
            let needs = resolve_needs(job, &indexes)?;
            let Some(stage) = stage_jobs.get_mut(job.stage_index) else {
                return Err(GraphError::UnknownStage { job: job.name.clone(), stage: job.stage_index, stages });
            };
            if needs.is_none() {
                stage.push(job_index);
            }
            nodes.push(node(job, needs));
        }
        add_dependents(&mut nodes);
        let order = topological(&nodes, stages)?;
        Ok(Self { nodes, stage_jobs, order, auto_cancel: pipeline.auto_cancel })
    }

    /// Returns the number of jobs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns whether there are no jobs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Returns the full name of the job at an index.
    #[must_use]
    pub fn name(&self, job_index: usize) -> Option<&str> {
        self.nodes.get(job_index).map(|node| node.name.as_str())
    }

    /// Returns the indexes of all jobs in an order that respects stages and needs.
    #[must_use]
    pub fn order(&self) -> &[usize] {
        &self.order
    }
}

fn node(job: &Job, needs: Option<Vec<usize>>) -> Node {
    Node {
        name: job.name.clone(),
        stage: job.stage_index,
        when: job.when,
        start_in_ms: job.start_in.map_or(0, milliseconds),
        allow_failure: job.allow_failure.clone(),
        retry: job.retry.clone(),
        interruptible: job.interruptible,
        resource_group: job.resource_group.clone(),
        needs,
        dependents: Vec::new(),
        bridge: match &job.work {
            Work::Script(_) => None,
            Work::Bridge(bridge) => Some(BridgeKind {
                // A bridge that mirrors another project's pipeline can only show the status of that pipeline.
                strategy: match bridge.target {
                    BridgeTarget::Mirror { .. } => Strategy::Mirror,
                    BridgeTarget::Project { .. } | BridgeTarget::Child(_) => bridge.strategy,
                },
                starts_child: matches!(bridge.target, BridgeTarget::Child(_)),
            }),
        },
    }
}

/// Returns the index of each needed job once. Needs for jobs of other pipelines only fetch artifacts and are left out.
///
/// `indexes` holds the index and the stage of each job, by name.
fn resolve_needs(job: &Job, indexes: &HashMap<&str, (usize, usize)>) -> Result<Option<Vec<usize>>, GraphError> {
    let Some(needs) = &job.needs else { return Ok(None) };
    let mut found = Vec::with_capacity(needs.len());
    for need in needs {
        let Need::Job { name, optional, .. } = need else { continue };
        match indexes.get(name.as_str()) {
            None if *optional => {}
            None => return Err(GraphError::UnknownNeed { job: job.name.clone(), need: name.clone() }),
            Some((_, stage)) if *stage > job.stage_index => {
                return Err(GraphError::LaterNeed { job: job.name.clone(), need: name.clone() });
            }
            Some((job_index, _)) => found.push(*job_index),
        }
    }
    found.sort_unstable();
    found.dedup();
    Ok(Some(found))
}

fn add_dependents(nodes: &mut [Node]) {
    for job_index in 0..nodes.len() {
        let needs = nodes.get(job_index).and_then(|node| node.needs.clone()).unwrap_or_default();
        for need in needs {
            if let Some(needed) = nodes.get_mut(need) {
                needed.dependents.push(job_index);
            }
        }
    }
}

/// Orders jobs by stage, and within a stage after the jobs that they need, in linear time.
fn topological(nodes: &[Node], stages: usize) -> Result<Vec<usize>, GraphError> {
    let in_stage = |job_index: usize, stage: usize| nodes.get(job_index).is_some_and(|node| node.stage == stage);
    let mut by_stage: Vec<Vec<usize>> = vec![Vec::new(); stages];
    // For each job, the number of needs in its own stage that are not ordered yet.
    let mut unordered: Vec<usize> = Vec::with_capacity(nodes.len());
    for (job_index, node) in nodes.iter().enumerate() {
        if let Some(stage) = by_stage.get_mut(node.stage) {
            stage.push(job_index);
        }
        unordered.push(node.needs.iter().flatten().filter(|&&need| in_stage(need, node.stage)).count());
    }
    let mut order: Vec<usize> = Vec::with_capacity(nodes.len());
    for (stage, members) in by_stage.iter().enumerate() {
        let start = order.len();
        order.extend(members.iter().filter(|&&job_index| unordered.get(job_index) == Some(&0)));
        let mut next = start;
        while let Some(&job_index) = order.get(next) {
            next += 1;
            let dependents = nodes.get(job_index).map_or(&[][..], |node| &node.dependents);
            for &dependent in dependents.iter().filter(|&&other| in_stage(other, stage)) {
                if let Some(count) = unordered.get_mut(dependent) {
                    *count -= 1;
                    if *count == 0 {
                        order.push(dependent);
                    }
                }
            }
        }
        if order.len() - start < members.len() {
            let in_cycle = members.iter().find(|&&job_index| unordered.get(job_index).is_some_and(|count| *count > 0));
            let name = in_cycle.and_then(|job_index| nodes.get(*job_index)).map(|node| node.name.clone());
            return Err(GraphError::Cycle { job: name.unwrap_or_default() });
        }
    }
    Ok(order)
}
