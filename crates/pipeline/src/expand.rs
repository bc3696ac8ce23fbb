//! Variable references that the server expands before a runner gets a job: `$NAME`, `${NAME}` and `%NAME%`
//! (docs/spec/pipeline-yaml.md, section 4.2).
//!
//! `$$` and `%%` are not changed. The runner later replaces `$$` with `$`.

use std::cell::Cell;
use std::collections::HashMap;

use muster_job::Variable;

/// Maximum length of an expanded value in bytes. A value that would become longer is not expanded.
pub const MAX_VALUE_BYTES: usize = 1024 * 1024;
/// Maximum total length in bytes of the values that one call of [`expand_all`] expands. Further values are not expanded.
pub const MAX_TOTAL_BYTES: usize = 64 * 1024 * 1024;

/// Number of bytes that expansions may still insert.
#[derive(Debug)]
pub struct ByteBudget {
    /// `None` means that the budget was exceeded.
    remaining: Cell<Option<usize>>,
}

impl ByteBudget {
    /// Creates a budget.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        Self { remaining: Cell::new(Some(bytes)) }
    }

    /// Subtracts `bytes`. Returns false if they exceed the budget. After that, every call returns false.
    #[must_use]
    pub fn spend(&self, bytes: usize) -> bool {
        let remaining = self.remaining.get().and_then(|remaining| remaining.checked_sub(bytes));
        self.remaining.set(remaining);
        remaining.is_some()
    }

    /// Returns true if a call of [`ByteBudget::spend`] has exceeded the budget.
    #[must_use]
    pub fn is_exceeded(&self) -> bool {
        self.remaining.get().is_none()
    }
}

/// What to do with a reference to an undefined variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unknown {
    /// Leave the reference as written.
    Keep,
    /// Replace the reference with the empty string.
    Empty,
}

#[derive(Debug, PartialEq, Eq)]
enum Piece<'a> {
    Text(&'a str),
    Reference { name: &'a str, written: &'a str },
}

/// Replaces the references in `text` once. References in the inserted values are not expanded.
///
/// If a value would make the inserted values longer than [`MAX_VALUE_BYTES`] in total, its reference and all later ones
/// count as undefined.
#[must_use]
pub fn expand_text(text: &str, lookup: &dyn Fn(&str) -> Option<String>, unknown: Unknown) -> String {
    let mut out = String::with_capacity(text.len());
    let budget = ByteBudget::new(MAX_VALUE_BYTES);
    for piece in pieces(text) {
        let (name, written) = match piece {
            Piece::Text(text) => {
                out.push_str(text);
                continue;
            }
            Piece::Reference { name, written } => (name, written),
        };
        let value = if budget.is_exceeded() { None } else { lookup(name) };
        match value.filter(|value| budget.spend(value.len())) {
            Some(value) => out.push_str(&value),
            None if unknown == Unknown::Keep => out.push_str(written),
            None => {}
        }
    }
    out
}

/// Returns false if `text` certainly refers to no variable.
#[must_use]
pub fn may_have_references(text: &str) -> bool {
    text.contains('$') || text.contains('%')
}

/// Returns the names of the variables that `text` refers to, including repetitions.
pub fn references(text: &str) -> impl Iterator<Item = &str> {
    let pieces = if may_have_references(text) { pieces(text) } else { Vec::new() };
    pieces.into_iter().filter_map(|piece| match piece {
        Piece::Text(_) => None,
        Piece::Reference { name, .. } => Some(name),
    })
}

/// Expands references between the values of `variables`, in the order of their dependencies.
///
/// References to unknown names, file variables and raw variables are not expanded, because the runner resolves them. Raw
/// variables, and variables whose references form a cycle, keep their values. If a name occurs more than once, the last
/// variable wins. The total length of the expanded values is limited to [`MAX_TOTAL_BYTES`].
#[expect(clippy::indexing_slicing, reason = "each index is of a variable of this list")]
pub fn expand_all(variables: &mut [Variable]) {
    let by_name: HashMap<&str, usize> =
        variables.iter().enumerate().map(|(index, variable)| (variable.key.as_str(), index)).collect();
    let graph = Graph::new(variables, &by_name);
    let circular = graph.circular();
    let mut expanded: HashMap<usize, String> = HashMap::new();
    let mut remaining = MAX_TOTAL_BYTES;
    for index in graph.dependency_order(&circular) {
        let max_bytes = remaining.min(MAX_VALUE_BYTES);
        let value = expand_one(&variables[index].value, max_bytes, &|name| {
            let target = *by_name.get(name)?;
            let variable = variables.get(target)?;
            let value = expanded.get(&target).unwrap_or(&variable.value);
            (!variable.file && !variable.raw && !circular[target]).then_some(value.as_str())
        });
        // A value that is too long counts, too, because it was copied up to the limit.
        remaining -= value.as_ref().map_or(max_bytes, String::len);
        expanded.extend(value.map(|value| (index, value)));
    }
    for (index, value) in expanded {
        variables[index].value = value;
    }
}

