//! What a manager works by: the checked form of `config.toml`, or what `muster ci` builds for its one runner.
//!
//! ```text
//! config.toml --config--> Settings --reload--> Settings (another one; jobs keep the RunnerSettings they were taken with)
//! ```
//!
//! A [`RunnerSettings`] is immutable and shared: a job's actor holds the one that it was taken with until its end, also
//! across a restart, since `state.log` keeps it. It is therefore also a format on disk: a new field needs a default.

mod autoscaler;
mod connection;
mod on_instances;
mod unpack;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use muster_job::{Secret, Variable};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use url::Url;

pub use autoscaler::{
    AutoscalerSettings, ConnectorSettings, GroupSettings, IsolationSettings, Scaling, StickySettings,
};
pub use connection::{ConnectionAge, TlsFiles};
pub use on_instances::OnInstances;
pub use unpack::UnpackSettings;

/// Hexadecimal digits of a token's hash in a key.
const TOKEN_DIGITS: usize = 12;
/// Ten years: a limit beyond this is none, and a clock cannot count to any.
pub const WAIT_MAX: Duration = Duration::from_secs(10 * 366 * 24 * 60 * 60);

/// Default of [`Settings::cut_after`].
///
/// GitLab's front end holds a request without looking for jobs, so a request that it holds can be cut without a loss. Before
/// that GitLab itself may look for a job and assign it, which takes far less than this time.
pub const CUT_AFTER: Duration = Duration::from_secs(10);

/// Default of [`Settings::answer_limit`].
///
/// No front end holds such a request (runner-api 2.3): until it is answered, GitLab looks for a job, or is slow. GitLab itself
/// ends a request after a minute.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// Everything that one manager works by.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Jobs at the same time, over all runners; at least 1.
    pub concurrent: usize,
    /// Between two job requests of one runner at a coordinator that does not hold them.
    pub check_interval: Duration,
    /// How long a job request is held when another runner has no place to ask from.
    pub cut_after: Duration,
    /// The same of a request that knows no version of the queue, as the first one of a runner: the server is working on it.
    pub answer_limit: Duration,
    /// How long connections to coordinators are used again. Jobs under way keep the age that they began with.
    pub connection_max_age: ConnectionAge,
    /// What a forceful stop may take.
    pub shutdown_timeout: Duration,
    /// `host:port` of the metrics and debug server; none means off. Read at start only.
    pub listen_address: Option<String>,
    /// Lowest level of log lines.
    pub log_level: Option<String>,
    /// `runner`, `text` or `json`.
    pub log_format: Option<String>,
    /// How long a lost agent is hoped for.
    pub agent_grace: Duration,
    /// Jobs that have ended and wait for the coordinator without a slot, at most. Read at start only.
    pub unreported_max: usize,
    /// How long a state that cannot be stored is tried, before the manager ends.
    pub state_patience: Duration,
    /// This machine's name, for the trace.
    pub host_name: String,
    /// A coordinator that refuses the token of a runner ends the manager. Else the runner is unhealthy and probed on.
    pub refusal_is_fatal: bool,
    /// Variables of this process's environment that hold the token of a runner (`token = "$NAME"`): no job gets them.
    pub token_variables: Vec<String>,
    /// The `[[runners]]`, in the order of the file.
    pub runners: Vec<Arc<RunnerSettings>>,
}

impl Settings {
    /// The defaults of `config.toml`, with no runner.
    #[must_use]
    pub fn new() -> Self {
        Self {
            concurrent: 1,
            check_interval: Duration::from_secs(3),
            cut_after: CUT_AFTER,
            answer_limit: ANSWER_LIMIT,
            connection_max_age: ConnectionAge::UpTo(Duration::from_secs(15 * 60)),
            shutdown_timeout: Duration::from_secs(30),
            listen_address: None,
            log_level: None,
            log_format: None,
            agent_grace: Duration::from_secs(60),
            state_patience: Duration::from_secs(300),
            // Each has at most its output limit in the spool: 400 MiB in all, if nobody sets another one.
            unreported_max: 100,
            host_name: host_name(),
            refusal_is_fatal: false,
            token_variables: Vec::new(),
            runners: Vec::new(),
        }
    }

