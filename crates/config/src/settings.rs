//! Settings of a manager: the checked form of `config.toml`, or what `muster ci` creates for its one runner.
//!
//! ```text
//! config.toml --config--> Settings --reload--> new Settings (jobs keep the RunnerSettings with which they were received)
//! ```
//!
//! A [`RunnerSettings`] is immutable and shared. The actor of a job keeps the settings with which the job was received until the job ends,
//! even across a restart, because `state.log` stores them. They are therefore a format on disk: a new field needs a default.

mod artifact;
mod autoscaler;
mod cache;
mod connection;
mod custom;
mod defaults;
mod docker;
mod git_mirror;
mod host_name;
mod on_instances;
mod runner_key;
mod scripts;
mod ssh;
mod steps;
mod unpack;
mod url_text;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use muster_job::{Secret, Variable, without_user_info};
use serde::{Deserialize, Serialize};
use url::Url;

pub use artifact::ArtifactTimeouts;
pub use autoscaler::{
    AutoscalerSettings, ConnectorSettings, GroupSettings, IsolationSettings, Scaling, StickySettings,
};
pub use cache::{
    AzureSettings, CacheSettings, CacheStoreSettings, ChunkGcSettings, GcsCredentials, GcsSettings, S3AccessKey,
    S3Encryption, S3Settings,
};
pub use connection::{ConnectionAge, TlsFiles};
pub use custom::{CustomProgram, CustomSettings};
pub use docker::{
    ContainerSettings, Device, DockerService, DockerSettings, GpuRequest, PULL_POLICIES, PreparedContainers, Ulimit,
};
pub use git_mirror::GitMirrorSettings;
pub use host_name::host_name;
pub use on_instances::OnInstances;
pub use runner_key::RunnerKey;
pub use scripts::RunnerScripts;
pub use ssh::SshSettings;
pub use steps::{HostServiceSettings, OperatorAction, OperatorStep, StepReplacement, StepsSettings};
pub use unpack::UnpackSettings;

/// Maximum duration of a setting: ten years. Longer durations are reduced to it, because clocks cannot represent every time.
pub const MAX_WAIT: Duration = Duration::from_secs(10 * 366 * 24 * 60 * 60);

/// Default of [`Settings::min_hold`].
///
/// GitLab's front end looks for no jobs while it holds a request, so such a request can be canceled without loss. Before
/// that, GitLab may look for a job and assign it. That takes far less than this time.
pub const MIN_HOLD: Duration = Duration::from_secs(10);

/// Default of [`Settings::answer_timeout`].
///
/// No front end holds a request without a queue version. GitLab ends such a request after a minute.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Executors that run jobs in containers: on this host, and on instances.
pub const CONTAINER_EXECUTORS: [&str; 3] = ["docker", "docker-autoscaler", "docker+machine"];

/// All settings of one manager.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Maximum number of jobs of all runners. At least 1.
    pub concurrent: usize,
    /// Time between two job requests of one runner, if the coordinator does not hold them.
    pub check_interval: Duration,
    /// Minimum time that a job request stays open before it is canceled, for example in favor of a runner without an open request.
    pub min_hold: Duration,
    /// Minimum time that a runner's first request stays open. It has no queue version, so no front end holds it.
    pub answer_timeout: Duration,
    /// Maximum age of connections to coordinators. Jobs in progress keep the value with which they started.
    pub connection_max_age: ConnectionAge,
    /// Maximum time for a forceful shutdown.
    pub shutdown_timeout: Duration,
    /// `host:port` of the metrics and debug server. `None` disables it. Read at start only.
    pub listen_address: Option<String>,
    /// Lowest level of the log lines that are printed.
    pub log_level: Option<String>,
    /// `runner`, `text` or `json`.
    pub log_format: Option<String>,
    /// Time to keep reconnecting to an unreachable agent before its job fails.
    pub agent_reconnect_timeout: Duration,
    /// Maximum number of ended jobs without a slot whose final report has not been acknowledged yet. Read at start only.
    pub max_unreported_jobs: usize,
    /// Time for which the manager tries to store a state again before it exits.
    pub state_write_timeout: Duration,
    /// Name of this machine, for the trace.
    pub host_name: String,
    /// Whether the manager exits if a coordinator refuses a runner's token. Otherwise the runner counts as unhealthy and is probed.
    pub exit_on_refusal: bool,
    /// Environment variables of this process that contain a runner's token (`token = "$NAME"`). Jobs do not get them.
    pub token_env_names: Vec<String>,
    /// Settings of the `[[runners]]`, in the order of the file.
    pub runners: Vec<Arc<RunnerSettings>>,
}

