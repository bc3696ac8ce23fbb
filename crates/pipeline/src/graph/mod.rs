//! The graph of all jobs before rules are evaluated. Expands parallel jobs, resolves names, and reports invalid
//! dependencies (docs/spec/pipeline-yaml.md, sections 1.4, 1.7 and 2.1, items 8 and 9).
//!
//! An instance is an ordinary job, or one of the jobs that a parallel job expands to. A link points from an instance to a needed
//! instance.

mod cycles;
mod environments;
mod links;
mod parallel_jobs;

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use crate::config::Config;
use crate::config::job::JobEntry;
use crate::config::parallel::Cell;
use crate::config::parsing::Problems;
use crate::node::Span;

pub(crate) use cycles::{cycle_error, find as find_cycle};

const MAX_JOBS: usize = 50_000;
/// Maximum number of resolved `needs` (of jobs and of rules) and `dependencies` in a pipeline.
const MAX_LINKS: usize = 1_000_000;

#[derive(Debug, Default)]
pub(crate) struct Graph {
    pub(crate) instances: Vec<ExpandedJob>,
}

#[derive(Debug)]
pub(crate) struct ExpandedJob {
    /// Index in [`Config::jobs`].
    pub(crate) job: usize,
    /// Index in [`Config::stages`]. 0 if the stage of the job does not exist.
    pub(crate) stage: usize,
    pub(crate) name: String,
    /// Identifiers and values of the matrix cell. Empty for a job without `parallel:matrix`.
    pub(crate) cell: Cell,
    /// Index among the instances of a parallel job, from 1, and their number. `None` for an ordinary job.
    pub(crate) node: Option<(u32, u32)>,
    /// `needs` of the job. `None` if the job does not set the key.
    pub(crate) needs: Option<Arc<[Link]>>,
    /// `needs` of each rule of the job. `None` for a rule without `needs`.
    pub(crate) rule_needs: Vec<Option<Arc<[Link]>>>,
    /// `dependencies` as indexes in [`Graph::instances`]. `None` if the job does not set the key.
    pub(crate) dependencies: Option<Arc<[usize]>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Link {
    /// Index in [`Graph::instances`].
    pub(crate) to: usize,
    pub(crate) artifacts: bool,
    pub(crate) optional: bool,
    pub(crate) span: Span,
}

#[derive(Debug)]
struct Names<'c> {
    /// Instances of each job, by the name of the job as written.
    by_job_name: HashMap<&'c str, Range<usize>>,
    by_full_name: HashMap<String, usize>,
    stages: HashSet<&'c str>,
}

impl Names<'_> {
    /// Returns the instances that a name refers to: all instances of a job or, if `name` is a full name, one instance.
    fn find(&self, name: &str) -> Option<Range<usize>> {
        self.by_job_name.get(name).cloned().or_else(|| self.by_full_name.get(name).map(|&index| index..index + 1))
    }
}

/// Creates the graph, and reports invalid dependencies. If there are too many jobs, links or errors, the graph is empty
/// or incomplete.
pub(crate) fn graph(config: &Config, problems: &mut Problems) -> Graph {
    let Some(mut instances) = parallel_jobs::expand_all(config, problems) else { return Graph::default() };
    let names = names(config, &instances, problems);
    let mark = problems.mark();
    let linked = links::link(config, &mut instances, &names, problems);
    if linked.is_ok() {
        environments::check(config, problems);
    }
    if config.includes_were_skipped {
        // Unknown names may be defined in files that were skipped.
        problems.roll_back(mark);
    }
    if let Err(problem) = linked {
        problems.push(*problem);
        return Graph { instances };
    }
    let graph = Graph { instances };
    graph.check_cycles(config, problems);
    graph
}

fn names<'c>(config: &'c Config, instances: &[ExpandedJob], problems: &mut Problems) -> Names<'c> {
    let mut by_job_name: HashMap<&str, Range<usize>> = HashMap::with_capacity(config.jobs.len());
    let mut by_full_name = HashMap::with_capacity(instances.len());
    for (index, instance) in instances.iter().enumerate() {
        let Some(job) = config.jobs.get(instance.job) else { continue };
        let group = by_job_name.entry(&job.name).or_insert(index..index);
        group.end = index + 1;
        if by_full_name.insert(instance.name.clone(), index).is_some() {
            let message = format!("two jobs have the name `{}`: one is an instance of a parallel job", instance.name);
            problems.push(crate::diagnostic::Diagnostic::error(job.span, message).help("rename one of them"));
        }
    }
    Names { by_job_name, by_full_name, stages: config.stages.iter().map(String::as_str).collect() }
}

impl Graph {
    fn check_cycles(&self, config: &Config, problems: &mut Problems) {
        let links = |index: usize| {
            let needs = self.instances.get(index).and_then(|instance| instance.needs.as_deref());
            needs.unwrap_or_default().iter().map(|link| link.to)
        };
        let Some(cycle) = cycles::find(self.instances.len(), links) else { return };
        let names: Vec<&str> =
            cycle.iter().filter_map(|&index| self.instances.get(index)).map(|instance| &*instance.name).collect();
        let first = cycle.first().and_then(|&index| self.entry(config, index));
        let span = first.and_then(|job| job.needs.as_ref()).map(|needs| needs.span);
        problems.push(cycle_error(span, &names));
    }

    pub(crate) fn entry<'c>(&self, config: &'c Config, index: usize) -> Option<&'c JobEntry> {
        config.jobs.get(self.instances.get(index)?.job)
    }
}
