//! Finds cycles in a graph.

use crate::diagnostic::Diagnostic;
use crate::node::Span;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    Unvisited,
    OnPath,
    Done,
}

/// Returns a cycle among `count` nodes, if there is one. Each node depends on the next, and the last one on the first.
///
/// `links` returns the nodes that a node depends on.
pub(crate) fn find<I: Iterator<Item = usize>>(count: usize, links: impl Fn(usize) -> I) -> Option<Vec<usize>> {
    let mut marks = vec![Mark::Unvisited; count];
    for start in 0..count {
        if marks.get(start) != Some(&Mark::Unvisited) {
            continue;
        }
        let mut path: Vec<(usize, I)> = Vec::new();
        set(&mut marks, start, Mark::OnPath);
        path.push((start, links(start)));
        while let Some((node, rest)) = path.last_mut() {
            let node = *node;
            let Some(next) = rest.next() else {
                set(&mut marks, node, Mark::Done);
                path.pop();
                continue;
            };
            match marks.get(next) {
                Some(Mark::Unvisited) => {
                    set(&mut marks, next, Mark::OnPath);
                    path.push((next, links(next)));
                }
                Some(Mark::OnPath) => {
                    return Some(path.iter().map(|(node, _)| *node).skip_while(|node| *node != next).collect());
                }
                Some(Mark::Done) | None => {}
            }
        }
    }
    None
}

fn set(marks: &mut [Mark], node: usize, mark: Mark) {
    if let Some(slot) = marks.get_mut(node) {
        *slot = mark;
    }
}

pub(crate) fn cycle_error(span: Option<Span>, names: &[&str]) -> Diagnostic {
    let mut cycle = names.to_vec();
    cycle.extend(names.first());
    let message = format!("the pipeline has circular dependencies: {}", cycle.join(" needs "));
    Diagnostic::error(span, message).help("remove one of these `needs`")
}

#[cfg(test)]
mod tests {
    use super::find;

    fn find_cycle(links: &[&[usize]]) -> Option<Vec<usize>> {
        find(links.len(), |node| links[node].iter().copied())
    }

    #[test]
    fn returns_cycle_in_order() {
        assert_eq!(find_cycle(&[&[1], &[2], &[3, 1], &[]]), Some(vec![1, 2]));
        assert_eq!(find_cycle(&[&[0]]), Some(vec![0]));
        assert_eq!(find_cycle(&[&[1, 2], &[3], &[3], &[]]), None);
        assert_eq!(find_cycle(&[]), None);
    }

    #[test]
    fn long_chain_does_not_overflow_the_stack() {
        let count = 200_000;
        assert_eq!(find(count, |node| (node + 1 < count).then_some(node + 1).into_iter()), None);
    }
}