    /// These settings as the successor of `old`: a runner that is as it was is the same one, in memory too; and one that
    /// has no id keeps its key under a new token, if url and name say which one it was.
    #[must_use]
    pub fn following(mut self, old: &Self) -> Self {
        let has = |runners: &[Arc<RunnerSettings>], key: &RunnerKey| runners.iter().any(|runner| runner.key == *key);
        let lost: Vec<&Arc<RunnerSettings>> =
            old.runners.iter().filter(|runner| runner.id == 0 && !has(&self.runners, &runner.key)).collect();
        let mut kept = lost.into_iter().filter(|runner| !runner.name.is_empty()).collect::<Vec<_>>();
        for runner in &mut self.runners {
            if runner.id == 0 && !has(&old.runners, &runner.key) {
                let known = kept.iter().position(|old| old.name == runner.name && old.url == runner.url);
                if let Some(known) = known {
                    let key = kept.swap_remove(known).key.clone();
                    Arc::make_mut(runner).key = key;
                }
            }
            if let Some(same) = old.runners.iter().find(|old| old == &runner) {
                *runner = Arc::clone(same);
            }
        }
        self
    }

    /// The key that a runner of an earlier start, or of earlier settings, has in these: its own, or that of the entry that
    /// came in its place with a new token.
    #[must_use]
    pub fn key_of<'a>(&'a self, runner: &'a RunnerSettings) -> &'a RunnerKey {
        let has = |key: &RunnerKey| self.runners.iter().any(|known| known.key == *key);
        if runner.id > 0 || runner.name.is_empty() || has(&runner.key) {
            return &runner.key;
        }
        let successor =
            self.runners.iter().find(|known| known.id == 0 && known.name == runner.name && known.url == runner.url);
        successor.map_or(&runner.key, |known| &known.key)
    }

    /// Gives each runner that has no key of its own yet one that no other runner of the file has.
    ///
    /// Runners of one file that share url and token (C025) are told apart by their order.
    #[must_use]
    pub fn with_unique_keys(mut self) -> Self {
        let mut seen: BTreeMap<RunnerKey, usize> = BTreeMap::new();
        for runner in &mut self.runners {
            let count = seen.entry(runner.key.clone()).or_default();
            *count += 1;
            if *count > 1 {
                let key = RunnerKey(format!("{}/{count}", runner.key.0));
                Arc::make_mut(runner).key = key;
            }
        }
        self
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self::new()
    }
}

/// Which `[[runners]]` entry: the same after a change of order, of the token (where the entry has an `id`), and after a
/// restart. Job counters, request lanes and jobs in `state.log` go by it.
///
/// It is the url with the server's runner id; an entry without an id goes by a hash of its token.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunnerKey(String);

impl RunnerKey {
    /// The key of an entry; `id` is 0 where the file has none.
    #[must_use]
    pub fn new(url: &Url, id: i64, token: &Secret) -> Self {
        let url = url.as_str().trim_end_matches('/');
        if id > 0 {
            return Self(format!("{url}#{id}"));
        }
        let digest = format!("{:x}", Sha256::digest(token.expose()));
        Self(format!("{url}#token-{}", digest.get(..TOKEN_DIGITS).unwrap_or(&digest)))
    }

