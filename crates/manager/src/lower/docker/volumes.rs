//! Volumes of a job's containers, and the directories that must exist in them (docs/spec/job-execution.md, section 5.6).

use muster_agent_api::builtin::DockerVolume;
use muster_config::settings::DockerSettings;
use muster_job::is_below;
use muster_runner_api::payload::JobPayload;

use super::super::paths::Paths;
use super::super::variables::Variables;
use super::super::{LowerError, paths, protection};
use super::names::{Names, label};

pub(super) struct Volumes<'a> {
    docker: &'a DockerSettings,
    names: &'a Names,
    is_protected: bool,
    list: Vec<DockerVolume>,
}

impl<'a> Volumes<'a> {
    pub(super) fn new(
        payload: &JobPayload,
        docker: &'a DockerSettings,
        names: &'a Names,
        variables: &Variables,
    ) -> Self {
        let is_protected =
            protection::of_volumes(payload, payload.cache.iter().map(|cache| variables.expand(&cache.key)));
        Self { docker, names, is_protected, list: Vec::new() }
    }

    /// Relative paths are below the project directory.
    pub(super) fn add_configured(&mut self, paths: &Paths, variables: &Variables) -> Result<(), LowerError> {
        for entry in &self.docker.volumes {
            let invalid = |reason: &str| {
                LowerError::configuration(format!(
                    "volumes of [runners.docker]: `{entry}` is not a valid volume: {reason}"
                ))
            };
            let (source, destination, mode) =
                split_volume(entry).ok_or_else(|| invalid("write PATH, SOURCE:PATH or SOURCE:PATH:MODE"))?;
            let destination = absolute(&variables.expand(destination), &paths.project_dir);
            if destination == "/" {
                return Err(invalid("the root directory cannot be a volume"));
            }
            if self.has(&destination) {
                return Err(invalid(&format!("another entry has the path {destination}")));
            }
            match source {
                Some(source) => self.list.push(DockerVolume {
                    source: source.to_owned(),
                    destination,
                    mode: mode.to_owned(),
                    ..DockerVolume::default()
                }),
                None => self.add_own_volume(&destination, !self.docker.disable_cache),
            }
        }
        Ok(())
    }

    /// Adds a volume for checkouts, unless one is configured.
    ///
    /// Later jobs reuse the volume if the job's Git strategy is `fetch` and `disable_cache` is not set.
    pub(super) fn add_builds(&mut self, builds_dir: &str, strategy_is_fetch: bool) {
        if !self.has(builds_dir) && !self.is_on_host(builds_dir) {
            self.add_own_volume(builds_dir, strategy_is_fetch && !self.docker.disable_cache);
        }
    }

    /// Adds a volume for caches, unless one is configured. The volume is removed with the job.
    pub(super) fn add_caches(&mut self, cache_dir: &str) {
        let is_covered = self.list.iter().any(|volume| is_below(cache_dir, &volume.destination));
        if !is_covered {
            self.add_own_volume(cache_dir, false);
        }
    }

    /// Adds a volume whose source Muster chooses.
    fn add_own_volume(&mut self, destination: &str, is_reusable: bool) {
        let hash = format!("{:x}", md5::compute(destination));
        let suffix = if self.is_protected { "-protected" } else { "" };
        let docker = self.docker;
        if is_reusable && !docker.cache_dir.is_empty() {
            let (base, owner) = (docker.cache_dir.trim_end_matches('/'), &self.names.volumes);
            let source = format!("{base}/{owner}/{hash}{suffix}");
            self.list.push(DockerVolume { source, destination: destination.to_owned(), ..DockerVolume::default() });
            return;
        }
        let prefix = if is_reusable { &self.names.volumes } else { &self.names.job };
        let labels = [
            ("type", "cache".to_owned()),
            ("destination", destination.to_owned()),
            ("protected", self.is_protected.to_string()),
            ("reusable", is_reusable.to_string()),
        ];
        self.list.push(DockerVolume {
            source: format!("{prefix}-cache-{hash}{suffix}"),
            destination: destination.to_owned(),
            mode: String::new(),
            temporary: !is_reusable,
            labels: labels.map(|(name, value)| (label(name), value)).into(),
            driver: docker.volume_driver.clone(),
            driver_options: docker.volume_driver_ops.clone(),
        });
    }

