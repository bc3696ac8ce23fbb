//! Variables that are visible to rules and to the server's expansion of texts (docs/spec/pipeline-yaml.md, sections
//! 3.2, 4.1 and 4.2).

use std::collections::{HashMap, HashSet};

use muster_job::Variable;

use crate::context::Context;
use crate::diagnostic::Diagnostic;
use crate::expand::{ByteBudget, MAX_VALUE_BYTES, Unknown, expand_all, expand_text, may_have_references, references};
use crate::layers::{self, JobFacts, USER_PREFIX};
use crate::limits::MAX_EXPANDED_BYTES;
use crate::masked::MaskedValues;
use crate::node::Span;

/// Variables that do not depend on the job. All scopes of a pipeline share them.
#[derive(Debug)]
pub(crate) struct Base<'a> {
    context: &'a Context,
    predefined: HashMap<&'a str, &'a Variable>,
    /// Predefined variables about the user. They take precedence over YAML variables.
    user: HashMap<&'a str, &'a Variable>,
    /// Instance, group and project variables of a job without an environment.
    project: Vec<Variable>,
    pipeline: HashMap<&'a str, &'a Variable>,
    has_scoped_variables: bool,
    masked: MaskedValues,
    /// Bytes that the expansions of all scopes may still copy.
    budget: ByteBudget,
}

impl<'a> Base<'a> {
    pub(crate) fn new(context: &'a Context) -> Self {
        let index = |variable: &'a Variable| (variable.key.as_str(), variable);
        let (user, predefined): (HashMap<_, _>, HashMap<_, _>) =
            context.predefined.iter().map(index).partition(|(name, _)| name.starts_with(USER_PREFIX));
        Self {
            context,
            predefined,
            user,
            project: layers::project_variables(&context.project_variables, context.ref_protected, None),
            pipeline: context.pipeline_variables.iter().map(index).collect(),
            has_scoped_variables: context.project_variables.iter().any(|variable| variable.environment_scope != "*"),
            masked: MaskedValues::new(context),
            budget: ByteBudget::new(MAX_EXPANDED_BYTES),
        }
    }

    pub(crate) fn context(&self) -> &'a Context {
        self.context
    }

    pub(crate) fn masked(&self) -> &MaskedValues {
        &self.masked
    }

    /// Returns an error at `span` if a text was not expanded because it is too long, or because all texts are too long.
    pub(crate) fn budget_error(&self, span: Span) -> Option<Diagnostic> {
        let (text_mib, total_mib) = (MAX_VALUE_BYTES / 1024 / 1024, MAX_EXPANDED_BYTES / 1024 / 1024);
        let message = format!(
            "variables expand to more than {text_mib} MiB in one text, or to more than {total_mib} MiB in all texts"
        );
        let help =
            "use shorter values in `rules`, `tags`, `environment` and `resource_group`, or use them in fewer jobs";
        self.budget.is_exceeded().then(|| Diagnostic::error(span, message).help(help))
    }

    /// Returns the project variables for an environment. `None` means the same variables as without an environment.
    fn project_of(&self, environment: Option<&str>) -> Option<Vec<Variable>> {
        let environment = environment.filter(|_| self.has_scoped_variables)?;
        let context = self.context;
        Some(layers::project_variables(&context.project_variables, context.ref_protected, Some(environment)))
    }
}

/// Variables that are visible to one job, or to `workflow`.
#[derive(Debug)]
pub(crate) struct Scope<'a> {
    base: &'a Base<'a>,
    /// YAML variables. If several have the same name, this is the last one.
    yaml: HashMap<&'a str, &'a Variable>,
    /// Project variables for the environment of the job. `None` means the project variables of `base`.
    project: Option<Vec<Variable>>,
    job: Vec<Variable>,
}

impl<'a> Scope<'a> {
    /// Creates the scope of `workflow`, or of a job whose environment is not known yet.
    pub(crate) fn new(base: &'a Base<'a>, yaml: &'a [Variable], job: Option<JobFacts<'_>>) -> Self {
        Self {
            base,
            yaml: yaml.iter().map(|variable| (variable.key.as_str(), variable)).collect(),
            project: None,
            job: job.map(layers::job_predefined).unwrap_or_default(),
        }
    }

    pub(crate) fn in_environment(mut self, environment: Option<&str>) -> Self {
        self.project = self.base.project_of(environment);
        self
    }

    fn find(&self, name: &str) -> Option<&Variable> {
        let project = self.project.as_deref().unwrap_or(&self.base.project);
        self.base
            .pipeline
            .get(name)
            .copied()
            .or_else(|| project.iter().rev().find(|variable| variable.key == name))
            .or_else(|| self.base.user.get(name).copied())
            .or_else(|| self.yaml.get(name).copied())
            .or_else(|| self.base.predefined.get(name).copied())
            .or_else(|| self.job.iter().rev().find(|variable| variable.key == name))
    }

    /// Returns the value of a variable without expanding other variables in it, as `rules:if` compares it.
    pub(crate) fn unexpanded_value(&self, name: &str) -> Option<String> {
        self.find(name).map(|variable| variable.value.clone())
    }

    /// Returns the value of a variable for a message. For a masked variable, this is `[MASKED]`.
    pub(crate) fn shown_value(&self, name: &str) -> Option<String> {
        self.find(name).map(|found| if found.masked { "[MASKED]".to_owned() } else { found.value.clone() })
    }

    /// Replaces the masked values in a text for users with `[MASKED]`.
    pub(crate) fn hide(&self, text: &str) -> String {
        self.base.masked.hide(text)
    }

    /// Expands the variables in `text`. Returns the text unchanged if the result is too long, or if the expansions of all
    /// scopes have exceeded their budget ([`Base::budget_error`]).
    pub(crate) fn expand(&self, text: &str, unknown: Unknown) -> String {
        if !may_have_references(text) || self.base.budget.is_exceeded() {
            return text.to_owned();
        }
        let mut needed = self.referenced_variables(text);
        expand_all(&mut needed);
        let values: HashMap<&str, &str> =
            needed.iter().map(|variable| (variable.key.as_str(), variable.value.as_str())).collect();
        let inserted = ByteBudget::new(MAX_VALUE_BYTES);
        let lookup = |name: &str| {
            let value = values.get(name).filter(|value| inserted.spend(value.len()))?;
            Some((*value).to_owned())
        };
        let expanded = expand_text(text, &lookup, unknown);
        let copied = needed.iter().fold(expanded.len(), |sum, variable| sum.saturating_add(variable.value.len()));
        let spent = if inserted.is_exceeded() { usize::MAX } else { copied };
        if self.base.budget.spend(spent) { expanded } else { text.to_owned() }
    }

    /// Returns the variables that a text refers to, and all variables that their values refer to.
    fn referenced_variables(&self, text: &str) -> Vec<Variable> {
        let mut found = Vec::new();
        let mut seen = HashSet::new();
        let mut texts = vec![text.to_owned()];
        while let Some(text) = texts.pop() {
            for name in references(&text) {
                if !seen.insert(name.to_owned()) {
                    continue;
                }
                if let Some(variable) = self.find(name) {
                    if !variable.raw {
                        texts.push(variable.value.clone());
                    }
                    found.push(variable.clone());
                }
            }
        }
        found
    }
}
