//! Variables that `include` and `expand_vars` can use: those from outside the configuration
//! (docs/spec/pipeline-yaml.md, section 1.1).

use std::cell::RefCell;
use std::collections::HashMap;

use muster_job::Variable;

use crate::context::Context;
use crate::diagnostic::Diagnostic;
use crate::expand::{ByteBudget, Unknown, expand_text};
use crate::layers;
use crate::limits::MAX_INCLUDE_VARIABLES_BYTES;
use crate::node::Span;

/// The variables by name. They do not include YAML variables, which are read only after files are included.
#[derive(Debug)]
pub(super) struct Variables {
    by_name: HashMap<String, Variable>,
    /// Bytes that may still be inserted into texts.
    budget: ByteBudget,
}

impl Variables {
    pub(super) fn new(context: &Context) -> Self {
        // There is no environment yet, so only variables for all environments are visible.
        let project = layers::project_variables(&context.project_variables, context.ref_protected, None);
        let merged = layers::merge([context.predefined.clone(), project, context.pipeline_variables.clone()]);
        let by_name = merged.into_iter().map(|variable| (variable.key.clone(), variable)).collect();
        Self { by_name, budget: ByteBudget::new(MAX_INCLUDE_VARIABLES_BYTES) }
    }

    /// Returns an error at `span` if variables were not replaced because all values that were inserted are too long.
    pub(super) fn budget_error(&self, span: Span) -> Option<Diagnostic> {
        let mib = MAX_INCLUDE_VARIABLES_BYTES / 1024 / 1024;
        let message = format!("variables in `include` and in interpolation blocks expand to more than {mib} MiB");
        let help = "use shorter values there, or use them less often";
        self.budget.is_exceeded().then(|| Diagnostic::error(span, message).help(help))
    }

    /// Replaces variables in `text` with their values. Variables in the inserted values are not replaced. If the inserted
    /// values become too long ([`expand_text`], [`Variables::budget_error`]), further variables count as unknown.
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

    fn replace(&self, text: &str, unknown: Unknown, on_use: &dyn Fn(&Variable)) -> String {
        let lookup = |name: &str| {
            let variable = self.by_name.get(name)?;
            on_use(variable);
            self.budget.spend(variable.value.len()).then(|| variable.value.clone())
        };
        expand_text(text, &lookup, unknown)
    }
}
