//! Live reload of `config.toml`.
//!
//! The content is checked every [`POLL_INTERVAL`]. Unlike in gitlab-runner, a replacement with an older modification
//! time is noticed. Check C034 reports this.
//!
//! An invalid or missing file is reported once and changes nothing. gitlab-runner drops all runners if the file is missing.
//! If the file or a step policy cannot be read, each check reads it again.

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
    /// Settings in effect.
    settings: Settings,
    stamp: Option<Stamp>,
    /// Digest of the text that was read last, or, if the read failed, its error message.
    digest: Result<Digest, String>,
    /// Files with step policies, and the stamp that each file had when the configuration was read.
    policies: Vec<(PathBuf, Option<Stamp>)>,
    /// Problem of each runner's step policy when it was read last.
    policy_problems: Vec<Option<String>>,
}

impl ConfigWatch {
    /// Reads the file for the first time. The result also describes a missing or invalid file.
    #[must_use]
    pub fn start(path: PathBuf, context: SettingsContext) -> (Self, Loaded) {
        let (stamp, digest) = (Stamp::read(&path), stamp::digest(&muster_config::read_text(&path)));
        let settings = Settings::default();
        let (policies, policy_problems) = Default::default();
        let mut watch = Self { path, context, current: None, settings, stamp, digest, policies, policy_problems };
        let loaded = muster_config::load(&watch.path, &watch.facts());
        if let Some(config) = loaded.config.clone() {
            watch.set_config(config);
        }
        (watch, loaded)
    }

    /// Returns the settings in effect, or the default settings if the file was never valid.
    #[must_use]
    pub fn settings(&self) -> Settings {
        self.settings.clone()
    }

    /// Waits until the content of the file changes, or the metadata of one of its step policies, or until a read that
    /// failed succeeds. Cancel-safe.
    pub async fn changed(&mut self) -> Reload {
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            let stamp = Stamp::read(&self.path);
            if stamp == self.stamp {
                if stamp.is_some()
                    && let Some(reload) = self.check_unchanged_file()
                {
                    return reload;
                }
                continue;
            }
            let Some(stamp) = self.wait_until_stable(stamp).await else {
                self.stamp = None;
                return Reload::Missing;
            };
            let text = muster_config::read_text(&self.path);
            let content_changed = stamp::digest(&text) != self.digest;
            let old = self.stamp.replace(stamp);
            if content_changed {
                let time_advanced = old.is_none_or(|old| stamp.is_newer_than(old));
                // Check C034: the content changed, but the modification time did not advance.
                let problem = change_without_time(content_changed, time_advanced);
                return self.apply(text).with_problem(problem);
            }
        }
    }

    /// Checks what may have changed although the file has not: its step policies, and whether a read that failed now
    /// succeeds.
    fn check_unchanged_file(&mut self) -> Option<Reload> {
        let policies = policy_stamps(self.current.as_ref());
        // Always called, so that each change is reported once.
        let has_other_problem = self.has_other_policy_problem();
        let policies_changed = has_other_problem || self.policies != policies;
        // Stored even if the configuration is invalid, so that it is reported once. If a policy is still being written, a
        // later check notices the rest.
        self.policies = policies;
        if !policies_changed && self.digest.is_ok() {
            return None;
        }
        let text = muster_config::read_text(&self.path);
        (policies_changed || stamp::digest(&text) != self.digest).then(|| self.apply(text))
    }

    /// If a step policy has a problem, reads it again, and returns whether that changes the problem.
    fn has_other_policy_problem(&mut self) -> bool {
        let Some(config) = self.current.as_ref().filter(|_| self.policy_problems.iter().any(Option::is_some)) else {
            return false;
        };
        let problems = policy_problems(&muster_config::settings(config, &self.context));
        std::mem::replace(&mut self.policy_problems, problems) != self.policy_problems
    }

    /// Reads the file even if it has not changed, for SIGHUP.
    pub fn reload(&mut self) -> Reload {
        self.stamp = Stamp::read(&self.path);
        if self.stamp.is_none() {
            return Reload::Missing;
        }
        self.apply(muster_config::read_text(&self.path))
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

    /// Applies the text of the file, or reports why it could not be read.
    fn apply(&mut self, text: Result<String, Box<Problem>>) -> Reload {
        self.digest = stamp::digest(&text);
        let Loaded { config, mut problems } = match text {
            Ok(text) => muster_config::parse(&text, &self.facts()),
            Err(problem) => return Reload::Invalid { problems: vec![*problem] },
        };
        let Some(config) = config else { return Reload::Invalid { problems } };
        let Changes { descriptions, restart } = match &self.current {
            Some(old) => changes::between(old, &config),
            None => Changes::default(),
        };
        problems.extend(restart.into_iter().map(|key| Problem::new("C035", format!("{key} changed; restart needed"))));
        self.set_config(config);
        Reload::Applied { settings: Box::new(self.settings.clone()), problems, changes: descriptions }
    }

    fn set_config(&mut self, config: Config) {
        // The stamps are read before `settings` reads the policies: if a policy changes in between, a later check then
        // notices the change.
        self.policies = policy_stamps(Some(&config));
        self.settings = muster_config::settings(&config, &self.context);
        self.policy_problems = policy_problems(&self.settings);
        self.current = Some(config);
    }
}

fn policy_problems(settings: &Settings) -> Vec<Option<String>> {
    settings.runners.iter().map(|runner| runner.steps.problem.clone()).collect()
}

fn policy_stamps(config: Option<&Config>) -> Vec<(PathBuf, Option<Stamp>)> {
    let runners = config.into_iter().flat_map(|config| &config.runners);
    let paths = runners.filter_map(|runner| runner.table.str("steps.policy").map(PathBuf::from));
    paths.map(|path| (path.clone(), Stamp::read(&path))).collect()
}
