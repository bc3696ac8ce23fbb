//! The image of a job's virtual machine.

use muster_executor::VmImage;
use muster_job::Variable;
use muster_runner_api::payload::JobPayload;

use muster_config::settings::RunnerSettings;
use muster_job::expand_within;

use super::matches_pattern;

/// Maximum length of the name, and of each value that it refers to.
const MAX_NAME_BYTES: usize = 4096;

/// Returns the job's own image, or the runner's. The error is for the job's trace.
pub(super) fn vm_image(payload: &JobPayload, runner: &RunnerSettings) -> Result<VmImage, String> {
    let settings = &runner.on_instances;
    // If the job runs in a container, its `image` is the image of the container, not of the virtual machine.
    let job_image = payload.image.as_ref().map(|image| image.name.as_str());
    let job_image = job_image.filter(|name| !name.trim().is_empty() && !runner.uses_containers());
    let name = expand_name(job_image.unwrap_or(&settings.image), payload, runner)
        .ok_or_else(|| format!("the name of the VM image is longer than {MAX_NAME_BYTES} bytes"))?;
    let name = name.trim().to_owned();
    if name.is_empty() {
        return Err("no nesting VM image specified to run the job in: set `image` in the job, or in \
                    [runners.autoscaler.vm_isolation]"
            .to_owned());
    }
    // Unlike gitlab-runner, checks the expanded name.
    let allows = |pattern: &String| matches_pattern(pattern, &name);
    if job_image.is_some() && !settings.allowed_images.is_empty() && !settings.allowed_images.iter().any(allows) {
        let allowed = settings.allowed_images.join(", ");
        return Err(format!(
            "disallowed image: {name:?} is not present on list of allowed images ({allowed}), which is allowed_images in \
             [runners.instance]"
        ));
    }
    Ok(VmImage { name, is_of_job: job_image.is_some() })
}

/// Expands the variables in `text`. The variables in their values are expanded first. `None` means that the result is
/// too long.
fn expand_name(text: &str, payload: &JobPayload, runner: &RunnerSettings) -> Option<String> {
    let find =
        |all: &[Variable], name: &str| all.iter().rfind(|known| known.key == name).map(|known| known.value.clone());
    let raw_value =
        |name: &str| find(&payload.variables, name).or_else(|| find(&runner.environment, name)).unwrap_or_default();
    let expand_bounded = |text: &str, lookup: &dyn Fn(&str) -> String| {
        (text.len() <= MAX_NAME_BYTES).then(|| expand_within(text, MAX_NAME_BYTES, lookup)).flatten()
    };
    // A value that is too long makes the result too long.
    let too_long = || " ".repeat(MAX_NAME_BYTES + 1);
    expand_bounded(text, &|name| expand_bounded(&raw_value(name), &raw_value).unwrap_or_else(too_long))
}
