//! Variables that `include` and `expand_vars` can use: those from outside the configuration
//! (docs/spec/pipeline-yaml.md, section 1.1).

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use muster_job::Variable;

use crate::context::Context;
use crate::expand::{Unknown, expand_text};
use crate::layers;
use crate::limits::MAX_INTERPOLATED_TEXT_BYTES;

/// Shorter values are not hidden, because they would match parts of other words.
const MIN_SECRET_BYTES: usize = 4;

/// The variables by name. They do not include YAML variables, which are read only after files are included.
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

    /// Replaces variables in `text` with their values. Variables in the inserted values are not replaced. A variable
    /// counts as unknown if its value would make the inserted values longer than [`MAX_INTERPOLATED_TEXT_BYTES`].
    pub(super) fn expand(&self, text: &str, unknown: Unknown) -> String {
        self.replace(text, unknown, &|_| {})
    }

    /// Same as [`Variables::expand`], for a text that other users can see. Variables with unknown names are kept as written.
    ///
    /// # Errors
    /// Returns the name of a masked variable that the text refers to.
    pub(super) fn expand_visible(&self, text: &str) -> Result<String, String> {
        let masked = RefCell::new(None);
        let record_masked = |variable: &Variable| {
            if variable.masked {
                masked.borrow_mut().get_or_insert_with(|| variable.key.clone());
            }
        };
        let expanded = self.replace(text, Unknown::Keep, &record_masked);
        masked.into_inner().map_or(Ok(expanded), Err)
    }

    /// Replaces the values of masked variables in `text` with `[MASKED]`. Values shorter than [`MIN_SECRET_BYTES`] stay
    /// visible.
    pub(super) fn hide(&self, text: &str) -> String {
        let secrets =
            self.by_name.values().filter(|variable| variable.masked && variable.value.len() >= MIN_SECRET_BYTES);
        secrets.fold(text.to_owned(), |text, variable| {
            if text.contains(&variable.value) { text.replace(&variable.value, "[MASKED]") } else { text }
        })
    }

    fn replace(&self, text: &str, unknown: Unknown, on_use: &dyn Fn(&Variable)) -> String {
        let remaining = Cell::new(MAX_INTERPOLATED_TEXT_BYTES);
        let lookup = |name: &str| {
            let variable = self.by_name.get(name)?;
            on_use(variable);
            remaining.set(remaining.get().checked_sub(variable.value.len())?);
            Some(variable.value.clone())
        };
        expand_text(text, &lookup, unknown)
    }
}
