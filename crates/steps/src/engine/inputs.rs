//! Evaluates inputs and the names of inputs and variables.

use muster_job::is_identifier;
use serde_json::{Map, Value};

use super::user_steps::StepError;
use crate::definition::StepFile;
use crate::expression::{Dialect, ExpressionError, Scope};

/// Evaluates the inputs for a step file.
///
/// Missing inputs get their `offered` values, which are not evaluated, or else their defaults.
pub(super) fn checked_inputs<'o>(
    file: &StepFile,
    inputs: &Map<String, Value>,
    offered: impl Iterator<Item = (&'o String, &'o Value)>,
    scope: &Scope,
) -> Result<Map<String, Value>, StepError> {
    if let Some(name) = inputs.keys().find(|name| !file.spec.inputs.contains_key(*name)) {
        return Err(StepError::Call(format!("failed to load: step does not accept input with name {name:?}")));
    }
    let mut inputs = expanded_inputs(inputs, scope)?;
    for (name, value) in offered.filter(|(name, _)| file.spec.inputs.contains_key(*name)) {
        inputs.entry(name).or_insert_with(|| value.clone());
    }
    with_defaults(file, inputs)
        .map_err(|error| StepError::Call(format!("failed to load: failed to parse spec definition: {error}")))
}

pub(super) fn expanded_inputs(inputs: &Map<String, Value>, scope: &Scope) -> Result<Map<String, Value>, StepError> {
    expand_values(inputs, scope, |key| format!("failed to load: expand input {key:?}"))
}

pub(super) fn expand_values(
    map: &Map<String, Value>,
    scope: &Scope,
    site: impl Fn(&str) -> String,
) -> Result<Map<String, Value>, StepError> {
    let expanded =
        |(key, value): (&String, &Value)| Ok((key.clone(), scope.expand(value).map_err(expression_error(&site(key)))?));
    map.iter().map(expanded).collect()
}

pub(super) fn expand_keys(map: &Map<String, Value>, scope: &Scope) -> Result<Map<String, Value>, StepError> {
    map.iter().map(|(key, value)| Ok((expand_key(key, scope)?, value.clone()))).collect()
}

/// Evaluates the name of an input or variable. Only the current dialect permits expressions in names.
pub(super) fn expand_key(key: &str, scope: &Scope) -> Result<String, StepError> {
    if !key.contains("${{") {
        return Ok(key.to_owned());
    }
    let expanded = match scope.dialect() {
        Dialect::Current => {
            scope.expand_text(key).map_err(expression_error(&format!("failed to load: expand name {key:?}")))?
        }
        Dialect::Legacy => key.to_owned(),
    };
    if is_identifier(&expanded) {
        return Ok(expanded);
    }
    Err(StepError::Call(format!(
        "failed to load: {expanded:?} is not a valid name; use letters, digits and `_`, and do not start with a digit"
    )))
}

pub(super) fn with_defaults(file: &StepFile, mut inputs: Map<String, Value>) -> Result<Map<String, Value>, StepError> {
    for (name, parameter) in &file.spec.inputs {
        if inputs.contains_key(name) {
            continue;
        }
        let default = parameter
            .default
            .clone()
            .ok_or_else(|| StepError::Call(format!("input {name:?} required, but not defined")))?;
        inputs.insert(name.clone(), default);
    }
    Ok(inputs)
}

pub(super) fn expression_error(description: &str) -> impl FnOnce(ExpressionError) -> StepError {
    let description = description.to_owned();
    move |source| StepError::Expression { description, source }
}
