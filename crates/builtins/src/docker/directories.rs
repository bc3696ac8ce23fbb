//! Creates directories in the build container that every user can write to.
//!
//! If possible, the agent in the container creates them. Otherwise, they are sent to the engine as an archive, which
//! needs no running container.

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use bollard::Docker;
use bollard::query_parameters::UploadToContainerOptions;
use muster_agent_api::builtin::{ContainerSpec, DockerContainer};
use muster_agent_api::container::{EXECUTABLE, RUN_DIR};
use muster_job::is_below;
use muster_steps::failure::Failure;

use super::engine::failed;
use super::images::ResolvedImage;
use super::{create, owner};

/// Mode of the directories of a job, as in gitlab-runner.
const MODE: u32 = 0o777;
/// Mode of the directory with the agent's files.
const RUN_DIR_MODE: u32 = 0o1777;

/// Returns the name of the container through which directories are created if the build container is read-only.
pub(super) fn setup_name(job: &DockerContainer) -> String {
    format!("{}-setup", job.build.name)
}

/// Returns the directories that the agent in the build container can create, which is faster than a call of the engine.
///
/// `None` means that the agent cannot create them, for example because it is not root.
pub(super) fn directories_for_agent(job: &DockerContainer, image: &ResolvedImage) -> Option<Vec<String>> {
    if has_entrypoint(job, image) || is_read_only(job) || !owner::runs_as_root(job, image) {
        return None;
    }
    let paths: Vec<_> = writable(job).into_iter().map(|(path, _)| path).filter(|path| path != RUN_DIR).collect();
    // The paths are passed as lines of one variable, so no path may contain a line break.
    paths.iter().all(|path| !path.contains('\n')).then_some(paths)
}

/// Returns whether another program than the agent starts first.
pub(super) fn has_entrypoint(job: &DockerContainer, image: &ResolvedImage) -> bool {
    let of_image = image.inspect.config.as_ref().and_then(|config| config.entrypoint.clone()).unwrap_or_default();
    let entrypoint = job.build.entrypoint.as_ref().unwrap_or(&of_image);
    entrypoint.iter().any(|word| !word.is_empty())
}

pub(super) fn is_read_only(job: &DockerContainer) -> bool {
    job.build.host_config.get("ReadonlyRootfs").and_then(serde_json::Value::as_bool) == Some(true)
}

/// Creates the directories in the build container before it starts.
pub(super) async fn create(engine: &Docker, job: &DockerContainer, build: &str, image: &str) -> Result<(), Failure> {
    let archive = archive(&writable(job)).map_err(Failure::io("failed to describe the directories of the job"))?;
    let setup = if is_read_only(job) { Some(create_setup(engine, job, image).await?) } else { None };
    let options = UploadToContainerOptions { path: "/".to_owned(), ..Default::default() };
    let container = setup.as_deref().unwrap_or(build);
    let sent = engine.upload_to_container(container, Some(options), bollard::body_full(archive.into())).await;
    sent.map_err(failed("failed to create the directories of the job"))
}

/// Creates a container with the volumes of the build container and a writable root directory.
async fn create_setup(engine: &Docker, job: &DockerContainer, image: &str) -> Result<String, Failure> {
    let mut spec = ContainerSpec { name: setup_name(job), ..job.build.clone() };
    spec.host_config.remove("ReadonlyRootfs");
    let mut body = create::body(job, &spec, image)?;
    // Some images have no command, which the engine requires.
    body.cmd = Some(vec![EXECUTABLE.to_owned()]);
    if let Some(settings) = &mut body.host_config {
        settings.binds.get_or_insert_default().push(format!("{}:{RUN_DIR}", create::run_volume_name(job)));
    }
    create::container(engine, &spec, body).await
}

/// Returns the directories to create or make writable, with their modes.
///
/// For a directory in a volume, this is the root of the volume, because the engine would follow links that jobs put
/// below it. Directories that are mounted from the engine's machine are excluded.
pub(super) fn writable(job: &DockerContainer) -> Vec<(String, u32)> {
    let mut found = vec![(RUN_DIR.to_owned(), RUN_DIR_MODE)];
    for directory in &job.directories {
        let volumes = job.volumes.iter().filter(|volume| is_below(directory, &volume.destination));
        let path = match volumes.max_by_key(|volume| volume.destination.len()) {
            Some(volume) if volume.source.starts_with('/') => continue,
            Some(volume) => &volume.destination,
            None => directory,
        };
        if !found.iter().any(|(known, _)| known == path) {
            found.push((path.clone(), MODE));
        }
    }
    found
}

fn archive(directories: &[(String, u32)]) -> io::Result<Vec<u8>> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let mut builder = tar::Builder::new(Vec::new());
    for (path, mode) in directories {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Directory);
        header.set_mode(*mode);
        header.set_size(0);
        header.set_mtime(now);
        builder.append_data(&mut header, format!("{}/", path.trim_matches('/')), io::empty())?;
    }
    builder.into_inner()
}

#[cfg(test)]
mod tests {
    use muster_agent_api::builtin::DockerVolume;

    use super::*;

    #[test]
    fn only_roots_of_volumes_and_directories_outside_of_volumes_become_writable() {
        let volume = |source: &str, destination: &str| DockerVolume {
            source: source.to_owned(),
            destination: destination.to_owned(),
            ..DockerVolume::default()
        };
        let job = DockerContainer {
            volumes: vec![volume("named", "/builds"), volume("/srv/cache", "/cache"), volume("", "/builds/inner/")],
            directories: ["/builds/group", "/builds/other", "/cache/x", "/builds/inner/y", "/buildsx", "/tmp/a b"]
                .map(str::to_owned)
                .to_vec(),
            ..DockerContainer::default()
        };
        let expected = [
            (RUN_DIR, 0o1777),
            ("/builds", 0o777),
            ("/builds/inner/", 0o777),
            ("/buildsx", 0o777),
            ("/tmp/a b", 0o777),
        ];
        assert_eq!(writable(&job), expected.map(|(path, mode)| (path.to_owned(), mode)));
    }
}