/// Expands the references in `text`, and keeps references for which `lookup` returns `None`. Returns `None` if the
/// result would be longer than `max_bytes`.
fn expand_one<'a>(text: &str, max_bytes: usize, lookup: &dyn Fn(&str) -> Option<&'a str>) -> Option<String> {
    let mut out = String::with_capacity(text.len().min(max_bytes));
    for piece in pieces(text) {
        let added = match piece {
            Piece::Text(text) => text,
            Piece::Reference { name, written } => lookup(name).unwrap_or(written),
        };
        if out.len().saturating_add(added.len()) > max_bytes {
            return None;
        }
        out.push_str(added);
    }
    Some(out)
}

struct Graph {
    uses: Vec<Vec<usize>>,
    used_by: Vec<Vec<usize>>,
}

#[expect(clippy::indexing_slicing, reason = "all lists have one entry per variable, and the indices are of variables")]
impl Graph {
    fn new(variables: &[Variable], by_name: &HashMap<&str, usize>) -> Self {
        let mut graph = Self { uses: vec![Vec::new(); variables.len()], used_by: vec![Vec::new(); variables.len()] };
        // Index of the last variable that refers to each variable, to add a repeated reference only once.
        let mut last_user = vec![usize::MAX; variables.len()];
        for (index, variable) in variables.iter().enumerate() {
            if variable.raw {
                continue;
            }
            for name in references(&variable.value) {
                if let Some(&target) = by_name.get(name)
                    && !variables[target].raw
                    && !variables[target].file
                    && last_user[target] != index
                {
                    last_user[target] = index;
                    graph.uses[index].push(target);
                    graph.used_by[target].push(index);
                }
            }
        }
        graph
    }

    /// Returns for each variable whether it is part of a cycle, or on a path between two cycles.
    ///
    /// Repeatedly removes variables without outgoing references, and then variables without incoming references.
    fn circular(&self) -> Vec<bool> {
        let mut remaining = vec![true; self.uses.len()];
        for (forward, backward) in [(&self.uses, &self.used_by), (&self.used_by, &self.uses)] {
            let mut unresolved: Vec<usize> =
                forward.iter().map(|targets| targets.iter().filter(|target| remaining[**target]).count()).collect();
            let mut ready: Vec<usize> =
                (0..remaining.len()).filter(|index| remaining[*index] && unresolved[*index] == 0).collect();
            while let Some(index) = ready.pop() {
                remaining[index] = false;
                for &other in &backward[index] {
                    unresolved[other] = unresolved[other].saturating_sub(1);
                    if unresolved[other] == 0 && remaining[other] {
                        ready.push(other);
                    }
                }
            }
        }
        remaining
    }

    /// Returns the variables that refer to others, each after its dependencies. Omits circular ones.
    fn dependency_order(&self, circular: &[bool]) -> Vec<usize> {
        let mut unresolved: Vec<usize> =
            self.uses.iter().map(|targets| targets.iter().filter(|target| !circular[**target]).count()).collect();
        let mut ready: Vec<usize> =
            (0..unresolved.len()).filter(|index| !circular[*index] && unresolved[*index] == 0).collect();
        let mut order = Vec::new();
        while let Some(index) = ready.pop() {
            if !self.uses[index].is_empty() {
                order.push(index);
            }
            for &other in &self.used_by[index] {
                unresolved[other] = unresolved[other].saturating_sub(1);
                if unresolved[other] == 0 && !circular[other] {
                    ready.push(other);
                }
            }
        }
        order
    }
}

fn pieces(text: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let (mut start, mut at) = (0, 0);
    while let Some(offset) = text[at..].find(['$', '%']) {
        let sign = at + offset;
        match reference(&text[sign..]) {
            Some((name, length)) => {
                if start < sign {
                    pieces.push(Piece::Text(&text[start..sign]));
                }
                pieces.push(Piece::Reference { name, written: &text[sign..sign + length] });
                at = sign + length;
                start = at;
            }
            // Skip `$$` and `%%` as a pair.
            None if text[sign + 1..].starts_with(&text[sign..=sign]) => at = sign + 2,
            None => at = sign + 1,
        }
    }
    if start < text.len() {
        pieces.push(Piece::Text(&text[start..]));
    }
    pieces
}

