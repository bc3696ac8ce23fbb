//! Longest paths through a pipeline: the priority of ready jobs, and the critical path of a finished pipeline.

use super::graph::Graph;

/// Interval from the start to the end of a job's newest attempt, in milliseconds of any clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunInterval {
    /// Time of the start.
    pub start: u64,
    /// Time of the end.
    pub end: u64,
}

/// Returns, for each job, the length of the longest path from its start to the end of the pipeline.
///
/// The ready job with the greatest value should start first (docs/spec/pipeline-yaml.md, section 5.11).
/// `durations` holds the expected milliseconds of each job. A missing duration counts as 1.
#[must_use]
pub fn priority(graph: &Graph, durations: &[u64]) -> Vec<u64> {
    let mut remaining = vec![0_u64; graph.len()];
    // Length of the longest path that starts at a job without `needs`: `later` covers all later stages, and `in_stage`
    // the jobs of the current stage that have been visited.
    let (mut later, mut in_stage, mut stage) = (0, 0, usize::MAX);
    for &job_index in graph.order.iter().rev() {
        let Some(node) = graph.nodes.get(job_index) else { continue };
        if node.stage != stage {
            (later, in_stage, stage) = (later.max(in_stage), 0, node.stage);
        }
        let dependents = node.dependents.iter().filter_map(|dependent| remaining.get(*dependent));
        let after = dependents.copied().max().unwrap_or(0).max(later);
        let length = durations.get(job_index).copied().unwrap_or(1).saturating_add(after);
        if let Some(slot) = remaining.get_mut(job_index) {
            *slot = length;
        }
        if node.needs.is_none() {
            in_stage = in_stage.max(length);
        }
    }
    remaining
}

/// Returns the indexes of the jobs that determined when the pipeline ended, first to last.
///
/// The last job of the path is the job that ended last. The predecessor of a job is the job that ended last among the jobs that it waited
/// for. A job without an interval did not run: it is left out, and its own predecessor takes its place.
#[must_use]
pub fn critical_path(graph: &Graph, intervals: &[Option<RunInterval>]) -> Vec<usize> {
    let end = |job_index: usize| intervals.get(job_index).copied().flatten().map(|interval| interval.end);
    // For each job: `latest` is the job itself, or if it did not run, its predecessor. `before` is its predecessor.
    let mut latest: Vec<Option<usize>> = vec![None; graph.len()];
    let mut before: Vec<Option<usize>> = vec![None; graph.len()];
    let at = |list: &[Option<usize>], job_index: usize| list.get(job_index).copied().flatten();
    let (mut earlier, mut in_stage, mut stage) = (None, None, 0);
    for &job_index in &graph.order {
        let Some(node) = graph.nodes.get(job_index) else { continue };
        if node.stage != stage {
            (earlier, stage) = (later_of(earlier, in_stage, end), node.stage);
            in_stage = None;
        }
        let previous = match &node.needs {
            None => earlier,
            Some(needs) => needs.iter().fold(None, |best, &need| later_of(best, at(&latest, need), end)),
        };
        let own = end(job_index).map(|_| job_index);
        if let (Some(before), Some(latest)) = (before.get_mut(job_index), latest.get_mut(job_index)) {
            (*before, *latest) = (previous, own.or(previous));
        }
        in_stage = later_of(in_stage, own, end);
    }
    let mut path = Vec::new();
    let mut next = later_of(earlier, in_stage, end);
    while let Some(job_index) = next {
        path.push(job_index);
        next = at(&before, job_index);
    }
    path.reverse();
    path
}

/// Returns the job that ended later, or `one` if both ended at the same time.
fn later_of(one: Option<usize>, other: Option<usize>, end: impl Fn(usize) -> Option<u64>) -> Option<usize> {
    match (one, other) {
        (Some(one), Some(other)) => Some(if end(other) > end(one) { other } else { one }),
        (one, other) => one.or(other),
    }
}
