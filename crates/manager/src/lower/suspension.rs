//! Environments that a job suspends for later jobs (`FF_SUSPENDABLE_ENVIRONMENTS`).
//!
//! A key is `<runner id>/<system id>/<fields>`. It is neither secret nor an authorization: the scaler's ledger has the owner of an
//! environment, and a key only names the environment.

use muster_config::settings::RunnerSettings;
use muster_executor::ResumeRequest;
use muster_runner_api::payload::JobPayload;
use url::form_urlencoded;

use super::Placement;
use super::flags::Flags;
use super::share::{context_name, protected};

const FLAG: &str = "FF_SUSPENDABLE_ENVIRONMENTS";
/// Field of a key that names the environment.
const NAME: &str = "acquisition-key";
const EXECUTOR: &str = "instance";

fn is_on(payload: &JobPayload, runner: &RunnerSettings) -> bool {
    Flags::resolve(payload, runner).is_on(FLAG)
}

/// Returns the owner of the environment that the job suspends at its end. `None` if it does not suspend one.
pub(crate) fn leaves(payload: &JobPayload, runner: &RunnerSettings, success: bool) -> Option<String> {
    let options = &payload.suspend_options;
    let wanted = if success { options.suspend_on_success } else { options.suspend_on_failure };
    if !wanted || !is_on(payload, runner) {
        return None;
    }
    possible(payload, runner).ok()
}

/// Returns the owner of the environments of jobs like this one.
///
/// # Errors
/// The reason why such jobs cannot have any.
fn possible(payload: &JobPayload, runner: &RunnerSettings) -> Result<String, String> {
    if runner.executor != EXECUTOR {
        return Err(format!("the executor `{}` has none: only `{EXECUTOR}` has", runner.executor));
    }
    if runner.id <= 0 {
        return Err("the runner has no numeric `id` in its configuration".to_owned());
    }
    let protected = protected(payload)
        .ok_or("the server does not say whether the job's ref is protected, so nobody knows whose it is")?;
    Ok(context_name(runner, payload.job_info.project_id, protected))
}

/// Returns the key of the environment that the job with this task key suspended.
pub(crate) fn key(runner: &RunnerSettings, claim: &str) -> String {
    let fields = form_urlencoded::Serializer::new(String::new()).append_pair(NAME, claim).finish();
    format!("{}{fields}", prefix(runner))
}

/// Returns the prefix of all keys of this runner and this manager.
fn prefix(runner: &RunnerSettings) -> String {
    let system: String = form_urlencoded::byte_serialize(runner.system_id.as_bytes()).collect();
    format!("{}/{}/", runner.id, system.replace('+', "%20"))
}

/// Returns the environment that the job resumes. `None` if it does not request one, or the flag is off.
///
/// # Errors
/// The reason why the job cannot resume the environment, for its trace.
pub(crate) fn resumes(payload: &JobPayload, runner: &RunnerSettings) -> Result<Option<ResumeRequest>, String> {
    if !is_resumed(payload, runner) {
        return Ok(None);
    }
    let key = &payload.suspend_options.runtime_environment_key;
    let refused = |why: &str| format!("the job environment is not resumed: {why}");
    let owner = possible(payload, runner).map_err(|why| refused(&why))?;
    let fields = key.strip_prefix(&prefix(runner)).ok_or_else(|| {
        refused("its key is one of another runner, or of another system of this runner, where it may still be")
    })?;
    let name = form_urlencoded::parse(fields.as_bytes()).find(|(field, _)| field == NAME).map(|(_, name)| name);
    let name = name.ok_or_else(|| refused(&format!("its key has no `{NAME}`")))?;
    Ok(Some(ResumeRequest { name: name.into_owned(), owner }))
}

/// Returns whether the job requests to resume the environment of another job.
pub(crate) fn is_resumed(payload: &JobPayload, runner: &RunnerSettings) -> bool {
    !payload.suspend_options.runtime_environment_key.is_empty() && is_on(payload, runner)
}

/// Returns the line of the trace about a resumed environment.
pub(super) fn resumed(payload: &JobPayload, runner: &RunnerSettings) -> Option<String> {
    let key = &payload.suspend_options.runtime_environment_key;
    is_resumed(payload, runner).then(|| format!("Job environment resumed: {key}"))
}

/// Returns whether the job may suspend its environment.
pub(super) fn may_leave(payload: &JobPayload, placement: &Placement) -> bool {
    let leaves = |success| leaves(payload, &placement.runner, success).is_some();
    placement.suspends.is_ok() && (leaves(true) || leaves(false))
}

