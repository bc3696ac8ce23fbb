//! Decides whether all later jobs may use the caches and volumes of a job, or only jobs of protected refs.

use muster_runner_api::payload::JobPayload;

/// Variable for servers whose payload has no field for the ref's protection.
const PROTECTED: &str = "CI_COMMIT_REF_PROTECTED";

/// Returns whether the job's ref is protected. `None` means that the server does not report it.
///
/// The first variable named [`PROTECTED`] counts: otherwise, a job could reach protected data by adding another one.
pub(super) fn of_ref(payload: &JobPayload) -> Option<bool> {
    payload.git_info.protected.or_else(|| {
        let first = payload.variables.iter().find(|variable| variable.key == PROTECTED)?;
        match first.value.as_str() {
            "true" => Some(true),
            "false" => Some(false),
            _ => None,
        }
    })
}

/// Returns whether only jobs of protected refs may use the cache with this expanded key.
///
/// The coordinator marks such keys with `-protected`, which has no effect if the payload states that the ref is unprotected.
pub(super) fn of_cache(payload: &JobPayload, key: &str) -> bool {
    is_protected_key(key) && of_ref(payload) != Some(false)
}

/// Returns true if the ref or one of the caches is protected. `keys` are expanded.
pub(super) fn of_volumes(payload: &JobPayload, mut keys: impl Iterator<Item = String>) -> bool {
    of_ref(payload) == Some(true) || keys.any(|key| of_cache(payload, &key))
}

/// Ignores case, and dots and blanks at the end, as some file systems do.
pub(super) fn is_protected_key(key: &str) -> bool {
    key.trim_end_matches(|c: char| c == '.' || c.is_whitespace()).to_lowercase().ends_with("-protected")
}