    fn has(&self, destination: &str) -> bool {
        self.list.iter().any(|volume| volume.destination == destination)
    }

    /// Returns whether a directory is at or below a bind mount from the engine's machine.
    fn is_on_host(&self, directory: &str) -> bool {
        self.list.iter().any(|volume| volume.source.starts_with('/') && is_below(directory, &volume.destination))
    }

    /// Returns the directories that must exist and be writable for every user.
    ///
    /// Directories above a bind mount keep their permissions.
    pub(super) fn directories(&self, paths: &Paths, cache_dir: Option<&str>) -> Vec<String> {
        let of_checkout = chain(&paths.builds_dir, &paths.project_dir).chain([paths.temp_dir.clone()]);
        let of_cache = cache_dir.map(|directory| chain(directory, &paths.cache_dir)).into_iter().flatten();
        self.without_mounts(of_checkout.chain(of_cache)).collect()
    }

    /// Returns the directories that must belong to the job's user, with everything in them.
    pub(super) fn owned(&self, paths: &Paths, cache_dir: Option<&str>) -> Vec<String> {
        let of_job = [paths.project_dir.clone(), paths.temp_dir.clone()];
        let of_cache = self.without_mounts(cache_dir.map(|_| paths.cache_dir.clone()).into_iter());
        of_job.into_iter().chain(of_cache).collect()
    }

    /// Returns the directories in which nothing of the engine's machine is mounted.
    fn without_mounts(&self, directories: impl Iterator<Item = String>) -> impl Iterator<Item = String> {
        let holds_mount = move |directory: &str| {
            let on_host = self.list.iter().filter(|volume| volume.source.starts_with('/'));
            on_host.map(|volume| &volume.destination).any(|mounted| is_below(mounted, directory))
        };
        directories.filter(move |directory| !holds_mount(directory))
    }

    pub(super) fn into_list(self) -> Vec<DockerVolume> {
        self.list
    }
}

/// Returns whether something is mounted at or above `directory`, so that all slots share it.
pub(in super::super) fn is_shared(docker: &DockerSettings, directory: &str) -> bool {
    let mounts = docker.volumes.iter().filter_map(|entry| split_volume(entry));
    mounts.filter(|(source, ..)| source.is_some()).any(|(_, destination, _)| {
        paths::clean(destination).is_some_and(|destination| is_below(directory, &destination))
    })
}

/// Returns source, path and mode. `None` means that the entry is invalid.
fn split_volume(entry: &str) -> Option<(Option<&str>, &str, &str)> {
    let parts: Vec<&str> = entry.split(':').collect();
    let (source, destination, mode) = match parts.as_slice() {
        [destination] => (None, *destination, ""),
        [source, destination] => (Some(*source), *destination, ""),
        [source, destination, mode] => (Some(*source), *destination, *mode),
        _ => return None,
    };
    (!destination.is_empty() && source.is_none_or(|source| !source.is_empty())).then_some((source, destination, mode))
}

fn absolute(path: &str, base: &str) -> String {
    let path = if path.starts_with('/') { path.to_owned() } else { format!("{base}/{path}") };
    paths::clean(&path).unwrap_or(path)
}

/// Returns `base`, `path`, and all directories between them.
fn chain(base: &str, path: &str) -> impl Iterator<Item = String> {
    let rest = path.strip_prefix(base).unwrap_or_default().trim_matches('/');
    let mut directory = base.to_owned();
    let below: Vec<String> = rest
        .split('/')
        .filter(|segment| !segment.is_empty())
        .map(|segment| {
            directory = format!("{}/{segment}", directory.trim_end_matches('/'));
            directory.clone()
        })
        .collect();
    std::iter::once(base.to_owned()).chain(below)
}
