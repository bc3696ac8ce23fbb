//! `fleeting-plugin-docker-machine`: machines from the docker-machine command line, configured by a `[runners.machine]`
//! table.
//!
//! ```text
//! requested --> creating --created--> ready --deletion requested, stopped, or in error--> removing --> removed
//!                   |                                                                        ^
//!                   +--failed, deletion requested, or the plugin exited----------------------+
//! ```
//! - `config`: keys of `[runners.machine]` and of the plugin; names of machines.
//! - `machine`: commands of docker-machine, and their output.
//! - `group`: the state of each machine; no I/O.
//! - `provider`: calls of the protocol, and background tasks.

mod config;
mod group;
mod machine;
mod provider;

use std::process::ExitCode;

/// Runs the plugin. `arguments` is the command line without the program's name.
#[must_use]
pub fn main(arguments: &[String]) -> ExitCode {
    muster_fleeting::sdk::main_with::<provider::DockerMachine>(arguments)
}