impl Settings {
    /// Returns the defaults of `config.toml`, without runners.
    #[must_use]
    pub fn new() -> Self {
        Self {
            concurrent: 1,
            check_interval: Duration::from_secs(3),
            min_hold: MIN_HOLD,
            answer_timeout: ANSWER_TIMEOUT,
            connection_max_age: ConnectionAge::UpTo(Duration::from_secs(15 * 60)),
            shutdown_timeout: Duration::from_secs(30),
            listen_address: None,
            log_level: None,
            log_format: None,
            agent_reconnect_timeout: Duration::from_secs(60),
            state_write_timeout: Duration::from_secs(300),
            // Each job has at most its output limit in the spool: 400 MiB in total with the default limit.
            max_unreported_jobs: 100,
            host_name: host_name(),
            exit_on_refusal: false,
            token_env_names: Vec::new(),
            runners: Vec::new(),
        }
    }

    /// Returns these settings as the successor of `old`.
    ///
    /// A runner with unchanged settings keeps its [`Arc`]. A runner without an ID keeps its key under a new token if its URL and name
    /// identify it.
    #[must_use]
    pub fn carry_over(mut self, old: &Self) -> Self {
        let has = |runners: &[Arc<RunnerSettings>], key: &RunnerKey| runners.iter().any(|runner| runner.key == *key);
        let replaced: Vec<&Arc<RunnerSettings>> =
            old.runners.iter().filter(|runner| runner.id == 0 && !has(&self.runners, &runner.key)).collect();
        let mut candidates = replaced.into_iter().filter(|runner| !runner.name.is_empty()).collect::<Vec<_>>();
        for runner in &mut self.runners {
            if runner.id == 0 && !has(&old.runners, &runner.key) {
                let known = candidates.iter().position(|old| old.name == runner.name && has_same_server(old, runner));
                if let Some(known) = known {
                    let key = candidates.swap_remove(known).key.clone();
                    Arc::make_mut(runner).key = key;
                }
            }
            if let Some(same) = old.runners.iter().find(|old| old == &runner) {
                *runner = Arc::clone(same);
            }
        }
        self
    }

    /// Returns the key of a runner in these settings: its own, or the key of the entry with its new token.
    #[must_use]
    pub fn key_of<'a>(&'a self, runner: &'a RunnerSettings) -> &'a RunnerKey {
        let has = |key: &RunnerKey| self.runners.iter().any(|known| known.key == *key);
        if runner.id > 0 || runner.name.is_empty() || has(&runner.key) {
            return &runner.key;
        }
        let is_successor =
            |known: &RunnerSettings| known.id == 0 && known.name == runner.name && has_same_server(known, runner);
        let successor = self.runners.iter().find(|known| is_successor(known));
        successor.map_or(&runner.key, |known| &known.key)
    }

