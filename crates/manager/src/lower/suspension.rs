//! Environments that a job suspends for later jobs (`FF_SUSPENDABLE_ENVIRONMENTS`).
//!
//! An environment has the key `<runner id>/<system id>/<fields>`. Knowing the key does not authorize a job to resume
//! the environment: the scaler's ledger records who owns it.

use muster_config::settings::RunnerSettings;
use muster_executor::ResumeRequest;
use muster_runner_api::payload::JobPayload;
use url::form_urlencoded;

use super::JobContext;
use super::flags::Flags;
use super::protection;
use super::share::sharing_group_name;

const FLAG: &str = "FF_SUSPENDABLE_ENVIRONMENTS";
/// Field of a key whose value is the name of the environment.
const NAME_FIELD: &str = "acquisition-key";
const EXECUTOR: &str = "instance";

fn is_flag_on(payload: &JobPayload, runner: &RunnerSettings) -> bool {
    Flags::resolve(payload, runner).is_on(FLAG)
}

/// `None` means that the job suspends no environment. `success` is the result of the job.
pub(crate) fn suspend_owner(payload: &JobPayload, runner: &RunnerSettings, success: bool) -> Option<String> {
    let options = &payload.suspend_options;
    let is_requested = if success { options.suspend_on_success } else { options.suspend_on_failure };
    if !is_requested || !is_flag_on(payload, runner) {
        return None;
    }
    owner(payload, runner).ok()
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SuspendUnsupported {
    /// The executor is not `instance`.
    #[error("the executor `{0}` cannot suspend or resume environments, only `{EXECUTOR}` can")]
    Executor(String),
    /// Keys of environments contain the runner's ID.
    #[error("the runner has no numeric `id` in its configuration")]
    RunnerId,
    /// The owner of an environment depends on the protection level.
    #[error("the coordinator does not report whether the job's ref is protected")]
    Protection,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ResumeRefused {
    #[error("failed to resume the job environment: {0}")]
    Unsupported(SuspendUnsupported),
    /// Another runner or manager created the key.
    #[error("failed to resume the job environment: its key is from another runner or another system of this runner")]
    OtherRunner,
    /// The key does not name an environment.
    #[error("failed to resume the job environment: its key has no `{NAME_FIELD}`")]
    NoName,
}

/// Returns the owner for the job's project and protection level.
fn owner(payload: &JobPayload, runner: &RunnerSettings) -> Result<String, SuspendUnsupported> {
    if runner.executor != EXECUTOR {
        return Err(SuspendUnsupported::Executor(runner.executor.clone()));
    }
    if runner.id <= 0 {
        return Err(SuspendUnsupported::RunnerId);
    }
    let protected = protection::of_ref(payload).ok_or(SuspendUnsupported::Protection)?;
    Ok(sharing_group_name(runner, payload.job_info.project_id, protected))
}

/// Returns the key of the environment that the job suspended.
pub(crate) fn key(runner: &RunnerSettings, task_key: &str) -> String {
    let fields = form_urlencoded::Serializer::new(String::new()).append_pair(NAME_FIELD, task_key).finish();
    format!("{}{fields}", prefix(runner))
}

/// Returns the prefix of all keys of this runner and manager.
fn prefix(runner: &RunnerSettings) -> String {
    let system: String = form_urlencoded::byte_serialize(runner.system_id.as_bytes()).collect();
    format!("{}/{}/", runner.id, system.replace('+', "%20"))
}

/// `None` means that the job requests no environment, or the flag is off.
pub(crate) fn resume_request(
    payload: &JobPayload,
    runner: &RunnerSettings,
) -> Result<Option<ResumeRequest>, ResumeRefused> {
    if !resumes_environment(payload, runner) {
        return Ok(None);
    }
    let key = &payload.suspend_options.runtime_environment_key;
    let owner = owner(payload, runner).map_err(ResumeRefused::Unsupported)?;
    let fields = key.strip_prefix(&prefix(runner)).ok_or(ResumeRefused::OtherRunner)?;
    let name = form_urlencoded::parse(fields.as_bytes()).find(|(field, _)| field == NAME_FIELD).map(|(_, name)| name);
    let name = name.ok_or(ResumeRefused::NoName)?;
    Ok(Some(ResumeRequest { name: name.into_owned(), owner }))
}

/// Returns whether the job resumes another job's environment.
pub(crate) fn resumes_environment(payload: &JobPayload, runner: &RunnerSettings) -> bool {
    !payload.suspend_options.runtime_environment_key.is_empty() && is_flag_on(payload, runner)
}

pub(super) fn resumed_line(payload: &JobPayload, runner: &RunnerSettings) -> Option<String> {
    let key = &payload.suspend_options.runtime_environment_key;
    resumes_environment(payload, runner).then(|| format!("Job environment resumed: {key}"))
}

pub(super) fn can_suspend(payload: &JobPayload, context: &JobContext) -> bool {
    let suspends = |success| suspend_owner(payload, &context.runner, success).is_some();
    context.suspend_support.is_ok() && (suspends(true) || suspends(false))
}

/// Returns warnings about requests without effect.
pub(super) fn problems(payload: &JobPayload, context: &JobContext) -> Vec<String> {
    let (options, runner) = (&payload.suspend_options, &context.runner);
    if !is_flag_on(payload, runner) {
        let ignored =
            || format!("runtime_environment_key is ignored because {FLAG} is off; the job gets a new environment");
        return (!options.runtime_environment_key.is_empty()).then(ignored).into_iter().collect();
    }
    if !options.suspend_on_success && !options.suspend_on_failure {
        return Vec::new();
    }
    let unsupported = owner(payload, runner).err().map(|error| error.to_string());
    let reason = unsupported.or_else(|| context.suspend_support.clone().err());
    reason.map(|reason| format!("the job environment will not be suspended: {reason}")).into_iter().collect()
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

    fn request(runner: &RunnerSettings, key: &str) -> Result<Option<ResumeRequest>, ResumeRefused> {
        resume_request(&payload(json!({ "runtime_environment_key": key })), runner)
    }

    #[test]
    fn resuming_job_with_key_gets_name_and_owner() {
        let key = key(&runner(), "job-1-ab cd");
        assert_eq!(key, "7/s_0123%2056/acquisition-key=job-1-ab+cd");
        let ResumeRequest { name, owner } = request(&runner(), &key).unwrap().unwrap();
        assert_eq!(name, "job-1-ab cd");
        assert_eq!(Some(owner), suspend_owner(&payload(json!({ "suspend_on_success": true })), &runner(), true));
    }

    #[test]
    fn key_of_other_runner_or_without_name_is_refused() {
        for (key, expected) in [
            ("8/s_0123%2056/acquisition-key=a", ResumeRefused::OtherRunner),
            ("7/s_other/acquisition-key=a", ResumeRefused::OtherRunner),
            ("7/s_0123%2056/", ResumeRefused::NoName),
            ("nonsense", ResumeRefused::OtherRunner),
        ] {
            assert_eq!(request(&runner(), key), Err(expected), "{key}");
        }
        let without_id = RunnerSettings { id: 0, ..runner() };
        let refused = |reason| Err(ResumeRefused::Unsupported(reason));
        assert_eq!(request(&without_id, "0/s/acquisition-key=a"), refused(SuspendUnsupported::RunnerId));
        let shell = RunnerSettings { executor: "shell".to_owned(), ..runner() };
        assert_eq!(request(&shell, "7/s/acquisition-key=a"), refused(SuspendUnsupported::Executor("shell".to_owned())));
    }

    #[test]
    fn environment_is_suspended_as_requested_if_flag_is_on() {
        let owner_of = |options: serde_json::Value, success| suspend_owner(&payload(options), &runner(), success);
        assert!(owner_of(json!({ "suspend_on_success": true }), true).is_some());
        assert!(owner_of(json!({ "suspend_on_success": true }), false).is_none());
        assert!(owner_of(json!({ "suspend_on_failure": true }), false).is_some());
        assert!(owner_of(json!(null), true).is_none());
        let mut flag_off = payload(json!({ "suspend_on_success": true, "runtime_environment_key": "7/s/a" }));
        flag_off.variables.clear();
        assert_eq!((suspend_owner(&flag_off, &runner(), true), resume_request(&flag_off, &runner())), (None, Ok(None)));
    }

    #[test]
    fn owner_depends_on_project_and_protection_level() {
        let options = || payload(json!({ "suspend_on_success": true }));
        let own = suspend_owner(&options(), &runner(), true);
        let (mut other, mut unprotected, mut unknown) = (options(), options(), options());
        other.job_info.project_id = 6;
        unprotected.git_info.protected = Some(false);
        unknown.git_info.protected = None;
        assert_ne!(own, suspend_owner(&other, &runner(), true));
        assert_ne!(own, suspend_owner(&unprotected, &runner(), true));
        assert_eq!(suspend_owner(&unknown, &runner(), true), None);
    }
}
