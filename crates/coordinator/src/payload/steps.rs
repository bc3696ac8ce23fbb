use std::time::Duration;

use muster_pipeline::model::ScriptWork;
use muster_runner_api::payload::{Hook, Step};

use super::{release, seconds};

/// Returns the steps of a job: `before_script` with `script`, then the release, then `after_script`. Empty if the job has `run:`.
pub(super) fn steps(work: &ScriptWork, timeout: Duration) -> Vec<Step> {
    if work.run.is_some() {
        return Vec::new();
    }
    let timeout = seconds(timeout);
    let step = |name: &str, script: Vec<String>| Step {
        name: name.to_owned(),
        script,
        timeout,
        when: "on_success".to_owned(),
        allow_failure: false,
    };
    let mut steps = vec![step("script", work.before_script.iter().chain(&work.script).cloned().collect())];
    if let Some(release) = &work.release {
        steps.push(step("release", release::script(release)));
    }
    if !work.after_script.is_empty() {
        steps.push(Step {
            when: "always".to_owned(),
            allow_failure: true,
            ..step("after_script", work.after_script.clone())
        });
    }
    steps
}

pub(super) fn hooks(work: &ScriptWork) -> Vec<Hook> {
    if work.pre_get_sources_script.is_empty() {
        return Vec::new();
    }
    vec![Hook { name: "pre_get_sources_script".to_owned(), script: work.pre_get_sources_script.clone() }]
}
