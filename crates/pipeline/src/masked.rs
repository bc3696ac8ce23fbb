//! Hides the values of masked variables in texts that users see: diagnostics and decisions.

use muster_job::mask::Secrets;

use crate::context::Context;
use crate::diagnostic::Diagnostic;

/// Shorter values are not hidden, because they would match parts of other words.
const MIN_SECRET_BYTES: usize = 4;

/// The values of all masked variables from outside the configuration, including those of other environments.
#[derive(Debug)]
pub(crate) struct MaskedValues {
    secrets: Secrets,
}

impl MaskedValues {
    pub(crate) fn new(context: &Context) -> Self {
        let project = context.project_variables.iter().map(|scoped| &scoped.variable);
        let all = context.predefined.iter().chain(project).chain(&context.pipeline_variables);
        let values = all.filter(|variable| variable.masked && variable.value.trim().len() >= MIN_SECRET_BYTES);
        Self { secrets: Secrets::new(values.map(|variable| variable.value.as_str()), []) }
    }

    /// Replaces the masked values in `text` with `[MASKED]`. Values shorter than [`MIN_SECRET_BYTES`] stay visible.
    pub(crate) fn hide(&self, text: &str) -> String {
        self.secrets.mask(text)
    }

    pub(crate) fn hide_in(&self, diagnostic: &mut Diagnostic) {
        diagnostic.message = self.hide(&diagnostic.message);
        diagnostic.help = diagnostic.help.as_ref().map(|help| self.hide(help));
        for (_, label) in &mut diagnostic.related {
            *label = self.hide(label);
        }
    }
}
