//! `only` and `except` (pipeline-yaml 1.6).

use crate::conditions::clauses::Clauses;
use crate::conditions::scope::Scope;
use crate::config::only::RefPolicy;
use crate::config::parsing::Problems;

/// Whether `only` lets a job in: all of its parts hold.
pub(crate) fn includes(policy: &RefPolicy, clauses: &Clauses<'_>, scope: &Scope<'_>, problems: &mut Problems) -> bool {
    parts(policy, clauses, scope, problems).into_iter().flatten().all(|holds| holds)
}

/// Whether `except` keeps a job out: any of its parts holds.
pub(crate) fn excludes(policy: &RefPolicy, clauses: &Clauses<'_>, scope: &Scope<'_>, problems: &mut Problems) -> bool {
    parts(policy, clauses, scope, problems).into_iter().flatten().any(|holds| holds)
}

/// What each part that is there says: `refs`, `variables`, `changes`, `kubernetes`.
fn parts(policy: &RefPolicy, clauses: &Clauses<'_>, scope: &Scope<'_>, problems: &mut Problems) -> [Option<bool>; 4] {
    let refs = policy.refs.as_ref().map(|refs| refs.iter().any(|pattern| pattern.matches(clauses.context())));
    let variables = policy
        .variables
        .as_ref()
        .map(|list| list.iter().any(|condition| clauses.condition(condition, scope, problems)));
    let changes = policy.changes.as_ref().map(|changes| clauses.changes(changes, scope, problems));
    // There is no cluster that belongs to the project.
    let kubernetes = policy.kubernetes.then_some(false);
    [refs, variables, changes, kubernetes]
}
