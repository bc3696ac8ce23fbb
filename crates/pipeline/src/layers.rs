//! Precedence of CI/CD variables (docs/spec/pipeline-yaml.md, section 4.1), for rules (section 3.2) and for the
//! coordinator's payloads.

use std::collections::HashMap;

use muster_job::Variable;

use crate::context::{Context, ScopedVariable};
use crate::slug::slug;

/// Prefix of the variables about the user who started the pipeline. They take precedence over YAML variables.
pub const USER_PREFIX: &str = "GITLAB_USER_";

/// Properties of a job from which predefined variables are derived.
#[derive(Debug, Clone, Copy)]
pub struct JobFacts<'a> {
    /// Full name, such as `test: [linux, 1]`.
    pub name: &'a str,
    /// Name without the suffix of a parallel job: without ` 1/3` or `: [..]`.
    pub group_name: &'a str,
    /// Name of the stage.
    pub stage: &'a str,
    /// Index of this instance of a parallel job, starting at 1, and the number of instances. `None` for an ordinary job.
    pub node: Option<(u32, u32)>,
}

/// Returns the predefined variables of a job that exist before its rules are evaluated.
#[must_use]
pub fn job_predefined(job: JobFacts<'_>) -> Vec<Variable> {
    let mut variables = vec![
        Variable::public("CI_JOB_NAME", job.name),
        Variable::public("CI_JOB_NAME_SLUG", slug(job.name)),
        Variable::public("CI_JOB_GROUP_NAME", job.group_name),
        Variable::public("CI_JOB_STAGE", job.stage),
    ];
    if let Some((index, _)) = job.node {
        variables.push(Variable::public("CI_NODE_INDEX", index.to_string()));
    }
    let total = job.node.map_or(1, |(_, total)| total);
    variables.push(Variable::public("CI_NODE_TOTAL", total.to_string()));
    variables
}

/// Returns the variables that the rules of a job can use (docs/spec/pipeline-yaml.md, section 3.2), with unexpanded
/// values.
///
/// `job` is `None` for `workflow:rules`. `yaml` contains the global variables and, for a job, its own variables, lowest precedence first.
/// `environment` is the expanded name of the job's environment.
#[must_use]
pub fn rule_variables(
    context: &Context,
    job: Option<JobFacts<'_>>,
    yaml: &[Variable],
    environment: Option<&str>,
) -> Vec<Variable> {
    let job = job.map(job_predefined).unwrap_or_default();
    let (about_user, predefined) = split_user(&context.predefined);
    let project = project_variables(&context.project_variables, context.ref_protected, environment);
    merge([job, predefined, yaml.to_vec(), about_user, project, context.pipeline_variables.clone()])
}

/// Splits predefined variables into the variables about the user and the other variables.
#[must_use]
pub fn split_user(predefined: &[Variable]) -> (Vec<Variable>, Vec<Variable>) {
    predefined.iter().cloned().partition(|variable| variable.key.starts_with(USER_PREFIX))
}

/// Returns the instance, group and project variables that are visible in an environment.
///
/// Protected variables need a protected ref. Variables with an environment scope other than `*` need a matching environment. If
/// several variables have the same name, the variable with the most specific scope wins. Among equally specific scopes, the
/// last variable wins.
#[must_use]
pub fn project_variables(all: &[ScopedVariable], ref_protected: bool, environment: Option<&str>) -> Vec<Variable> {
    let mut visible: Vec<(Specificity, &Variable)> = all
        .iter()
        .filter(|scoped| ref_protected || !scoped.protected)
        .filter_map(|scoped| Some((specificity(&scoped.environment_scope, environment)?, &scoped.variable)))
        .collect();
    // The sort is stable, so that variables of equal specificity keep their order: instance, group, project.
    visible.sort_by_key(|(specificity, _)| *specificity);
    merge([visible.into_iter().map(|(_, variable)| variable.clone()).collect()])
}

/// Merges layers of variables, lowest precedence first.
///
/// Of variables with the same name, only the last one remains, at its own position.
#[must_use]
pub fn merge(layers: impl IntoIterator<Item = Vec<Variable>>) -> Vec<Variable> {
    let all: Vec<Variable> = layers.into_iter().flatten().collect();
    let winners: HashMap<String, usize> =
        all.iter().enumerate().map(|(index, variable)| (variable.key.clone(), index)).collect();
    all.into_iter()
        .enumerate()
        .filter(|(index, variable)| winners.get(&variable.key) == Some(index))
        .map(|(_, variable)| variable)
        .collect()
}

