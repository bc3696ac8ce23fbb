//! Variables that are visible to rules and to the server's expansion of texts (docs/spec/pipeline-yaml.md, sections
//! 3.2, 4.1 and 4.2).

use std::collections::{HashMap, HashSet};

use muster_job::Variable;

use crate::context::Context;
use crate::expand::{Unknown, expand_all, expand_text};
use crate::layers::{self, JobFacts, USER_PREFIX};

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
        }
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
    /// The last variable of a name wins.
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

    /// `rules:if` compares unexpanded values.
    pub(crate) fn unexpanded_value(&self, name: &str) -> Option<String> {
        self.find(name).map(|variable| variable.value.clone())
    }

    /// Returns `[MASKED]` for a masked variable.
    pub(crate) fn masked_value(&self, name: &str) -> Option<String> {
        self.find(name).map(|found| if found.masked { "[MASKED]".to_owned() } else { found.value.clone() })
    }

    pub(crate) fn expand(&self, text: &str, unknown: Unknown) -> String {
        if !text.contains(['$', '%']) {
            return text.to_owned();
        }
        let mut needed = self.referenced_variables(text);
        expand_all(&mut needed);
        let values: HashMap<&str, &str> =
            needed.iter().map(|variable| (variable.key.as_str(), variable.value.as_str())).collect();
        expand_text(text, &|name| values.get(name).map(|value| (*value).to_owned()), unknown)
    }

    /// Returns the variables that a text refers to, and all variables that their values refer to.
    fn referenced_variables(&self, text: &str) -> Vec<Variable> {
        let mut found = Vec::new();
        let mut seen = HashSet::new();
        let mut texts = vec![text.to_owned()];
        while let Some(text) = texts.pop() {
            for name in names(&text) {
                if !seen.insert(name.clone()) {
                    continue;
                }
                if let Some(variable) = self.find(&name) {
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

fn names(text: &str) -> Vec<String> {
    let names = std::cell::RefCell::new(Vec::new());
    let _ = expand_text(
        text,
        &|name| {
            names.borrow_mut().push(name.to_owned());
            None
        },
        Unknown::Empty,
    );
    names.into_inner()
}