fn reference(text: &str) -> Option<(&str, usize)> {
    if let Some(inner) = text.strip_prefix("${") {
        let name = name(inner)?;
        return inner[name.len()..].starts_with('}').then_some((name, name.len() + 3));
    }
    if let Some(inner) = text.strip_prefix('%') {
        let name = name(inner)?;
        return inner[name.len()..].starts_with('%').then_some((name, name.len() + 2));
    }
    let name = name(&text[1..])?;
    Some((name, name.len() + 1))
}

fn name(text: &str) -> Option<&str> {
    let end = text.find(|char: char| !char.is_ascii_alphanumeric() && char != '_').unwrap_or(text.len());
    let name = &text[..end];
    (!name.is_empty() && !name.starts_with(|char: char| char.is_ascii_digit())).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(variables: &[(&str, &str)]) -> Vec<String> {
        let mut variables: Vec<Variable> =
            variables.iter().map(|(key, value)| Variable::public(*key, *value)).collect();
        expand_all(&mut variables);
        variables.into_iter().map(|variable| variable.value).collect()
    }

    #[test]
    fn expands_all_three_notations() {
        let lookup = |name: &str| (name == "A").then(|| "1".to_owned());
        for (text, keep, empty) in [
            ("$A-${A}-%A%", "1-1-1", "1-1-1"),
            ("$B${B}%B%", "$B${B}%B%", ""),
            ("$$A %%A% $", "$$A %%A% $", "$$A %%A% $"),
            ("100% of ${A", "100% of ${A", "100% of ${A"),
            ("$1 ${} é$A", "$1 ${} é1", "$1 ${} é1"),
        ] {
            assert_eq!(expand_text(text, &lookup, Unknown::Keep), keep);
            assert_eq!(expand_text(text, &lookup, Unknown::Empty), empty);
        }
    }

    #[test]
    fn expands_in_order_of_dependencies() {
        assert_eq!(expanded(&[("C", "$B!"), ("B", "${A}-2"), ("A", "1")]), ["1-2!", "1-2", "1"]);
    }

    #[test]
    fn circular_references_are_not_expanded_and_dependents_are_partly_expanded() {
        assert_eq!(
            expanded(&[("A", "$B"), ("B", "$A"), ("X", "$A $N"), ("N", "n"), ("S", "$S$N")]),
            ["$B", "$A", "$A n", "n", "$S$N"]
        );
    }

    #[test]
    fn expanded_values_are_bounded() {
        let names: Vec<String> = (0..60).map(|index| format!("V{index}")).collect();
        let mut variables = vec![Variable::public("V0", "xxxxxxxxxx")];
        for pair in names.windows(2) {
            variables.push(Variable::public(&pair[1], format!("${}${}", pair[0], pair[0])));
        }
        expand_all(&mut variables);
        assert!(variables.iter().all(|variable| variable.value.len() <= MAX_VALUE_BYTES));
        assert_eq!(variables[3].value.len(), 80, "each variable doubles the 10 characters of `V0`");
    }

    #[test]
    fn total_length_of_expanded_values_is_bounded() {
        let mut variables = vec![Variable::public("B", "x".repeat(MAX_VALUE_BYTES))];
        variables.extend((0..1000).map(|index| Variable::public(format!("V{index}"), "$B")));
        variables.extend((0..1000).map(|index| Variable::public(format!("W{index}"), "$B$B")));
        expand_all(&mut variables);
        let total: usize = variables.iter().skip(1).map(|variable| variable.value.len()).sum();
        assert!(total <= MAX_TOTAL_BYTES + 8000, "{total}");
    }

    #[test]
    fn inserted_values_are_bounded() {
        let value = "x".repeat(MAX_VALUE_BYTES / 2);
        let lookup = |_: &str| Some(value.clone());
        let text = "$B".repeat(100_000);
        assert_eq!(expand_text(&text, &lookup, Unknown::Empty).len(), MAX_VALUE_BYTES);
        assert!(expand_text(&text, &lookup, Unknown::Keep).ends_with("$B$B"));
    }

    #[test]
    fn long_chain_does_not_overflow_the_stack() {
        let mut variables: Vec<Variable> =
            (0..50_000).map(|index| Variable::public(format!("V{index}"), format!("$V{}", index + 1))).collect();
        variables.push(Variable::public("V50000", "end"));
        expand_all(&mut variables);
        assert_eq!(variables[0].value, "end");
    }
}
