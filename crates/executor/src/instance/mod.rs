//! Executor for instances: jobs run on machines that a fleeting plugin creates, each with one agent.
//!
//! ```text
//! taskscaler --lease--> instance --session (SSH, WinRM)--> agent (see `deploy`)
//! ```
//!
//! With `vm_isolation`, each job has a virtual machine on its instance, and the agent runs in that machine
//! ([`isolation`]).
//!
//! A broken connection is replaced while the instance exists. The scaler is notified at once, and asks the provider
//! whether the instance still exists.

mod acquire;
mod claims;
mod connect;
mod extension;
mod files;
mod group_plugins;
mod isolation;
mod lease;
mod plugin_group;
mod plugin_metrics;
mod prepare;
mod provider;
mod remaining;
mod report;
mod resources;
mod runners;
mod settings;
mod share;
mod work;

pub use lease::UNRESPONSIVE_TIMEOUT;
pub use plugin_group::PluginGroup;
pub use provider::{InstanceExecutor, InstanceOptions};
pub use runners::{Fleet, FleetList, InstanceExecutors, InstancesOptions, NAME, log_remaining_instances, read_fleets};
pub use settings::SettingsError;

/// Metrics of a scaler, its plugins and its instances.
pub mod metrics {
    use muster_taskscaler::driver::Buckets;
    use prometheus::proto::MetricFamily;

    /// Returns all metric families, as they are while no instances and virtual machines exist.
    #[must_use]
    pub fn all() -> Vec<MetricFamily> {
        use muster_taskscaler::config::{Config, GroupConfig};
        let scaler =
            muster_taskscaler::driver::Metrics::new(&Config::new(GroupConfig::new("", 0)), &Buckets::default());
        let plugin = super::plugin_metrics::families(&[(String::new(), muster_fleeting::host::Counts::default())]);
        let families = scaler
            .families()
            .into_iter()
            .chain(plugin)
            .chain(super::resources::InstanceUsageTracker::default().families());
        families.chain(super::isolation::Isolation::default().families()).collect()
    }
}
