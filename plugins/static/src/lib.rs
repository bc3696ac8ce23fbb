//! `fleeting-plugin-static`: existing machines, which are leased one at a time.
//!
//! ```text
//!                                           +----------+
//!                                           v          | failed: retried at the next check
//! free, healthy --lease--> leased --release--> cleaning --cleaned and checked--> free, healthy
//!   ^   |
//!   |   +--check fails--> free, unhealthy --check succeeds--+
//!   +-------------------------------------------------------+
//! ```
//! - `config`: the settings and the list of machines.
//! - `pool`: the state of each machine; no I/O.
//! - `store`: the file of leases.
//! - `probe`: checks and cleanups of machines.
//! - `provider`: calls of the protocol, and background tasks.

mod config;
mod pool;
mod probe;
mod provider;
mod store;

use std::process::ExitCode;

/// Runs the plugin. `arguments` is the command line without the program's name.
#[must_use]
pub fn main(arguments: &[String]) -> ExitCode {
    muster_fleeting::sdk::main_with::<provider::Static>(arguments)
}
