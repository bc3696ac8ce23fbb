//! The caches of a payload, with the keys that runners see.

use muster_pipeline::model::{self, ScriptWork};
use muster_runner_api::payload::Cache;

use crate::assignment::JobAssignment;

/// Returns the caches in the order of the configuration. Caches that have neither paths nor `untracked` are left out.
pub(super) fn caches(assignment: &JobAssignment<'_>, work: &ScriptWork) -> Vec<Cache> {
    work.cache
        .iter()
        .filter(|cache| cache.untracked || !cache.paths.is_empty())
        .map(|cache| {
            let suffix = suffix(assignment, cache);
            let key = if cache.key.is_empty() { "default" } else { &cache.key };
            let or_default =
                |value: &String, default: &str| if value.is_empty() { default.to_owned() } else { value.clone() };
            Cache {
                key: format!("{key}{suffix}"),
                untracked: cache.untracked,
                policy: or_default(&cache.policy, "pull-push"),
                paths: cache.paths.clone(),
                when: or_default(&cache.when, "on_success"),
                fallback_keys: cache.fallback_keys.iter().map(|key| format!("{key}{suffix}")).collect(),
            }
        })
        .collect()
}

fn suffix(assignment: &JobAssignment<'_>, cache: &model::Cache) -> &'static str {
    match (assignment.project.separate_caches, assignment.context.ref_protected && !cache.unprotect) {
        (false, _) => "",
        (true, true) => "-protected",
        (true, false) => "-non_protected",
    }
}
