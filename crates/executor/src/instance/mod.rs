//! The instance adapter: jobs run on machines that a fleeting plugin makes, served by one agent on each.
//!
//! ```text
//! taskscaler --lease--> Instance --session (SSH)--> sh: muster agent connect --unix socket--> muster agent serve
//! ```
//!
//! The agent is this very executable, or the one for the instance's kind of machine (`agents`). It is placed on the instance
//! where it is missing, by its hash, and kept; it is started away from the session that started it, so a connection that
//! breaks, or a manager that dies, ends no job. The tunnel is the relay's standard input and output, so an SSH server needs no
//! forwarding, and one session serves all jobs of an instance.
//!
//! With `vm_isolation` each job has a virtual machine on its instance, and the agent is in that one ([`isolation`]).
//!
//! A connection that breaks is mended while the instance lives. Whether it lives is the scaler's to say: it is told of the
//! doubt at once, and asks the provider.

mod acquire;
mod agents;
mod excerpt;
mod executable;
mod extension;
pub mod files;
mod isolation;
mod lease;
mod members;
mod place;
mod plugin_group;
mod plugin_numbers;
mod prepare;
mod provider;
mod reach;
mod report;
mod resources;
mod settings;
mod share;
mod shell;
#[cfg(test)]
mod tests;
mod work;

pub use executable::Executable;
pub use lease::SILENCE_MAX;
pub use muster_fleeting::host::PluginSpec;
/// What operators are told of a fleet.
pub use muster_taskscaler::{fleet, operator};
pub use plugin_group::PluginGroup;
pub use provider::{InstanceExecutor, InstanceOptions};
pub use reach::{Addresses, Dial, Told, directories};
pub use settings::SettingsError;
/// The numbers of a scaler, its plugin and its instances.
pub mod numbers {
    pub use muster_taskscaler::driver::{Buckets, Family, Kind, Sample};

    /// All of them, of a scaler that has done nothing, a plugin that was not started, and no virtual machine.
    #[must_use]
    pub fn all() -> Vec<Family> {
        use muster_taskscaler::config::{Config, GroupConfig};
        let scaler =
            muster_taskscaler::driver::Metrics::new(&Config::new(GroupConfig::new("", 0)), &Buckets::default());
        let plugin = super::plugin_numbers::families(&[(String::new(), muster_fleeting::host::Counts::default())]);
        let of_scaler =
            scaler.families().into_iter().chain(plugin).chain(super::resources::Usage::default().families());
        of_scaler.chain(super::isolation::Isolation::default().families()).collect()
    }
}
pub use muster_taskscaler::need::{cpu_milli, memory_bytes};

pub use shell::{CONNECTED, FAILED, MARK, OLDER};
