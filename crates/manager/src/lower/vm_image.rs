//! The image of a job's virtual machine.

use globset::GlobBuilder;
use muster_executor::VmImage;
use muster_job::Variable;
use muster_runner_api::payload::JobPayload;

use muster_config::settings::RunnerSettings;
use muster_job::expand_within;

/// Maximum length of an image's name, and of each value that it refers to.
const MAX_NAME_BYTES: usize = 4096;

/// Returns the image of the virtual machine in which the job runs: the job's own, or the runner's.
///
/// # Errors
/// The reason why there is no image, or the runner does not allow it, for the job's trace.
pub(super) fn vm_image(payload: &JobPayload, runner: &RunnerSettings) -> Result<VmImage, String> {
    let on = &runner.on_instances;
    let own = payload.image.as_ref().map(|image| image.name.as_str()).filter(|name| !name.trim().is_empty());
    let name = put_in(own.unwrap_or(&on.image), payload, runner)
        .ok_or_else(|| format!("the name of the VM image is longer than {MAX_NAME_BYTES} bytes"))?;
    let name = name.trim().to_owned();
    if name.is_empty() {
        return Err("no nesting VM image specified to run the job in: set `image` in the job, or in \
                    [runners.autoscaler.vm_isolation]"
            .to_owned());
    }
    // The expanded name is checked. gitlab-runner checks the name with its references, which no pattern can match.
    let allows = |pattern: &String| {
        let glob = GlobBuilder::new(pattern).literal_separator(true).backslash_escape(true).build();
        glob.is_ok_and(|glob| glob.compile_matcher().is_match(&name))
    };
    if own.is_some() && !on.allowed_images.is_empty() && !on.allowed_images.iter().any(allows) {
        let allowed = on.allowed_images.join(", ");
        return Err(format!(
            "disallowed image: {name:?} is not present on list of allowed images ({allowed}), which is allowed_images in \
             [runners.instance]"
        ));
    }
    Ok(VmImage { name, is_of_job: own.is_some() })
}

/// Expands the job's and the runner's variables in a text, also inside of their values. `None` if the result is too long.
fn put_in(text: &str, payload: &JobPayload, runner: &RunnerSettings) -> Option<String> {
    let of =
        |all: &[Variable], name: &str| all.iter().rfind(|known| known.key == name).map(|known| known.value.clone());
    let written =
        |name: &str| of(&payload.variables, name).or_else(|| of(&runner.environment, name)).unwrap_or_default();
    let within = |text: &str, lookup: &dyn Fn(&str) -> String| {
        (text.len() <= MAX_NAME_BYTES).then(|| expand_within(text, MAX_NAME_BYTES, lookup)).flatten()
    };
    // A value that is too long makes the result too long.
    let too_long = || " ".repeat(MAX_NAME_BYTES + 1);
    within(text, &|name| within(&written(name), &written).unwrap_or_else(too_long))
}
