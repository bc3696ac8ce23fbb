//! `fleeting-plugin-local`: instances on this host. Each is a process with an SSH server of its own, a directory of its
//! own, and, where the system permits it, process and mount namespaces of its own.
//!
//! It is also a cloud for demonstrations and tests: boot time, API rate, failures, short grants and losses are settings.

mod cgroup;
mod clouds_mood;
mod config;
mod extension;
mod instance;
mod orphans;
mod outlive;
mod place;
mod program;
mod provider;
pub mod server;
mod sleep;
mod sys;
mod usage;

use std::process::ExitCode;

/// The whole plugin. `own` are the arguments that make this executable the plugin (none for the plugin's own one), and
/// `arguments` those that follow them.
#[must_use]
pub fn main(own: &'static [&'static str], arguments: &[String]) -> ExitCode {
    // The plugin starts itself again as each of its instances.
    instance::set_own_arguments(own);
    if let Some((instance::WORD, arguments)) = arguments.split_first().map(|(word, rest)| (word.as_str(), rest)) {
        return program::main(arguments);
    }
    muster_fleeting::sdk::main_with::<provider::Local>(arguments)
}
