//! Configuration of the plugin.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cgroup::Limits;

/// Settings of the plugin. All have defaults.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Config {
    /// Name of the group.
    pub(crate) name: String,
    /// Maximum number of instances.
    pub(crate) max_size: u32,
    /// Parent of the directories of instances. Empty means a temporary directory.
    pub(crate) directory: PathBuf,
    /// Whether instances continue when the plugin ends, as in a cloud. The next plugin finds them in `directory`.
    /// Requires namespaces, and cannot be combined with cgroup limits.
    pub(crate) persistent_instances: bool,
    /// Whether instances can be suspended: their processes are stopped and continued later.
    pub(crate) suspendable: bool,
    /// `auto` uses namespaces if the system allows it, `namespaces` requires them, `none` disables them.
    pub(crate) isolation: Isolation,
    /// Time in milliseconds from the request for an instance until it boots.
    pub(crate) boot_delay_ms: u64,
    /// Random variation of the boot delay, as a fraction from 0 to 1.
    pub(crate) boot_jitter: f64,
    /// Maximum number of instances that the cloud creates per second. 0 means no limit. Further instances are not
    /// accepted.
    pub(crate) creations_per_second: u32,
    /// Maximum number of instances that are accepted per request. 0 means no limit.
    pub(crate) max_instances_per_request: u32,
    /// Fraction of each request that is accepted, above 0 and up to 1. At least one instance is accepted.
    pub(crate) acceptance_rate: f64,
    /// Duration of a request for instances in milliseconds.
    pub(crate) request_delay_ms: u64,
    /// Number of requests that fail after the plugin starts. Later requests are not affected.
    pub(crate) request_failures: u32,
    /// Fraction of requests that fail, from 0 to 1.
    pub(crate) request_failure_rate: f64,
    /// Fraction of heartbeats of running instances that fail, from 0 to 1.
    pub(crate) heartbeat_failure_rate: f64,
    /// Fraction of instances that never start, from 0 to 1.
    pub(crate) boot_failure_rate: f64,
    /// Average number of preemptions per minute of each running instance.
    pub(crate) preemptions_per_minute: f64,
    /// Time in seconds between the notice of a preemption and the preemption. 0 means no notice.
    pub(crate) preemption_notice_s: f64,
    /// Maximum number of instances that the cloud has at the same time. 0 means no limit except `max_size`. Further
    /// requests are rejected as out of stock.
    pub(crate) capacity: u32,
    /// Price of an instance in millionths of `currency` per hour. 0 means that no price is reported.
    pub(crate) price_micros_per_hour: u64,
    /// Currency of the price (ISO 4217).
    pub(crate) currency: String,
    /// Memory limit of an instance in MiB, by cgroup. 0 means no limit.
    pub(crate) max_memory_mib: u64,
    /// Limit for the number of CPUs of an instance, by cgroup, at least 0.01. 0 means no limit.
    pub(crate) max_cpus: f64,
    /// Limit for the number of processes of an instance, by cgroup. 0 means no limit.
    pub(crate) max_processes: u32,
    /// Program to run on this host before each job, with its first arguments. The instance's name and the job's key are
    /// its last arguments. Empty means none.
    pub(crate) prepare_command: Vec<String>,
    /// Program to run on this host after each job, with the same last arguments as `prepare_command`. Empty means none.
    pub(crate) finish_command: Vec<String>,
    /// Seed of the random generator. 0 means a different seed for each start.
    pub(crate) seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: "local".to_owned(),
            max_size: 10,
            directory: PathBuf::new(),
            persistent_instances: false,
            suspendable: false,
            isolation: Isolation::Auto,
            boot_delay_ms: 0,
            boot_jitter: 0.0,
            creations_per_second: 0,
            max_instances_per_request: 0,
            acceptance_rate: 1.0,
            request_delay_ms: 0,
            request_failures: 0,
            request_failure_rate: 0.0,
            heartbeat_failure_rate: 0.0,
            boot_failure_rate: 0.0,
            preemptions_per_minute: 0.0,
            preemption_notice_s: 0.0,
            capacity: 0,
            price_micros_per_hour: 0,
            currency: "USD".to_owned(),
            max_memory_mib: 0,
            max_cpus: 0.0,
            max_processes: 0,
            prepare_command: Vec::new(),
            finish_command: Vec::new(),
            seed: 0,
        }
    }
}

/// Isolation between instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Isolation {
    /// Namespaces if the system allows it.
    Auto,
    /// Namespaces are required.
    Namespaces,
    /// Process groups only.
    None,
}

impl Config {
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.max_size == 0 {
            return Err("max_size must be at least 1".to_owned());
        }
        if self.persistent_instances {
            let conflicts = [
                (
                    self.directory.as_os_str().is_empty(),
                    "requires directory, in which the next plugin finds its instances",
                ),
                (
                    self.isolation == Isolation::None,
                    "requires namespaces, without which the processes of an instance cannot be stopped",
                ),
                (
                    !self.limits().is_unlimited(),
                    "cannot be combined with max_memory_mib, max_cpus and max_processes, because cgroups are removed with the plugin",
                ),
            ];
            if let Some((_, reason)) = conflicts.iter().find(|(is_present, _)| *is_present) {
                return Err(format!("persistent_instances = true {reason}"));
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
                return Err(format!("{key} = {rate} must be from 0 to 1"));
            }
        }
        if !(self.acceptance_rate > 0.0 && self.acceptance_rate <= 1.0) {
            return Err(format!("acceptance_rate = {} must be above 0 and at most 1", self.acceptance_rate));
        }
        if !self.preemptions_per_minute.is_finite() || self.preemptions_per_minute < 0.0 {
            return Err(format!("preemptions_per_minute = {} must be 0 or more", self.preemptions_per_minute));
        }
        if !(0.0..=86_400.0).contains(&self.preemption_notice_s) {
            return Err(format!("preemption_notice_s = {} must be from 0 to 86400", self.preemption_notice_s));
        }
        // The kernel rejects smaller quotas.
        if self.max_cpus != 0.0 && !(0.01..=65_536.0).contains(&self.max_cpus) {
            return Err(format!("max_cpus = {} must be 0, or from 0.01 to 65536", self.max_cpus));
        }
        Ok(())
    }

    pub(crate) fn limits(&self) -> Limits {
        let memory_bytes = self.max_memory_mib.saturating_mul(1024 * 1024);
        Limits { memory_bytes, cpus: self.max_cpus, processes: self.max_processes }
    }
}
