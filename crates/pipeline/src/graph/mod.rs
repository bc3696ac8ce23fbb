//! The graph of all jobs, before rules: parallel jobs become instances, names become links, and what cannot be is told
//! (pipeline-yaml 1.4, 1.7, 2.1 steps 8 and 9).
//!
//! Everything here is linear, or n log n, in the number of instances and links; both are bounded.

mod cycles;
mod environments;
mod instances;
mod links;

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use crate::config::Config;
use crate::config::job::JobEntry;
use crate::config::parallel::Cell;
use crate::config::parsing::Problems;
use crate::node::Span;

pub(crate) use cycles::{cycle_message, find as find_circle};

/// Most jobs of a pipeline, instances counted.
const MAX_JOBS: usize = 50_000;
/// Most links between jobs, over all jobs.
const MAX_LINKS: usize = 1_000_000;

/// All instances, in creation order, with their links.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    pub(crate) instances: Vec<Instance>,
}

/// One job of the pipeline-to-be: an ordinary job, or one of a parallel job's.
#[derive(Debug)]
pub(crate) struct Instance {
    /// Index in [`Config::jobs`].
    pub(crate) job: usize,
    /// Index in [`Config::stages`].
    pub(crate) stage: usize,
    /// Full name.
    pub(crate) name: String,
    /// The values of its matrix cell.
    pub(crate) cell: Cell,
    /// Index from 1 and total, where the job is parallel.
    pub(crate) node: Option<(u32, u32)>,
    /// What `needs` of the job names; `None`: it has none.
    pub(crate) needs: Option<Arc<[Link]>>,
    /// What `needs` of each of its rules names.
    pub(crate) rule_needs: Vec<Option<Arc<[Link]>>>,
    /// What `dependencies` names.
    pub(crate) dependencies: Option<Arc<[usize]>>,
}

/// A link from a job to an instance that it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Link {
    /// Index in [`Graph::instances`].
    pub(crate) to: usize,
    /// Download its artifacts.
    pub(crate) artifacts: bool,
    /// It may be missing.
    pub(crate) optional: bool,
    /// Where it is named.
    pub(crate) span: Span,
}

/// Where names lead.
#[derive(Debug)]
struct Names<'c> {
    /// The instances of a job by its written name.
    groups: HashMap<&'c str, Range<usize>>,
    /// One instance by its full name.
    full: HashMap<String, usize>,
    /// The stages that exist.
    stages: HashSet<&'c str>,
}

impl Names<'_> {
    /// The instances that a name means: all of a job, or one by its full name.
    fn find(&self, name: &str) -> Option<Range<usize>> {
        self.groups.get(name).cloned().or_else(|| self.full.get(name).map(|&one| one..one + 1))
    }
}

/// Builds the graph; tells everything that is wrong with it.
pub(crate) fn graph(config: &Config, problems: &mut Problems) -> Graph {
    let Some(mut instances) = instances::instances(config, problems) else { return Graph::default() };
    let names = names(config, &instances, problems);
    let mark = problems.mark();
    let is_linked = links::link(config, &mut instances, &names, problems);
    if is_linked {
        environments::check(config, problems);
    }
    if config.is_stub {
        // Names that lead nowhere may be in what was left out.
        problems.roll_back(mark);
    }
    if !is_linked {
        return Graph { instances };
    }
    let graph = Graph { instances };
    graph.check_cycles(config, problems);
    graph
}

fn names<'c>(config: &'c Config, instances: &[Instance], problems: &mut Problems) -> Names<'c> {
    let mut groups: HashMap<&str, Range<usize>> = HashMap::with_capacity(config.jobs.len());
    let mut full = HashMap::with_capacity(instances.len());
    for (index, instance) in instances.iter().enumerate() {
        let Some(job) = config.jobs.get(instance.job) else { continue };
        let group = groups.entry(&job.name).or_insert(index..index);
        group.end = index + 1;
        if full.insert(instance.name.clone(), index).is_some() {
            let message =
                format!("there are two jobs of the name `{}`: one is an instance of a parallel job", instance.name);
            problems.push(crate::diagnostic::Diagnostic::error(job.span, message).help("give one another name"));
        }
    }
    Names { groups, full, stages: config.stages.iter().map(String::as_str).collect() }
}

impl Graph {
    /// Tells about a circle of `needs`, if there is one.
    fn check_cycles(&self, config: &Config, problems: &mut Problems) {
        let links = |index: usize| {
            let needs = self.instances.get(index).and_then(|instance| instance.needs.as_deref());
            needs.unwrap_or_default().iter().map(|link| link.to)
        };
        let Some(circle) = cycles::find(self.instances.len(), links) else { return };
        let names: Vec<&str> =
            circle.iter().filter_map(|&index| self.instances.get(index)).map(|instance| &*instance.name).collect();
        let first = circle.first().and_then(|&index| self.entry(config, index));
        let span = first.and_then(|job| job.needs.as_ref()).map(|needs| needs.span);
        problems.push(cycle_message(span, &names));
    }

    /// The job as written of an instance.
    pub(crate) fn entry<'c>(&self, config: &'c Config, index: usize) -> Option<&'c JobEntry> {
        config.jobs.get(self.instances.get(index)?.job)
    }
}
