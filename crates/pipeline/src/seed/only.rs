//! `only` and `except` (docs/spec/pipeline-yaml.md, section 1.6).

use crate::conditions::clauses::Clauses;
use crate::conditions::scope::Scope;
use crate::config::only::RefPolicy;
use crate::config::parsing::Problems;

/// Returns true if `only` includes the job, which requires that all its keys match.
pub(crate) fn includes(policy: &RefPolicy, clauses: &Clauses<'_>, scope: &Scope<'_>, problems: &mut Problems) -> bool {
    key_results(policy, clauses, scope, problems).into_iter().flatten().all(|matches| matches)
}

/// Returns true if `except` excludes the job, for which one matching key is enough.
pub(crate) fn excludes(policy: &RefPolicy, clauses: &Clauses<'_>, scope: &Scope<'_>, problems: &mut Problems) -> bool {
    key_results(policy, clauses, scope, problems).into_iter().flatten().any(|matches| matches)
}

fn key_results(
    policy: &RefPolicy,
    clauses: &Clauses<'_>,
    scope: &Scope<'_>,
    problems: &mut Problems,
) -> [Option<bool>; 4] {
    let refs = policy.refs.as_ref().map(|refs| refs.iter().any(|pattern| pattern.matches(clauses.context())));
    let variables = policy
        .variables
        .as_ref()
        .map(|list| list.iter().any(|condition| clauses.condition(condition, scope, problems)));
    let changes = policy.changes.as_ref().map(|changes| clauses.changes(changes, scope, problems));
    // Muster has no clusters that belong to a project.
    let kubernetes = policy.kubernetes.then_some(false);
    [refs, variables, changes, kubernetes]
}
