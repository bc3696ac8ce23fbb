//! Paths through a pipeline in time: which ready job should go first, and what made a finished pipeline take so long.

use super::graph::Graph;

/// When a job's newest record ran, in milliseconds of any clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Its start.
    pub start: u64,
    /// Its end.
    pub end: u64,
}

/// For each place, the length of the longest path from the start of that job to the end of the pipeline. Of the jobs
/// that are ready, the one with the greatest value should go first (pipeline-yaml 5.11).
///
/// `durations` holds the expected milliseconds per place; one that is missing counts as 1.
#[must_use]
pub fn priority(graph: &Graph, durations: &[u64]) -> Vec<u64> {
    let mut remaining = vec![0_u64; graph.len()];
    // The longest path from any job in stage order of a later stage, and of the stage at hand so far.
    let (mut later, mut here, mut stage) = (0, 0, usize::MAX);
    for &place in graph.order.iter().rev() {
        let node = &graph.nodes[place];
        if node.stage != stage {
            (later, here, stage) = (later.max(here), 0, node.stage);
        }
        let needed = graph.dependents[place].iter().map(|&dependent| remaining[dependent]).max().unwrap_or(0);
        remaining[place] = durations.get(place).copied().unwrap_or(1).saturating_add(needed.max(later));
        if node.needs.is_none() {
            here = here.max(remaining[place]);
        }
    }
    remaining
}

/// The places of the jobs that the end of the pipeline waited for, first to last: the job that ended last, before it
/// the one among those it waited for that ended last, and so on. Jobs without a span (they did not run) are looked
/// through.
#[must_use]
pub fn critical_path(graph: &Graph, spans: &[Option<Span>]) -> Vec<usize> {
    let end = |place: usize| spans.get(place).copied().flatten().map(|span| span.end);
    // Per place the latest-ending job at or above it, and per stage the latest-ending one in all stages before.
    let mut latest: Vec<Option<usize>> = vec![None; graph.len()];
    let mut before: Vec<Option<usize>> = vec![None; graph.len()];
    let (mut earlier, mut here, mut stage) = (None, None, 0);
    for &place in &graph.order {
        let node = &graph.nodes[place];
        if node.stage != stage {
            (earlier, stage) = (later_of(earlier, here, end), node.stage);
            here = None;
        }
        before[place] = match &node.needs {
            None => earlier,
            Some(needs) => needs.iter().fold(None, |best, &need| later_of(best, latest[need], end)),
        };
        latest[place] = if end(place).is_some() { Some(place) } else { before[place] };
        here = later_of(here, end(place).map(|_| place), end);
    }
    let mut path = Vec::new();
    let mut next = later_of(earlier, here, end);
    while let Some(place) = next {
        path.push(place);
        next = before[place];
    }
    path.reverse();
    path
}

/// Of two jobs that ran, the one that ended later; the first of equals.
fn later_of(one: Option<usize>, other: Option<usize>, end: impl Fn(usize) -> Option<u64>) -> Option<usize> {
    match (one, other) {
        (Some(a), Some(b)) => Some(if end(b) > end(a) { b } else { a }),
        (one, other) => one.or(other),
    }
}
