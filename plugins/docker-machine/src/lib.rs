//! `fleeting-plugin-docker-machine`: machines by the docker-machine command line, from an old `[runners.machine]` table.
//!
//! ```text
//! asked for --> creating --created--> ready --given back, stopped, or in error for long--> removing --> gone
//!                   |                                                                        ^
//!                   +--failed, given back, or the plugin died meanwhile----------------------+
//! ```
//! - `config`: the keys of `[runners.machine]` and of the plugin, checked; names of machines.
//! - `machine`: the command line: what is run, what its answers mean.
//! - `group`: which machine is in which state; pure.
//! - `provider`: the calls of the protocol, and the work between them.

mod config;
mod group;
mod machine;
mod provider;

use std::process::ExitCode;

/// The whole plugin. `arguments` are those of the command line, without the program's name.
#[must_use]
pub fn main(arguments: &[String]) -> ExitCode {
    muster_fleeting::sdk::main_with::<provider::DockerMachine>(arguments)
}
