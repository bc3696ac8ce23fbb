//! Live reload of `config.toml`: notices that the file's content changed, reads it, and says what is different.
//!
//! The file is looked at every [`LOOK_PERIOD`], as GitLab Runner does; what counts is its content, so that a file that was
//! swapped in with an old time (`mv`, a ConfigMap's symbolic link, a restored backup) is noticed too (C034), and one that
//! was only touched is not. A file that cannot be used changes nothing, and is told once. A file that is gone changes
//! nothing either, also on SIGHUP: GitLab Runner forgets all runners then.

mod changes;
mod stamp;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use changes::Changes;
use muster_config::runtime::change_without_time;
use muster_config::settings::Settings;
use muster_config::{self, Config, Facts, Loaded, Problem, Surroundings};
use stamp::{Digest, Stamp};

/// Between two looks at the file: the system has no event that covers network file systems and swapped links.
pub const LOOK_PERIOD: Duration = Duration::from_secs(3);
/// A file that is being written is looked at again after this, until it stays as it is.
const SETTLE: Duration = Duration::from_millis(100);
const SETTLE_LOOKS_MAX: u32 = 20;

/// What came of a look.
#[derive(Debug)]
pub enum Reload {
    /// The file can be used.
    Applied {
        /// What to work by now.
        settings: Box<Settings>,
        /// What is wrong with it all the same, and which changes need a restart.
        problems: Vec<Problem>,
        /// What is different, one phrase each; no secrets.
        changes: Vec<String>,
    },
    /// The file cannot be used: what was in force stays so.
    Refused {
        /// Why.
        problems: Vec<Problem>,
    },
    /// The file is not there: what was in force stays so.
    Gone,
}

impl Reload {
    /// With one more problem, if there is one.
    fn with(mut self, problem: Option<Problem>) -> Self {
        if let Self::Applied { problems, .. } | Self::Refused { problems } = &mut self {
            problems.extend(problem);
        }
        self
    }
}

/// A configuration file that is watched.
#[derive(Debug)]
pub struct ConfigWatch {
    path: PathBuf,
    around: Surroundings,
    /// The configuration in force.
    current: Option<Config>,
    stamp: Option<Stamp>,
    digest: Option<Digest>,
}

impl ConfigWatch {
    /// Reads the file for the first time. A missing one is an empty configuration; the problems say so.
    #[must_use]
    pub fn start(path: PathBuf, around: Surroundings) -> (Self, Loaded) {
        let mut watch = Self { path, around, current: None, stamp: None, digest: None };
        watch.stamp = Stamp::of(&watch.path);
        watch.digest = stamp::digest(&watch.path);
        let loaded = muster_config::load(&watch.path, &watch.facts());
        watch.current = loaded.config.clone();
        (watch, loaded)
    }

    /// The settings in force; those of an empty file where there are none.
    #[must_use]
    pub fn settings(&self) -> Settings {
        self.current.as_ref().map(|config| muster_config::settings(config, &self.around)).unwrap_or_default()
    }

    /// Waits until the content of the file is another one. Cancel-safe: what was not told is told by the next call.
    pub async fn changed(&mut self) -> Reload {
        loop {
            tokio::time::sleep(LOOK_PERIOD).await;
            let stamp = Stamp::of(&self.path);
            if stamp == self.stamp {
                continue;
            }
            let Some(stamp) = self.settled(stamp).await else {
                self.stamp = None;
                return Reload::Gone;
            };
            let digest = stamp::digest(&self.path);
            let same = digest == self.digest;
            let old = self.stamp.replace(stamp);
            if !same {
                let newer = old.is_none_or(|old| stamp.is_newer_than(old));
                return self.read(digest).with(change_without_time(true, newer));
            }
        }
    }

    /// Reads the file, whether it changed or not: for SIGHUP.
    pub fn reload(&mut self) -> Reload {
        self.stamp = Stamp::of(&self.path);
        if self.stamp.is_none() {
            return Reload::Gone;
        }
        let digest = stamp::digest(&self.path);
        self.read(digest)
    }

    /// The stamp of a file that nobody is writing just now, as far as can be seen; none where it is gone.
    async fn settled(&self, mut stamp: Option<Stamp>) -> Option<Stamp> {
        for _ in 0..SETTLE_LOOKS_MAX {
            tokio::time::sleep(SETTLE).await;
            let again = Stamp::of(&self.path);
            if again == stamp {
                break;
            }
            stamp = again;
        }
        stamp
    }

    fn facts(&self) -> Facts {
        let job_user = self.around.user.clone().filter(|user| !user.is_empty());
        Facts { job_user, find_plugin: self.around.find_plugin, ..Facts::of(&self.path) }
    }

    /// `digest` was taken before: a change in between is another change, and found by the next look.
    fn read(&mut self, digest: Option<Digest>) -> Reload {
        let Loaded { config, mut problems } = muster_config::load(&self.path, &self.facts());
        self.digest = digest;
        let Some(config) = config else { return Reload::Refused { problems } };
        let Changes { told, restart } = match &self.current {
            Some(old) => changes::between(old, &config),
            None => Changes::default(),
        };
        problems.extend(restart.into_iter().map(|key| Problem::new("C035", format!("{key} changed; restart needed"))));
        let settings = Box::new(muster_config::settings(&config, &self.around));
        self.current = Some(config);
        Reload::Applied { settings, problems, changes: told }
    }
}
