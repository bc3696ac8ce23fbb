//! Rejects jobs that use an unsupported feature, because without the feature the job could do something unintended.

use muster_runner_api::payload::{Image, JobPayload};

use super::LowerError;

/// Executors, and their supported options in a payload.
const EXECUTOR_OPTIONS: [(&str, &[&str]); 2] = [("docker", &["platform", "user"]), ("kubernetes", &["user"])];

pub(super) fn check(payload: &JobPayload) -> Result<(), LowerError> {
    for (image, section) in
        payload.image.iter().map(|image| (image, "image")).chain(payload.services.iter().map(|s| (s, "services")))
    {
        check_executor_options(image, section)?;
    }
    Ok(())
}

fn check_executor_options(image: &Image, section: &str) -> Result<(), LowerError> {
    for (executor, options) in &image.executor_opts {
        let known = EXECUTOR_OPTIONS.iter().find(|(name, _)| name == executor).map_or(&[][..], |(_, known)| *known);
        let unknown: Vec<&str> = options.keys().map(String::as_str).filter(|key| !known.contains(key)).collect();
        if known.is_empty() || !unknown.is_empty() {
            return Err(LowerError::unsupported(format!(
                "`{section}` has unsupported `{executor}` options {unknown:?}; use only `platform` and `user` of `docker`, and \
                 `user` of `kubernetes`"
            )));
        }
    }
    Ok(())
}
