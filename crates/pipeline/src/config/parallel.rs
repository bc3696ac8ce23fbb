//! `parallel` and its matrix.

use crate::config::parsing::{Fields, Path, Problems, integer};
use crate::config::variables::is_name;
use crate::node::{Node, Value};

pub(crate) const MAX_INSTANCES: usize = 200;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Parallel {
    /// This number of equal instances.
    Count(u32),
    /// One instance for each cell of the matrix, in order.
    Matrix(Vec<MatrixEntry>),
}

/// A map of a matrix: identifiers with their values, in written order.
pub(crate) type MatrixEntry = Vec<(String, Vec<String>)>;

/// A cell of a matrix: identifiers with one value each.
pub(crate) type Cell = Vec<(String, String)>;

pub(crate) fn parallel(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<Parallel> {
    if let Value::Int(_) = node.value {
        let count = integer(node, at, 1..=200, problems)?;
        return u32::try_from(count).ok().map(Parallel::Count);
    }
    if node.as_map().is_none() {
        let message = format!("should be a number or a map with `matrix`, but it is {}", node.kind());
        problems.report(node.span, at, message);
        return None;
    }
    matrix_map(node, at, problems).map(Parallel::Matrix)
}

/// Parses a map with the key `matrix`.
pub(crate) fn matrix_map(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<Vec<MatrixEntry>> {
    let fields = Fields::parse(node, at, &["matrix"], problems)?;
    let Some(list) = fields.get("matrix") else {
        problems.report(node.span, at, "config should have the key `matrix`");
        return None;
    };
    matrix(list, at.key("matrix"), problems)
}

fn matrix(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<Vec<MatrixEntry>> {
    let Some(list) = node.as_list().filter(|list| list.iter().all(|item| item.as_map().is_some())) else {
        problems.report(node.span, at, "config should be an array of hashes");
        return None;
    };
    if list.is_empty() {
        problems.report(node.span, at, "can't be blank");
        return None;
    }
    let before = problems.error_count();
    let entries: Vec<MatrixEntry> = list.iter().map(|item| entry(item, at, problems)).collect();
    if problems.error_count() > before {
        return None;
    }
    let total = entries.iter().fold(0_usize, |sum, entry| sum.saturating_add(cell_count(entry)));
    if total > MAX_INSTANCES {
        problems.report(
            node.span,
            at,
            match total {
                usize::MAX => format!("config generates too many jobs (maximum is {MAX_INSTANCES})"),
                _ => format!("config generates too many jobs (maximum is {MAX_INSTANCES}, but it has {total})"),
            },
        );
        return None;
    }
    Some(entries)
}

fn cell_count(entry: &MatrixEntry) -> usize {
    entry.iter().fold(1_usize, |product, (_, values)| product.saturating_mul(values.len()))
}

fn entry(node: &Node, at: Path<'_>, problems: &mut Problems) -> MatrixEntry {
    let mut all = MatrixEntry::new();
    let Some(map) = node.as_map() else { return all };
    if map.is_empty() {
        problems.report(node.span, at, "config should not have an empty entry");
    }
    for (name, value) in map.iter() {
        if !is_name(name) {
            let message = format!("config has the invalid identifier `{name}`; use letters, digits, `_` and `-`");
            problems.report(value.key_span, at, message);
        }
        let values: Option<Vec<String>> = match &value.node.value {
            Value::List(list) if list.is_empty() => None,
            Value::List(list) => list.iter().map(Node::scalar_text).collect(),
            _ => value.node.scalar_text().map(|text| vec![text]),
        };
        match values {
            Some(values) => all.push((name.to_string(), values)),
            None => {
                let message = "should be a string, a number, or a non-empty array of these";
                problems.report(value.node.span, at.key(name), message);
            }
        }
    }
    all
}

/// Returns all cells of a matrix: the Cartesian product of each map, with the first key varying slowest.
pub(crate) fn cells(entries: &[MatrixEntry]) -> Vec<Cell> {
    entries.iter().flat_map(product).collect()
}

fn product(entry: &MatrixEntry) -> Vec<Cell> {
    let mut cells: Vec<Cell> = vec![Vec::new()];
    for (name, values) in entry {
        cells = cells
            .iter()
            .flat_map(|cell| {
                values.iter().map(move |value| {
                    let mut cell = cell.clone();
                    cell.push((name.clone(), value.clone()));
                    cell
                })
            })
            .collect();
    }
    cells
}