/// Returns the value of the last variable with this name.
#[must_use]
pub fn value<'a>(variables: &'a [Variable], name: &str) -> Option<&'a str> {
    variables.iter().rev().find(|variable| variable.key == name).map(|variable| variable.value.as_str())
}

/// How closely a scope matches an environment: the kind of match, then the length of the scope. A greater value is closer.
type Specificity = (u8, usize);

/// Returns `None` if the scope does not match. An empty scope counts as `*`, the only scope that matches a job without
/// an environment.
fn specificity(scope: &str, environment: Option<&str>) -> Option<Specificity> {
    match environment {
        _ if scope == "*" || scope.is_empty() => Some((0, 0)),
        None => None,
        Some(name) if scope == name => Some((2, scope.len())),
        Some(name) => scope_matches(scope, name).then_some((1, scope.len())),
    }
}

/// Returns true if the name of an environment matches a scope. Each `*` of the scope matches any text.
#[must_use]
pub fn scope_matches(scope: &str, environment: &str) -> bool {
    let mut parts = scope.split('*');
    let Some(mut rest) = parts.next().and_then(|first| environment.strip_prefix(first)) else { return false };
    let mut middle: Vec<&str> = parts.collect();
    let Some(last) = middle.pop() else { return rest.is_empty() };
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scoped(key: &str, value: &str, scope: &str, protected: bool) -> ScopedVariable {
        ScopedVariable { variable: Variable::public(key, value), protected, environment_scope: scope.into() }
    }

    #[test]
    fn most_specific_scope_wins() {
        let all = [
            scoped("K", "exact", "review/x", false),
            scoped("K", "prefix", "review/*", false),
            scoped("K", "suffix", "*/x", false),
            scoped("K", "any", "*", false),
        ];
        let k = |environment| value(&project_variables(&all, false, environment), "K").map(str::to_owned);
        assert_eq!(k(Some("review/x")).as_deref(), Some("exact"));
        assert_eq!(k(Some("review/y")).as_deref(), Some("prefix"));
        assert_eq!(k(Some("b/x")).as_deref(), Some("suffix"));
        assert_eq!(k(None).as_deref(), Some("any"));
    }

    #[test]
    fn last_variable_wins_among_equal_scopes_and_protected_variables_need_a_protected_ref() {
        let all = [scoped("K", "group", "*", false), scoped("K", "project", "*", false), scoped("P", "p", "*", true)];
        let unprotected = project_variables(&all, false, None);
        assert_eq!(value(&unprotected, "K"), Some("project"));
        assert_eq!(value(&unprotected, "P"), None);
        assert_eq!(value(&project_variables(&all, true, None), "P"), Some("p"));
    }

    #[test]
    fn star_in_scope_matches_any_text() {
        for (scope, environment, expected) in [
            ("review/*", "review/a/b", true),
            ("review/*", "review", false),
            ("*/x", "a/x", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("ab*b", "ab", false),
            ("exact", "exact", true),
            ("exact", "exactly", false),
        ] {
            assert_eq!(scope_matches(scope, environment), expected, "{scope} {environment}");
        }
    }

    #[test]
    fn rule_variables_follow_the_order_of_precedence() {
        let context = Context {
            predefined: vec![
                Variable::public("CI_COMMIT_BRANCH", "main"),
                Variable::public("GITLAB_USER_LOGIN", "ann"),
                Variable::public("X", "predefined"),
            ],
            project_variables: vec![scoped("Y", "project", "*", false)],
            pipeline_variables: vec![Variable::public("Z", "run")],
            ..Context::default()
        };
        let yaml = ["X", "Y", "Z", "GITLAB_USER_LOGIN"].map(|name| Variable::public(name, "yaml"));
        let job = JobFacts { name: "t 1/2", group_name: "t", stage: "test", node: Some((1, 2)) };
        let variables = rule_variables(&context, Some(job), &yaml, None);
        for (name, expected) in [
            ("CI_COMMIT_BRANCH", Some("main")),
            ("X", Some("yaml")),
            ("Y", Some("project")),
            ("Z", Some("run")),
            ("GITLAB_USER_LOGIN", Some("ann")),
            ("CI_JOB_NAME_SLUG", Some("t-1-2")),
            ("CI_NODE_INDEX", Some("1")),
            ("CI_NODE_TOTAL", Some("2")),
            ("CI_ENVIRONMENT_NAME", None),
        ] {
            assert_eq!(value(&variables, name), expected, "{name}");
        }
        assert_eq!(value(&rule_variables(&context, None, &yaml, None), "CI_JOB_NAME"), None);
    }
}