    /// The key as it is stored.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RunnerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One `[[runners]]` entry (runner-config 1.4), checked, with the defaults filled in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunnerSettings {
    /// Which entry it is.
    pub key: RunnerKey,
    /// Label for people.
    #[serde(default)]
    pub name: String,
    /// Base URL of the coordinator, without `/api/v4`.
    #[serde(with = "url_text")]
    pub url: Url,
    /// The runner's authentication token; a blank one is never used.
    pub token: Secret,
    /// The runner's id at the coordinator; 0 where the file has none.
    #[serde(default)]
    pub id: i64,
    /// The manager's system id.
    #[serde(default)]
    pub system_id: String,
    /// When the token was had.
    #[serde(default)]
    pub token_obtained_at: Option<SystemTime>,
    /// When the token ends; none means never.
    #[serde(default)]
    pub token_expires_at: Option<SystemTime>,
    /// PEM files for the coordinator's API.
    #[serde(default)]
    pub tls: TlsFiles,
    /// Jobs of this entry at the same time; none means no limit of its own.
    #[serde(default)]
    pub limit: Option<usize>,
    /// Job requests in flight at most; at least 1.
    #[serde(default = "one")]
    pub request_concurrency: usize,
    /// After a job, ask for the next one only after `check_interval`.
    #[serde(default)]
    pub strict_check_interval: bool,
    /// Unhealthy answers in a row after which the runner counts as unhealthy; at least 1.
    #[serde(default = "unhealthy_requests_limit")]
    pub unhealthy_requests_limit: u32,
    /// GitLab Runner's pause for an unhealthy runner; here the longest wait between two probes of it.
    #[serde(default = "unhealthy_interval")]
    pub unhealthy_interval: Duration,
    /// Repetitions of the last report of a job that the coordinator answers with a refusal; at least 1.
    #[serde(default = "final_update_retry_limit")]
    pub final_update_retry_limit: u32,
    /// Labels told to the coordinator, the file's own merged in.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Name of the executor, as in the file.
    #[serde(default = "shell_executor")]
    pub executor: String,
    /// `bash`, `sh` or `pwsh`.
    #[serde(default = "bash")]
    pub shell: String,
    /// Start shells as login shells.
    #[serde(default)]
    pub login: bool,
    /// The user whom the shell executor's scripts run as; none means the manager's own.
    #[serde(default)]
    pub user: Option<String>,
    /// Below it jobs are checked out; none means the environment's own, and a relative one is beside that.
    #[serde(default)]
    pub builds_dir: Option<PathBuf>,
    /// Below it caches are kept; none means the environment's own, and a relative one is beside that.
    #[serde(default)]
    pub cache_dir: Option<PathBuf>,
    /// Scheme and host for git only.
    #[serde(default)]
    pub clone_url: Option<String>,
    /// Variables of every job.
    #[serde(default)]
    pub environment: Vec<Variable>,
    /// Shell text around parts of the job.
    #[serde(default)]
    pub scripts: RunnerScripts,
    /// Limit of preparing a job; none means that of the job.
    #[serde(default)]
    pub prepare_timeout: Option<Duration>,
    /// Limit of getting the sources; none means that of the job.
    #[serde(default)]
    pub get_sources_timeout: Option<Duration>,
    /// Bytes of log after which a job's output is dropped with a notice; 0 means 4 MiB.
    #[serde(default)]
    pub output_limit: u64,
    /// Jobs cannot switch on `CI_DEBUG_TRACE` and `CI_DEBUG_SERVICES`.
    #[serde(default)]
    pub debug_trace_disabled: bool,
    /// Write a `safe.directory` entry for git; none means the executor's default.
    #[serde(default)]
    pub safe_directory_checkout: Option<bool>,
    /// Remove git's configuration and hooks around the job; none means the executor's default.
    #[serde(default)]
    pub clean_git_config: Option<bool>,
    /// Jobs on instances get the cgroup of their slot.
    #[serde(default)]
    pub use_slot_cgroups: bool,
    /// Its name, with `${slot}`; none means the executor's default.
    #[serde(default)]
    pub slot_cgroup_template: Option<String>,
    /// Jobs may set `GIT_CLONE_PATH`; none means the executor's default.
    #[serde(default)]
    pub custom_build_dir: Option<bool>,
    /// `[runners.feature_flags]`: jobs cannot override them.
    #[serde(default)]
    pub feature_flags: BTreeMap<String, bool>,
    /// Limits of an artifact upload.
    #[serde(default)]
    pub artifact: ArtifactTimeouts,
    /// `[runners.unpack]`: limits of unpacking an artifact or a cache.
    #[serde(default)]
    pub unpack: UnpackSettings,
    /// What concerns jobs on instances.
    #[serde(default)]
    pub on_instances: OnInstances,
    /// `[runners.autoscaler]`. Not stored with a job: what makes instances is the file's to say, and has secrets.
    #[serde(skip)]
    pub autoscaler: Option<Arc<AutoscalerSettings>>,
}

impl RunnerSettings {
    /// An entry with GitLab Runner's defaults, for the shell executor.
    #[must_use]
    pub fn new(url: Url, token: Secret, id: i64) -> Self {
        Self {
            key: RunnerKey::new(&url, id, &token),
            name: String::new(),
            url,
            token,
            id,
            system_id: String::new(),
            token_obtained_at: None,
            token_expires_at: None,
            tls: TlsFiles::default(),
            limit: None,
            request_concurrency: one(),
            strict_check_interval: false,
            unhealthy_requests_limit: unhealthy_requests_limit(),
            unhealthy_interval: unhealthy_interval(),
            final_update_retry_limit: final_update_retry_limit(),
            labels: BTreeMap::new(),
            executor: shell_executor(),
            shell: bash(),
            login: false,
            user: None,
            builds_dir: None,
            cache_dir: None,
            clone_url: None,
            environment: Vec::new(),
            scripts: RunnerScripts::default(),
            prepare_timeout: None,
            get_sources_timeout: None,
            output_limit: 0,
            debug_trace_disabled: false,
            safe_directory_checkout: None,
            clean_git_config: None,
            use_slot_cgroups: false,
            slot_cgroup_template: None,
            custom_build_dir: None,
            feature_flags: BTreeMap::new(),
            artifact: ArtifactTimeouts::default(),
            unpack: UnpackSettings::default(),
            on_instances: OnInstances::default(),
            autoscaler: None,
        }
    }

