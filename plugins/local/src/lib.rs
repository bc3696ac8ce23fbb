//! `fleeting-plugin-local`: instances on this host. Each is a process with its own SSH server and directory and, if the
//! system allows it, its own process and mount namespaces.
//!
//! It also simulates a cloud: boot time, API rate, failures, partially accepted requests and preemptions.

mod cgroup;
mod cloud_simulator;
mod config;
mod extension;
mod instance;
mod instance_main;
mod orphans;
mod persistent;
mod provider;
mod run_dir;
pub mod server;
mod suspend;
mod sys;
mod usage;

use std::process::ExitCode;

/// Runs the plugin. `plugin_arguments` select the plugin in an executable with several plugins, and are otherwise
/// empty. `arguments` follow them.
#[must_use]
pub fn main(plugin_arguments: &'static [&'static str], arguments: &[String]) -> ExitCode {
    // Each instance is another process of this executable.
    instance::set_plugin_arguments(plugin_arguments);
    if let Some((instance::INSTANCE_ARG, arguments)) =
        arguments.split_first().map(|(first, rest)| (first.as_str(), rest))
    {
        return instance_main::main(arguments);
    }
    muster_fleeting::sdk::main_with::<provider::Local>(arguments)
}