/// Returns the warnings about requests that have no effect.
pub(super) fn problems(payload: &JobPayload, placement: &Placement) -> Vec<String> {
    let (options, runner) = (&payload.suspend_options, &placement.runner);
    if !is_on(payload, runner) {
        let ignored =
            || format!("runtime_environment_key is ignored, since {FLAG} is off: the job has a new environment");
        return (!options.runtime_environment_key.is_empty()).then(ignored).into_iter().collect();
    }
    if !options.suspend_on_success && !options.suspend_on_failure {
        return Vec::new();
    }
    let why = possible(payload, runner).err().or_else(|| placement.suspends.clone().err());
    why.map(|why| format!("the job environment will not be suspended: {why}")).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use muster_job::Secret;
    use serde_json::json;

    use super::*;

    fn runner() -> RunnerSettings {
        let url = "https://gitlab.example".parse().unwrap();
        let runner = RunnerSettings::new(url, Secret::new("glrt-abc"), 7);
        RunnerSettings { executor: EXECUTOR.to_owned(), system_id: "s_0123 56".to_owned(), ..runner }
    }

    fn payload(options: serde_json::Value) -> JobPayload {
        serde_json::from_value(json!({
            "id": 1, "token": "t", "job_info": { "project_id": 5 }, "git_info": { "protected": true },
            "variables": [{ "key": FLAG, "value": "true" }], "suspend_options": options,
        }))
        .unwrap()
    }

    fn asked(runner: &RunnerSettings, key: &str) -> Result<Option<ResumeRequest>, String> {
        resumes(&payload(json!({ "runtime_environment_key": key })), runner)
    }

    #[test]
    fn a_key_leads_back_to_what_it_was_made_of() {
        let key = key(&runner(), "job-1-ab cd");
        assert_eq!(key, "7/s_0123%2056/acquisition-key=job-1-ab+cd");
        let ResumeRequest { name, owner } = asked(&runner(), &key).unwrap().unwrap();
        assert_eq!(name, "job-1-ab cd");
        assert_eq!(Some(owner), leaves(&payload(json!({ "suspend_on_success": true })), &runner(), true));
    }

    #[test]
    fn a_key_of_another_runner_or_system_or_without_a_name_is_refused() {
        for (key, why) in [
            ("8/s_0123%2056/acquisition-key=a", "of another runner"),
            ("7/s_other/acquisition-key=a", "of another system"),
            ("7/s_0123%2056/", "no `acquisition-key`"),
            ("nonsense", "of another runner"),
        ] {
            let error = asked(&runner(), key).unwrap_err();
            assert!(error.contains(why), "{key}: {error}");
        }
        let none = RunnerSettings { id: 0, ..runner() };
        assert!(asked(&none, "0/s/acquisition-key=a").unwrap_err().contains("no numeric `id`"));
        let shell = RunnerSettings { executor: "shell".to_owned(), ..runner() };
        assert!(asked(&shell, "7/s/acquisition-key=a").unwrap_err().contains("only `instance` has"));
    }

    #[test]
    fn an_environment_is_left_as_asked_and_only_with_the_flag() {
        let of = |options: serde_json::Value, success| leaves(&payload(options), &runner(), success);
        assert!(of(json!({ "suspend_on_success": true }), true).is_some());
        assert!(of(json!({ "suspend_on_success": true }), false).is_none());
        assert!(of(json!({ "suspend_on_failure": true }), false).is_some());
        assert!(of(json!(null), true).is_none());
        let mut off = payload(json!({ "suspend_on_success": true, "runtime_environment_key": "7/s/a" }));
        off.variables.clear();
        assert_eq!((leaves(&off, &runner(), true), resumes(&off, &runner())), (None, Ok(None)));
    }

    #[test]
    fn whose_it_is_depends_on_project_and_protection_and_an_unknown_level_has_none() {
        let options = || payload(json!({ "suspend_on_success": true }));
        let own = leaves(&options(), &runner(), true);
        let (mut other, mut unprotected, mut unknown) = (options(), options(), options());
        other.job_info.project_id = 6;
        unprotected.git_info.protected = Some(false);
        unknown.git_info.protected = None;
        assert_ne!(own, leaves(&other, &runner(), true));
        assert_ne!(own, leaves(&unprotected, &runner(), true));
        assert_eq!(leaves(&unknown, &runner(), true), None);
    }
}
