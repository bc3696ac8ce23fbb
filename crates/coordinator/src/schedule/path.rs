//! Longest paths through a pipeline: the priority of ready jobs, and the critical path of a finished pipeline.

use super::graph::Graph;

/// Time in which the newest record of a job ran, in milliseconds of any clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunInterval {
    /// Time of the start.
    pub start: u64,
    /// Time of the end.
    pub end: u64,
}

/// Returns, for each job, the length of the longest path from its start to the end of the pipeline.
///
/// Of the jobs that are ready, the one with the greatest value should start first (docs/spec/pipeline-yaml.md, section 5.11).
/// `durations` holds the expected milliseconds of each job. A missing duration counts as 1.
#[must_use]
pub fn priority(graph: &Graph, durations: &[u64]) -> Vec<u64> {
    let mut remaining = vec![0_u64; graph.len()];
    // The longest path from any job in stage order: over all later stages, and over the current stage so far.
    let (mut later, mut here, mut stage) = (0, 0, usize::MAX);
    for &job_index in graph.order.iter().rev() {
        let Some(node) = graph.nodes.get(job_index) else { continue };
        if node.stage != stage {
            (later, here, stage) = (later.max(here), 0, node.stage);
        }
        let dependents = node.dependents.iter().filter_map(|dependent| remaining.get(*dependent));
        let after = dependents.copied().max().unwrap_or(0).max(later);
        let length = durations.get(job_index).copied().unwrap_or(1).saturating_add(after);
        if let Some(slot) = remaining.get_mut(job_index) {
            *slot = length;
        }
        if node.needs.is_none() {
            here = here.max(length);
        }
    }
    remaining
}

/// Returns the indexes of the jobs that determined when the pipeline ended, first to last.
///
/// The last one is the job that ended last. Before each job comes the job that ended last among those it waited for. Jobs without a
/// span did not run and are skipped over.
#[must_use]
pub fn critical_path(graph: &Graph, spans: &[Option<RunInterval>]) -> Vec<usize> {
    let end = |job_index: usize| spans.get(job_index).copied().flatten().map(|span| span.end);
    // For each job, the one that ended last among it and the jobs before it, and the one that ended last in all earlier stages.
    let mut latest: Vec<Option<usize>> = vec![None; graph.len()];
    let mut before: Vec<Option<usize>> = vec![None; graph.len()];
    let at = |list: &[Option<usize>], job_index: usize| list.get(job_index).copied().flatten();
    let (mut earlier, mut here, mut stage) = (None, None, 0);
    for &job_index in &graph.order {
        let Some(node) = graph.nodes.get(job_index) else { continue };
        if node.stage != stage {
            (earlier, stage) = (later_of(earlier, here, end), node.stage);
            here = None;
        }
        let previous = match &node.needs {
            None => earlier,
            Some(needs) => needs.iter().fold(None, |best, &need| later_of(best, at(&latest, need), end)),
        };
        let own = end(job_index).map(|_| job_index);
        if let (Some(before), Some(latest)) = (before.get_mut(job_index), latest.get_mut(job_index)) {
            (*before, *latest) = (previous, own.or(previous));
        }
        here = later_of(here, own, end);
    }
    let mut path = Vec::new();
    let mut next = later_of(earlier, here, end);
    while let Some(job_index) = next {
        path.push(job_index);
        next = at(&before, job_index);
    }
    path.reverse();
    path
}

/// Returns the one of two jobs that ended later, or the first if they ended at the same time.
fn later_of(one: Option<usize>, other: Option<usize>, end: impl Fn(usize) -> Option<u64>) -> Option<usize> {
    match (one, other) {
        (Some(a), Some(b)) => Some(if end(b) > end(a) { b } else { a }),
        (one, other) => one.or(other),
    }
}
