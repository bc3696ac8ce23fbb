//! Paths of the steps of a sequence, and the runs of a step with a matrix.

use serde_json::{Map, Value};

use super::inputs::expression_error;
use super::user_steps::StepError;
use crate::definition::StepEntry;
use crate::expression::{Scope, to_text};

/// Limit of GitLab for the jobs of one `parallel: matrix:`.
const MAX_RUNS: usize = 200;

/// Run of a step. A step without a matrix has one run.
pub(super) struct StepRun<'e> {
    pub(super) entry: &'e StepEntry,
    /// Name of the step, with the values of its matrix: `build: [linux, 1]`.
    pub(super) name: String,
    pub(super) path: String,
    pub(super) section: String,
    pub(super) matrix: Map<String, Value>,
}

impl StepRun<'_> {
    /// Returns the title of the log section. Empty means that the step has no section.
    pub(super) fn section_title(&self) -> String {
        let title = &self.entry.extension.policy.title;
        let values = self.name.strip_prefix(&self.entry.name).unwrap_or_default();
        match (title.as_str(), self.entry.extension.parallel) {
            ("", None) => String::new(),
            // Without sections, readers could not tell the output of parallel steps apart.
            ("", Some(_)) => self.name.clone(),
            (title, _) => format!("{title}{values}"),
        }
    }
}

/// Returns a run for each combination of the step's matrix values, in the order of the lists. `mask` replaces sensitive
/// values in names.
///
/// # Errors
/// The matrix has an invalid expression, a value that is not a list of scalars, or too many runs.
pub(super) fn runs_of<'e>(
    entry: &'e StepEntry,
    path: &str,
    scope: &Scope,
    mask: &dyn Fn(&str) -> String,
) -> Result<Vec<StepRun<'e>>, StepError> {
    let section = section_name(path);
    if entry.extension.matrix.is_empty() {
        let (name, path) = (entry.name.clone(), path.to_owned());
        return Ok(vec![StepRun { entry, name, path, section, matrix: Map::new() }]);
    }
    let mut all = Vec::new();
    for mapping in &entry.extension.matrix {
        all.extend(combinations(mapping, scope)?);
        if all.len() > MAX_RUNS {
            return Err(too_many());
        }
    }
    let runs = all.into_iter().enumerate().map(|(index, matrix)| {
        let values = matrix.values().map(to_text).collect::<Vec<_>>().join(", ");
        let suffix = mask(&format!(": [{values}]"));
        let (name, path) = (format!("{}{suffix}", entry.name), format!("{path}{suffix}"));
        StepRun { entry, name, path, section: format!("{section}_{}", index + 1), matrix }
    });
    Ok(runs.collect())
}

fn too_many() -> StepError {
    StepError::Step(format!("matrix: more than {MAX_RUNS} combinations; split the step"))
}

fn combinations(mapping: &Map<String, Value>, scope: &Scope) -> Result<Vec<Map<String, Value>>, StepError> {
    let mut found = vec![Map::new()];
    for (name, values) in mapping {
        let values = scope.expand(values).map_err(expression_error(&format!("matrix: expand {name:?}")))?;
        let values = match values {
            Value::Array(values) if !values.iter().any(|value| value.is_array() || value.is_object()) => values,
            _ => return Err(StepError::Step(format!("matrix: {name:?} must be a list of texts, numbers or booleans"))),
        };
        // Checked before the product is computed, because a list can be an output of a step, of any length.
        if found.len().saturating_mul(values.len()) > MAX_RUNS {
            return Err(too_many());
        }
        let with = |known: &Map<String, Value>, value: &Value| {
            let own = std::iter::once((name.clone(), value.clone()));
            known.clone().into_iter().chain(own).collect::<Map<_, _>>()
        };
        found = found.iter().flat_map(|known| values.iter().map(move |value| with(known, value))).collect();
    }
    Ok(found)
}

/// Returns the outputs of a step from the outputs of its runs. With a matrix, each output is a list with an item for
/// each run.
pub(super) fn outputs_of(entry: &StepEntry, runs: Vec<Map<String, Value>>) -> Map<String, Value> {
    if entry.extension.matrix.is_empty() {
        return runs.into_iter().next().unwrap_or_default();
    }
    let mut lists: Map<String, Value> = Map::new();
    for name in runs.iter().flat_map(Map::keys) {
        if !lists.contains_key(name) {
            let items = runs.iter().map(|outputs| outputs.get(name).cloned().unwrap_or(Value::Null));
            lists.insert(name.clone(), items.collect());
        }
    }
    lists
}

/// Returns the paths of the steps of a sequence.
///
/// A repeated name ends with the step's position in the list, as in `build#3`. A step without a name has only the
/// position.
pub(super) fn paths(parent: &str, entries: &[StepEntry]) -> Vec<String> {
    let mut paths: Vec<String> = Vec::with_capacity(entries.len());
    for (index, StepEntry { name, .. }) in entries.iter().enumerate() {
        let separator = if parent.is_empty() { "" } else { "/" };
        let number = if name.is_empty() { format!("#{}", index + 1) } else { String::new() };
        let mut path = format!("{parent}{separator}{name}{number}");
        if paths.contains(&path) {
            path.push_str(&format!("#{}", index + 1));
        }
        paths.push(path);
    }
    paths
}

fn section_name(path: &str) -> String {
    path.replace(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '_' | '-' | '.'), "_")
}
