//! Reads `[[runners.steps.replace]]`: steps of the operator in place of built-in steps.

use std::collections::BTreeSet;

use muster_job::REPLACEABLE_BUILTINS;

use super::super::problem::shown_name;
use super::super::tree::Table;
use super::{RELATIVE_STEP, RELATIVE_STEP_HELP, StepsProblem, inputs, is_relative};
use crate::settings::StepReplacement;

pub(super) fn read(steps: &Table) -> (Vec<StepReplacement>, Vec<StepsProblem>) {
    let (mut replacements, mut problems, mut builtins) = (Vec::new(), Vec::new(), BTreeSet::new());
    for (index, table) in steps.tables("replace").iter().enumerate() {
        let checked = replacement(table).and_then(|replacement| {
            if builtins.insert(replacement.builtin.clone()) {
                return Ok(replacement);
            }
            let message = format!("two steps replace the built-in step `{}`", replacement.builtin);
            Err((message, "remove one of them".to_owned()))
        });
        match checked {
            Ok(replacement) => replacements.push(replacement),
            Err((message, help)) => problems.push(StepsProblem { step: Some(("replace", index)), message, help }),
        }
    }
    (replacements, problems)
}

/// Reads a replacement. An error is a pair: a message, and a remedy.
fn replacement(table: &Table) -> Result<StepReplacement, (String, String)> {
    let builtin = table.str("builtin").unwrap_or_default();
    if !REPLACEABLE_BUILTINS.contains(&builtin) {
        let message = format!("`{}` is not a built-in step that can be replaced", shown_name(builtin));
        return Err((message, format!("set `builtin` to one of: {}", REPLACEABLE_BUILTINS.join(", "))));
    }
    let reference = table.str("step").unwrap_or_default().trim();
    if reference.is_empty() {
        let message = format!("the replacement of `{builtin}` has no step");
        return Err((message, "set `step` to an absolute path, or a git or OCI reference".to_owned()));
    }
    if is_relative(reference) {
        return Err((format!("the replacement of `{builtin}` {RELATIVE_STEP}"), RELATIVE_STEP_HELP.to_owned()));
    }
    Ok(StepReplacement { builtin: builtin.to_owned(), reference: reference.to_owned(), inputs: inputs(table) })
}
