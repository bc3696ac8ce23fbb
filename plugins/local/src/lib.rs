//! `fleeting-plugin-local`: instances on this host. Each is a process with its own SSH server and directory and, if the
//! system allows it, its own process and mount namespaces.
//!
//! It also simulates a cloud for demonstrations and tests: boot time, API rate, failures, partial grants and
//! preemptions are configurable.

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

/// Runs the plugin. `own` are the arguments that make this executable the plugin (none for the plugin's own
/// executable), and `arguments` are those that follow them.
#[must_use]
pub fn main(own: &'static [&'static str], arguments: &[String]) -> ExitCode {
    // The plugin starts itself again for each instance.
    instance::set_own_arguments(own);
    if let Some((instance::INSTANCE_ARG, arguments)) = arguments.split_first().map(|(word, rest)| (word.as_str(), rest))
    {
        return instance_main::main(arguments);
    }
    muster_fleeting::sdk::main_with::<provider::Local>(arguments)
}