    /// Changes the key of each runner that has the same key as a runner before it, so that all keys differ.
    ///
    /// Runners of one file with the same URL and token (check C025) are distinguished by their order.
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

/// Returns whether the URLs of two entries differ at most in user and password, like [`RunnerKey`].
fn has_same_server(one: &RunnerSettings, other: &RunnerSettings) -> bool {
    without_user_info(one.url.as_str()) == without_user_info(other.url.as_str())
}

impl Default for Settings {
    fn default() -> Self {
        Self::new()
    }
}

/// Settings of one `[[runners]]` entry, checked and with defaults.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunnerSettings {
    /// Identity of the entry.
    pub key: RunnerKey,
    /// Human-readable name.
    #[serde(default)]
    pub name: String,
    /// Base URL of the coordinator, without `/api/v4`.
    #[serde(with = "url_text")]
    pub url: Url,
    /// Authentication token of the runner. A blank token is never used.
    pub token: Secret,
    /// ID of the runner at the coordinator. 0 if the file has none.
    #[serde(default)]
    pub id: i64,
    /// System ID of the manager.
    #[serde(default)]
    pub system_id: String,
    /// Time at which the token was obtained. `None` means that it is unknown.
    #[serde(default)]
    pub token_obtained_at: Option<SystemTime>,
    /// Time at which the token expires. `None` means never.
    #[serde(default)]
    pub token_expires_at: Option<SystemTime>,
    /// PEM files for the coordinator's API.
    #[serde(default)]
    pub tls: TlsFiles,
    /// Maximum number of jobs of this entry. `None` means that only [`Settings::concurrent`] limits the number.
    #[serde(default)]
    pub limit: Option<usize>,
    /// Maximum number of job requests in flight. At least 1.
    #[serde(default = "defaults::request_concurrency")]
    pub request_concurrency: usize,
    /// Whether to wait for `check_interval` after a job before the next request.
    #[serde(default)]
    pub strict_check_interval: bool,
    /// Number of consecutive unhealthy answers after which the runner counts as unhealthy. At least 1.
    #[serde(default = "defaults::unhealthy_requests_limit")]
    pub unhealthy_requests_limit: u32,
    /// Maximum time between two probes of an unhealthy runner. In gitlab-runner, this is the pause of such a runner.
    #[serde(default = "defaults::unhealthy_interval")]
    pub unhealthy_interval: Duration,
    /// Number of attempts to send a final update that the coordinator refuses. At least 1.
    #[serde(default = "defaults::final_update_retry_limit")]
    pub final_update_retry_limit: u32,
    /// Labels for the coordinator, including the global ones of the file.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Name of the executor in the file.
    #[serde(default = "defaults::executor")]
    pub executor: String,
    /// `bash`, `sh`, `pwsh` or `powershell`.
    #[serde(default = "defaults::shell")]
    pub shell: String,
    /// Whether shells are started as login shells.
    #[serde(default)]
    pub login: bool,
    /// User that runs the scripts of the shell executor. `None` means the manager's own user.
    #[serde(default)]
    pub user: Option<String>,
    /// Parent directory of checkouts. `None` means the default of the environment.
    /// A relative path is resolved in the parent directory of that default.
    #[serde(default)]
    pub builds_dir: Option<PathBuf>,
    /// Parent directory of caches. `None` means the default of the environment.
    /// A relative path is resolved in the parent directory of that default.
    #[serde(default)]
    pub cache_dir: Option<PathBuf>,
    /// URL whose scheme and host replace the scheme and host of repository URLs. Only git uses it.
    #[serde(default)]
    pub clone_url: Option<String>,
    /// Variables of every job.
    #[serde(default)]
    pub environment: Vec<Variable>,
    /// Shell commands around parts of the job.
    #[serde(default)]
    pub scripts: RunnerScripts,
    /// `[runners.steps]`: steps of the operator, and the policy for steps of jobs.
    #[serde(default, skip_serializing_if = "StepsSettings::is_default")]
    pub steps: StepsSettings,
    /// Maximum time to prepare a job. `None` means the timeout of the job.
    #[serde(default)]
    pub prepare_timeout: Option<Duration>,
    /// Maximum time to get the sources. `None` means the timeout of the job.
    #[serde(default)]
    pub get_sources_timeout: Option<Duration>,
    /// Maximum size of a job's log in bytes. Further output is dropped with a notice. 0 means 4 MiB.
    #[serde(default)]
    pub output_limit: u64,
    /// Whether jobs cannot enable `CI_DEBUG_TRACE` and `CI_DEBUG_SERVICES`.
    #[serde(default)]
    pub debug_trace_disabled: bool,
    /// Whether a running job can have further values masked by printing lines `::add-mask::VALUE`.
    #[serde(default)]
    pub proxy_exec: bool,
    /// Whether to write a `safe.directory` entry for git. `None` means the executor's default.
    #[serde(default)]
    pub safe_directory_checkout: Option<bool>,
    /// Whether to remove git's configuration and hooks around the job. `None` means the executor's default.
    #[serde(default)]
    pub clean_git_config: Option<bool>,
    /// Whether jobs on instances run in the cgroup of their slot.
    #[serde(default)]
    pub use_slot_cgroups: bool,
    /// Name of the slot's cgroup, with `${slot}`. `None` means the executor's default.
    #[serde(default)]
    pub slot_cgroup_template: Option<String>,
    /// Whether jobs may set `GIT_CLONE_PATH`. `None` means the executor's default.
    #[serde(default)]
    pub custom_build_dir: Option<bool>,
    /// `[runners.feature_flags]`. Jobs cannot override them.
    #[serde(default)]
    pub feature_flags: BTreeMap<String, bool>,
    /// Timeouts of artifact uploads.
    #[serde(default)]
    pub artifact: ArtifactTimeouts,
    /// `[runners.unpack]`: limits for unpacking an artifact or a cache.
    #[serde(default)]
    pub unpack: UnpackSettings,
    /// `[runners.cache]`: the object store that shares caches among machines.
    #[serde(default, skip_serializing_if = "CacheSettings::is_default")]
    pub cache: CacheSettings,
    /// `[runners.git_mirror]`: copies of repositories that the jobs of a machine share.
    #[serde(default, skip_serializing_if = "GitMirrorSettings::is_default")]
    pub git_mirror: GitMirrorSettings,
    /// Settings of jobs on instances.
    #[serde(default)]
    pub on_instances: OnInstances,
    /// Whether the runner must not request jobs, because it is public and its jobs would share machines.
    #[serde(skip)]
    pub shares_machines_in_public: bool,
    /// `[runners.docker]`. `None` if the file has no such table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub docker: Option<Box<DockerSettings>>,
    /// `[runners.custom]`. `None` if the file has no such table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub custom: Option<Box<CustomSettings>>,
    /// `[runners.autoscaler]`, or converted `[runners.machine]`. It has secrets, so no job stores it.
    #[serde(skip)]
    pub autoscaler: Option<Arc<AutoscalerSettings>>,
    /// `[runners.ssh]`. Not stored with a job, because it has secrets.
    #[serde(skip)]
    pub ssh: Option<Arc<SshSettings>>,
}