    /// Base URL of the coordinator as text, without a slash at its end.
    #[must_use]
    pub fn coordinator_url(&self) -> &str {
        self.url.as_str().trim_end_matches('/')
    }
}

/// Shell text of the operator's (runner-config 1.4).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the field names are those of config.toml")]
pub struct RunnerScripts {
    pub pre_get_sources: Option<String>,
    pub post_get_sources: Option<String>,
    pub pre_build: Option<String>,
    pub post_build: Option<String>,
}

/// `[runners.artifact]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ArtifactTimeouts {
    /// Limit of the whole upload.
    pub upload: Duration,
    /// Limit of the wait for the answer after the body was sent.
    pub response_header: Duration,
}

impl Default for ArtifactTimeouts {
    fn default() -> Self {
        Self { upload: Duration::from_secs(3600), response_header: Duration::from_secs(600) }
    }
}

/// This machine's name, for people who read a log.
#[must_use]
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "this machine".to_owned() } else { name.to_owned() }
}

fn one() -> usize {
    1
}

fn unhealthy_requests_limit() -> u32 {
    3
}

fn unhealthy_interval() -> Duration {
    Duration::from_secs(3600)
}

fn final_update_retry_limit() -> u32 {
    10
}

fn shell_executor() -> String {
    "shell".to_owned()
}

fn bash() -> String {
    "bash".to_owned()
}

/// A URL as text: the feature of the `url` crate would be built into every room.
mod url_text {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};
    use url::Url;

    pub(super) fn serialize<S: Serializer>(url: &Url, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(url.as_str())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Url, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runner(token: &str, id: i64) -> RunnerSettings {
        RunnerSettings::new("https://gitlab.example/".parse().unwrap(), Secret::new(token), id)
    }

    #[test]
    fn a_key_survives_a_new_token_where_there_is_an_id_and_never_shows_the_token() {
        assert_eq!(runner("one", 7).key, runner("two", 7).key);
        assert_ne!(runner("one", 0).key, runner("two", 0).key);
        assert!(!runner("glrt-secret", 0).key.as_str().contains("secret"));
    }

    #[test]
    fn entries_that_share_a_token_are_told_apart() {
        let runners = vec![Arc::new(runner("one", 0)), Arc::new(runner("one", 0)), Arc::new(runner("two", 0))];
        let settings = Settings { runners, ..Settings::new() }.with_unique_keys();
        let keys: std::collections::BTreeSet<_> = settings.runners.iter().map(|runner| &runner.key).collect();
        assert_eq!(keys.len(), 3);
        assert_eq!(settings.runners[0].key, runner("one", 0).key, "the first one keeps its key");
    }

    #[test]
    fn settings_that_follow_keep_what_is_the_same_and_whose_token_is_new() {
        let named = |token, name: &str| Arc::new(RunnerSettings { name: name.to_owned(), ..runner(token, 0) });
        let old = Settings { runners: vec![named("one", "a"), named("two", "b")], ..Settings::new() };
        let new = Settings {
            runners: vec![named("rotated", "b"), named("one", "a"), named("three", "c")],
            ..Settings::new()
        };
        let new = new.following(&old);
        assert_eq!(new.runners[0].key, old.runners[1].key, "its token is new, and it is the same runner");
        assert!(Arc::ptr_eq(&new.runners[1], &old.runners[0]), "nothing has changed");
        assert_eq!(new.runners[2].key, named("three", "c").key);
    }

    #[test]
    fn version_1_of_the_stored_form_stays_readable() {
        let kept = include_str!("../tests/samples/runner_settings_v1.json");
        let read: RunnerSettings = serde_json::from_str(kept).unwrap();
        assert_eq!(read, RunnerSettings { name: "kept".to_owned(), ..runner("one", 7) });
    }
}
