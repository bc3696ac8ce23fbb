//! The settings.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cgroup::Limits;

/// Settings of the plugin; all have defaults.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Config {
    /// Name of the group.
    pub(crate) name: String,
    /// The most instances.
    pub(crate) max_size: u32,
    /// Directory below which each instance has its own; empty: a temporary one.
    pub(crate) directory: PathBuf,
    /// Instances go on when the plugin ends, as those of a cloud do, and the next one finds them in `directory`; needs
    /// namespaces, and no limits by cgroup.
    pub(crate) outlive_plugin: bool,
    /// Instances can be suspended: all that runs in them is stopped, and goes on.
    pub(crate) suspendable: bool,
    /// `auto`: namespaces where the system permits them; `namespaces`: an error where not; `none`.
    pub(crate) isolation: Isolation,
    /// Milliseconds from the request of an instance until it boots.
    pub(crate) boot_delay_ms: u64,
    /// Part by which the boot delay varies, 0 to 1.
    pub(crate) boot_jitter: f64,
    /// Creations per second that the cloud grants; 0: no limit. What is above is not granted.
    pub(crate) creations_per_second: u32,
    /// The most instances that one request is granted; 0: no limit.
    pub(crate) grant_max: u32,
    /// Part of each request that is granted, above 0 and up to 1; at least one instance is.
    pub(crate) grant_part: f64,
    /// Milliseconds that a request of instances takes.
    pub(crate) request_delay_ms: u64,
    /// Requests that fail after the start, before any is granted.
    pub(crate) request_failures: u32,
    /// Part of requests that fail, 0 to 1.
    pub(crate) request_failure_rate: f64,
    /// Part of heartbeats of running instances that fail, 0 to 1.
    pub(crate) heartbeat_failure_rate: f64,
    /// Part of instances that never come up, 0 to 1.
    pub(crate) boot_failure_rate: f64,
    /// Running instances lost in a minute, on average, of each one.
    pub(crate) losses_per_minute: f64,
    /// Seconds from the notice of a loss to the loss; 0: lost without notice.
    pub(crate) notice_s: f64,
    /// Instances that the cloud has at the same time; 0: no limit but `max_size`. A request beyond is out of stock.
    pub(crate) stock: u32,
    /// Price of an instance, in millionths of `currency` for an hour; 0: not told.
    pub(crate) price_micros_per_hour: u64,
    /// Currency of the price, ISO 4217.
    pub(crate) currency: String,
    /// Memory that an instance may use, in MiB, by cgroup; 0: no limit.
    pub(crate) memory_max_mib: u64,
    /// Processors that an instance may use, by cgroup; 0: no limit.
    pub(crate) cpus_max: f64,
    /// Processes that an instance may have, by cgroup; 0: no limit.
    pub(crate) processes_max: u32,
    /// Program on this host before each job, with its first arguments; the instance and the job follow.
    pub(crate) prepare_command: Vec<String>,
    /// Program on this host after each job, likewise.
    pub(crate) finish_command: Vec<String>,
    /// Seed of all that is left to chance; 0: another one each time.
    pub(crate) seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: "local".to_owned(),
            max_size: 10,
            directory: PathBuf::new(),
            outlive_plugin: false,
            suspendable: false,
            isolation: Isolation::Auto,
            boot_delay_ms: 0,
            boot_jitter: 0.0,
            creations_per_second: 0,
            grant_max: 0,
            grant_part: 1.0,
            request_delay_ms: 0,
            request_failures: 0,
            request_failure_rate: 0.0,
            heartbeat_failure_rate: 0.0,
            boot_failure_rate: 0.0,
            losses_per_minute: 0.0,
            notice_s: 0.0,
            stock: 0,
            price_micros_per_hour: 0,
            currency: "USD".to_owned(),
            memory_max_mib: 0,
            cpus_max: 0.0,
            processes_max: 0,
            prepare_command: Vec::new(),
            finish_command: Vec::new(),
            seed: 0,
        }
    }
}

/// How instances are kept apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Isolation {
    /// Namespaces where the system permits them.
    Auto,
    /// Namespaces, or nothing works.
    Namespaces,
    /// Process groups.
    None,
}

impl Config {
    /// What is wrong with the values.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.max_size == 0 {
            return Err("max_size must be at least 1".to_owned());
        }
        if self.outlive_plugin {
            let missing = [
                (self.directory.as_os_str().is_empty(), "needs a directory: the next plugin finds its instances there"),
                (
                    self.isolation == Isolation::None,
                    "needs namespaces: without them nothing could end what runs in an instance",
                ),
                (
                    !self.limits().is_none(),
                    "cannot have memory_max_mib, cpus_max or processes_max: their cgroups end with the plugin",
                ),
            ];
            if let Some((_, why)) = missing.iter().find(|(is_so, _)| *is_so) {
                return Err(format!("outlive_plugin = true {why}"));
            }
        }
        let rates = [
            ("boot_jitter", self.boot_jitter),
            ("request_failure_rate", self.request_failure_rate),
            ("heartbeat_failure_rate", self.heartbeat_failure_rate),
            ("boot_failure_rate", self.boot_failure_rate),
        ];
        for (key, rate) in rates {
            if !(0.0..=1.0).contains(&rate) {
                return Err(format!("{key} = {rate} is no part of a whole; use 0 to 1"));
            }
        }
        if !(self.grant_part > 0.0 && self.grant_part <= 1.0) {
            return Err(format!("grant_part = {} must be above 0, and 1 at most", self.grant_part));
        }
        if !self.losses_per_minute.is_finite() || self.losses_per_minute < 0.0 {
            return Err(format!("losses_per_minute = {} must be 0 or more", self.losses_per_minute));
        }
        if !(0.0..=86_400.0).contains(&self.notice_s) {
            return Err(format!("notice_s = {} must be 0 to 86400", self.notice_s));
        }
        if !(0.0..=65_536.0).contains(&self.cpus_max) {
            return Err(format!("cpus_max = {} must be 0 to 65536", self.cpus_max));
        }
        Ok(())
    }

    pub(crate) fn limits(&self) -> Limits {
        let memory_bytes = self.memory_max_mib.saturating_mul(1024 * 1024);
        Limits { memory_bytes, cpus: self.cpus_max, processes: self.processes_max }
    }
}