impl RunnerSettings {
    /// Returns an entry with gitlab-runner's defaults, for the shell executor.
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
            request_concurrency: defaults::request_concurrency(),
            strict_check_interval: false,
            unhealthy_requests_limit: defaults::unhealthy_requests_limit(),
            unhealthy_interval: defaults::unhealthy_interval(),
            final_update_retry_limit: defaults::final_update_retry_limit(),
            labels: BTreeMap::new(),
            executor: defaults::executor(),
            shell: defaults::shell(),
            login: false,
            user: None,
            builds_dir: None,
            cache_dir: None,
            clone_url: None,
            environment: Vec::new(),
            scripts: RunnerScripts::default(),
            steps: StepsSettings::default(),
            prepare_timeout: None,
            get_sources_timeout: None,
            output_limit: 0,
            debug_trace_disabled: false,
            proxy_exec: false,
            safe_directory_checkout: None,
            clean_git_config: None,
            use_slot_cgroups: false,
            slot_cgroup_template: None,
            custom_build_dir: None,
            feature_flags: BTreeMap::new(),
            artifact: ArtifactTimeouts::default(),
            unpack: UnpackSettings::default(),
            cache: CacheSettings::default(),
            git_mirror: GitMirrorSettings::default(),
            on_instances: OnInstances::default(),
            shares_machines_in_public: false,
            docker: None,
            custom: None,
            autoscaler: None,
            ssh: None,
        }
    }

    /// Returns whether the executor runs jobs in containers.
    #[must_use]
    pub fn uses_containers(&self) -> bool {
        CONTAINER_EXECUTORS.contains(&self.executor.as_str())
    }

    /// Returns whether jobs run in an inner environment, such as a container, inside the environment that the executor provides.
    ///
    /// The configured directories are then paths in the inner environment.
    #[must_use]
    pub fn has_inner_environment(&self) -> bool {
        self.uses_containers() || self.uses_driver()
    }

    /// Returns the base URL of the coordinator without a slash at its end.
    #[must_use]
    pub fn coordinator_url(&self) -> &str {
        self.url.as_str().trim_end_matches('/')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runner(token: &str, id: i64) -> RunnerSettings {
        RunnerSettings::new("https://gitlab.example/".parse().unwrap(), Secret::new(token), id)
    }

    #[test]
    fn key_survives_new_token_and_hides_it() {
        assert_eq!(runner("one", 7).key, runner("two", 7).key);
        assert_ne!(runner("one", 0).key, runner("two", 0).key);
        assert!(!runner("glrt-secret", 0).key.as_str().contains("secret"));
    }

    #[test]
    fn entries_with_shared_token_have_distinct_keys() {
        let runners = vec![Arc::new(runner("one", 0)), Arc::new(runner("one", 0)), Arc::new(runner("two", 0))];
        let settings = Settings { runners, ..Settings::new() }.with_unique_keys();
        let keys: std::collections::BTreeSet<_> = settings.runners.iter().map(|runner| &runner.key).collect();
        assert_eq!(keys.len(), 3);
        assert_eq!(settings.runners[0].key, runner("one", 0).key, "the first runner must keep its key");
    }

    #[test]
    fn carry_over_shares_unchanged_runners_and_keeps_keys_under_new_tokens() {
        let named = |token, name: &str| Arc::new(RunnerSettings { name: name.to_owned(), ..runner(token, 0) });
        let old = Settings { runners: vec![named("one", "a"), named("two", "b")], ..Settings::new() };
        let new = Settings {
            runners: vec![named("rotated", "b"), named("one", "a"), named("three", "c")],
            ..Settings::new()
        };
        let new = new.carry_over(&old);
        assert_eq!(new.runners[0].key, old.runners[1].key, "a new token must not change the key");
        assert!(Arc::ptr_eq(&new.runners[1], &old.runners[0]), "unchanged settings must be shared");
        assert_eq!(new.runners[2].key, named("three", "c").key);
    }

    #[test]
    fn stored_settings_of_version_1_are_readable() {
        let stored = include_str!("../tests/samples/runner_settings_v1.json");
        let read: RunnerSettings = serde_json::from_str(stored).unwrap();
        assert_eq!(read, RunnerSettings { name: "kept".to_owned(), ..runner("one", 7) });
    }
}
