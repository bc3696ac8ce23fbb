//! Decides which later jobs may use the caches and volumes of a job.
//!
//! These are only the jobs of protected refs, or the jobs of all refs.

use muster_runner_api::payload::JobPayload;

/// Variable that states whether the ref is protected, for servers whose payload has no such field.
const PROTECTED: &str = "CI_COMMIT_REF_PROTECTED";

/// Returns whether the job's ref is protected. `None` means that the server does not report it.
///
/// Older servers do not send the field. For them, the first variable named [`PROTECTED`] counts. The job itself may set later ones, with
/// which it could read data of protected jobs, or leave data for protected jobs to read.
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

/// Returns whether a cache of the job with this expanded key is only for protected refs.
///
/// The key decides, because the coordinator adds the suffix `-protected` to the keys of protected refs. If a job of an unprotected ref
/// uses such a key, the suffix has no effect, because the payload states that the ref is unprotected.
pub(super) fn of_cache(payload: &JobPayload, key: &str) -> bool {
    is_protected_key(key) && of_ref(payload) != Some(false)
}

/// Returns whether the volumes of the job are only for protected refs.
///
/// This is the case if the job's ref is protected, or if one of its caches is. `keys` are the expanded keys of the caches.
pub(super) fn of_volumes(payload: &JobPayload, mut keys: impl Iterator<Item = String>) -> bool {
    of_ref(payload) == Some(true) || keys.any(|key| of_cache(payload, &key))
}

/// Returns whether a key names a cache of protected refs.
///
/// Some file systems ignore case, and dots and blanks at the end of a name.
pub(super) fn is_protected_key(key: &str) -> bool {
    key.trim_end_matches(|c: char| c == '.' || c.is_whitespace()).to_lowercase().ends_with("-protected")
}
