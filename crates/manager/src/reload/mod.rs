//! Live reload of `config.toml`.
//!
//! The content is checked every [`POLL_INTERVAL`]. Unlike in gitlab-runner, a replacement with an older modification
//! time is noticed. Check C034 reports this.
//!
//! An invalid or missing file is reported once and changes nothing. gitlab-runner drops all runners if the file is missing.

mod changes;
mod stamp;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use changes::Changes;
use muster_config::runtime::change_without_time;
use muster_config::settings::Settings;
use muster_config::{self, Config, HostFacts, Loaded, Problem, SettingsContext};
use stamp::{Digest, Stamp};

/// Time between two checks of the file. File system events would miss changes on network file systems, and replaced
/// links.
pub const POLL_INTERVAL: Duration = Duration::from_secs(3);
/// Time between two checks of a file that is being written.
const STABLE_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Number of checks after which an unstable file is read anyway.
const MAX_STABLE_POLLS: u32 = 20;

/// Result of a check.
#[derive(Debug)]
pub enum Reload {
    /// The file is valid.
    Applied {
        /// Settings to use from now on.
        settings: Box<Settings>,
        /// Warnings about the file, including changes that need a restart.
        problems: Vec<Problem>,
        /// Differences from the previous configuration, one phrase each, without secrets.
        changes: Vec<String>,
    },
    /// The file is invalid. The previous configuration remains in effect.
    Invalid {
        /// Problems of the file.
        problems: Vec<Problem>,
    },
    /// The file does not exist. The previous configuration remains in effect.
    Missing,
}

impl Reload {
    fn with_problem(mut self, problem: Option<Problem>) -> Self {
        if let Self::Applied { problems, .. } | Self::Invalid { problems } = &mut self {
            problems.extend(problem);
        }
        self
    }
}

/// A configuration file that is watched for changes.
#[derive(Debug)]
pub struct ConfigWatch {
    path: PathBuf,
    context: SettingsContext,
    /// `None` if the file was never valid.
    current: Option<Config>,
    stamp: Option<Stamp>,
    digest: Option<Digest>,
    /// Files with step policies, and the stamp that each file had when the configuration was read.
    policies: Vec<(PathBuf, Option<Stamp>)>,
}

impl ConfigWatch {
    /// Reads the file for the first time. The result also describes a missing or invalid file.
    #[must_use]
    pub fn start(path: PathBuf, context: SettingsContext) -> (Self, Loaded) {
        let mut watch = Self { path, context, current: None, stamp: None, digest: None, policies: Vec::new() };
        watch.stamp = Stamp::read(&watch.path);
        watch.digest = stamp::digest(&watch.path);
        let loaded = muster_config::load(&watch.path, &watch.facts());
        watch.current = loaded.config.clone();
        watch.policies = policy_stamps(watch.current.as_ref());
        (watch, loaded)
    }

    /// Returns the settings in effect, or the default settings if the file was never valid.
    #[must_use]
    pub fn settings(&self) -> Settings {
        self.current.as_ref().map(|config| muster_config::settings(config, &self.context)).unwrap_or_default()
    }

    /// Waits until the content of the file changes, or the metadata of one of its step policies. Cancel-safe.
    pub async fn changed(&mut self) -> Reload {
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            let stamp = Stamp::read(&self.path);
            if stamp == self.stamp {
                let policies = policy_stamps(self.current.as_ref());
                if stamp.is_some() && self.policies != policies {
                    // Stored even if the configuration is invalid, so that it is reported once. If a policy is still being
                    // written, a later check notices the rest.
                    self.policies = policies;
                    let digest = stamp::digest(&self.path);
                    return self.read(digest);
                }
                continue;
            }
            let Some(stamp) = self.wait_until_stable(stamp).await else {
                self.stamp = None;
                return Reload::Missing;
            };
            let digest = stamp::digest(&self.path);
            let content_changed = digest != self.digest;
            let old = self.stamp.replace(stamp);
            if content_changed {
                let time_advanced = old.is_none_or(|old| stamp.is_newer_than(old));
                // Check C034: the content changed, but the modification time did not advance.
                let problem = change_without_time(content_changed, time_advanced);
                return self.read(digest).with_problem(problem);
            }
        }
    }

    /// Reads the file even if it has not changed, for SIGHUP.
    pub fn reload(&mut self) -> Reload {
        self.stamp = Stamp::read(&self.path);
        if self.stamp.is_none() {
            return Reload::Missing;
        }
        let digest = stamp::digest(&self.path);
        self.read(digest)
    }

    /// `None` means that the file does not exist.
    async fn wait_until_stable(&self, mut stamp: Option<Stamp>) -> Option<Stamp> {
        for _ in 0..MAX_STABLE_POLLS {
            tokio::time::sleep(STABLE_POLL_INTERVAL).await;
            let newer = Stamp::read(&self.path);
            if newer == stamp {
                break;
            }
            stamp = newer;
        }
        stamp
    }

    fn facts(&self) -> HostFacts {
        let job_user = self.context.user.clone().filter(|user| !user.is_empty());
        HostFacts { job_user, find_plugin: self.context.find_plugin, ..HostFacts::of(&self.path) }
    }

    /// Reads the file. The caller must have computed `digest` before this call: if the file changes in between, a later
    /// check then notices the change.
    fn read(&mut self, digest: Option<Digest>) -> Reload {
        let Loaded { config, mut problems } = muster_config::load(&self.path, &self.facts());
        self.digest = digest;
        let Some(config) = config else { return Reload::Invalid { problems } };
        let Changes { descriptions, restart } = match &self.current {
            Some(old) => changes::between(old, &config),
            None => Changes::default(),
        };
        problems.extend(restart.into_iter().map(|key| Problem::new("C035", format!("{key} changed; restart needed"))));
        // The stamps are read before `settings` reads the policies: if a policy changes in between, a later check then
        // notices the change.
        self.policies = policy_stamps(Some(&config));
        let settings = Box::new(muster_config::settings(&config, &self.context));
        self.current = Some(config);
        Reload::Applied { settings, problems, changes: descriptions }
    }
}

fn policy_stamps(config: Option<&Config>) -> Vec<(PathBuf, Option<Stamp>)> {
    let runners = config.into_iter().flat_map(|config| &config.runners);
    let paths = runners.filter_map(|runner| runner.table.str("steps.policy").map(PathBuf::from));
    paths.map(|path| (path.clone(), Stamp::read(&path))).collect()
}
