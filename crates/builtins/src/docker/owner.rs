//! Gives a job's directories to the user of the build container. The images of a project's jobs can have different
//! users.

use bollard::Docker;
use muster_agent_api::builtin::DockerContainer;
use muster_agent_api::container::{ADOPT, EXECUTABLE};
use muster_steps::failure::Failure;
use muster_steps::log::Log;
use muster_steps::style;

use super::images::ResolvedImage;
use super::{create, exec, print};

/// User and group ID of root, which need no names in the image.
const ROOT: &str = "0:0";

/// Makes the job's directories usable for a user other than root.
///
/// A failure is only a warning, because the user may already own them.
pub(super) async fn adopt(
    engine: &Docker,
    job: &DockerContainer,
    container: &str,
    image: &ResolvedImage,
    log: &dyn Log,
) -> Result<(), Failure> {
    if runs_as_root(job, image) {
        return Ok(());
    }
    let owned = &job.owned;
    let shared = job.directories.iter().filter(|directory| !owned.contains(directory)).cloned();
    let command = [EXECUTABLE].into_iter().chain(ADOPT).map(str::to_owned);
    // gitlab-runner also makes these volumes writable for all users (docs/spec/job-execution.md, section 5.6). The
    // agent does so only if the volume still has its original owner and mode.
    let volumes = job.volumes.iter().filter(|volume| create::is_named(volume) && !volume.labels.is_empty());
    let command = command.chain(volumes.map(|volume| format!("--volume={}", volume.destination)));
    let command = command.chain(owned.iter().map(|directory| format!("--own={directory}"))).chain(["--".to_owned()]);
    let problem = match exec::run(engine, container, ROOT, command.chain(shared).collect()).await {
        Ok(finished) if finished.succeeded => return Ok(()),
        Ok(finished) => String::from_utf8_lossy(&finished.output).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    print(
        log,
        &style::warning(&format!("failed to give the job's directories to the user of the container: {problem}")),
    );
    Ok(())
}

pub(super) fn runs_as_root(job: &DockerContainer, image: &ResolvedImage) -> bool {
    let of_image = image.inspect.config.as_ref().and_then(|config| config.user.as_deref()).unwrap_or_default();
    is_root(if job.build.user.is_empty() { of_image } else { &job.build.user })
}

fn is_root(user: &str) -> bool {
    let name = user.split(':').next().unwrap_or_default();
    matches!(name, "" | "root") || name.parse() == Ok(0_u32)
}
