//! The variables that `include` and `expand_vars` may use: those from outside the configuration (pipeline-yaml 1.1).

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use muster_job::Variable;

use crate::context::Context;
use crate::expand::{Unknown, expand_text};
use crate::layers;
use crate::limits::INTERPOLATED_TEXT_BYTES;

/// Shorter masked values, in bytes, are not looked for: they would be found in every other word.
const SHORTEST_SECRET: usize = 4;

/// Predefined, project and pipeline variables by name, the later ones winning. Never YAML variables, which are not read
/// yet when files are included.
#[derive(Debug)]
pub(super) struct Variables {
    by_name: HashMap<String, Variable>,
}

impl Variables {
    pub(super) fn new(context: &Context) -> Self {
        // There is no environment yet, so only variables for all environments are visible.
        let project = layers::project_variables(&context.project_variables, context.ref_protected, None);
        let merged = layers::merge([context.predefined.clone(), project, context.pipeline_variables.clone()]);
        Self { by_name: merged.into_iter().map(|variable| (variable.key.clone(), variable)).collect() }
    }

    /// `text` with its references replaced once, until the result is as long as an interpolated text may be.
    pub(super) fn expand(&self, text: &str, unknown: Unknown) -> String {
        self.replace(text, unknown, &|_| {})
    }

    /// As [`Variables::expand`] for a text that is shown to everybody: unknown names stay.
    ///
    /// # Errors
    /// The name of a masked variable that the text uses.
    pub(super) fn expand_shown(&self, text: &str) -> Result<String, String> {
        let masked = RefCell::new(None);
        let note = |variable: &Variable| {
            if variable.masked {
                masked.borrow_mut().get_or_insert_with(|| variable.key.clone());
            }
        };
        let expanded = self.replace(text, Unknown::Keep, &note);
        masked.into_inner().map_or(Ok(expanded), Err)
    }

    /// `text` without the values of masked variables: paths and URLs may hold them once they are expanded.
    pub(super) fn hide(&self, text: &str) -> String {
        let secrets =
            self.by_name.values().filter(|variable| variable.masked && variable.value.len() >= SHORTEST_SECRET);
        secrets.fold(text.to_owned(), |text, variable| {
            if text.contains(&variable.value) { text.replace(&variable.value, "[MASKED]") } else { text }
        })
    }

    fn replace(&self, text: &str, unknown: Unknown, used: &dyn Fn(&Variable)) -> String {
        let left = Cell::new(INTERPOLATED_TEXT_BYTES);
        let lookup = |name: &str| {
            let variable = self.by_name.get(name)?;
            used(variable);
            left.set(left.get().checked_sub(variable.value.len())?);
            Some(variable.value.clone())
        };
        expand_text(text, &lookup, unknown)
    }
}
