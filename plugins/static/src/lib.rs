//! `fleeting-plugin-static`: machines that are there already, lent out one lease at a time.
//!
//! ```text
//! free + well --grant--> leased --release--> cleaning --cleaned and checked--> free + well
//!   ^   |                                       | failed: again at the next check
//!   |   +--check fails--> free + ill (quarantine) --check succeeds--+
//!   +----------------------------------------------------------------+
//! ```
//! - `config`: the settings and the list of machines, checked.
//! - `pool`: which machine is in which state; pure.
//! - `store`: the leases on disk, locked, written before they are granted.
//! - `probe`: what is done on a machine: check, clean-up.
//! - `provider`: the calls of the protocol, and the work between them.

mod config;
mod pool;
mod probe;
mod provider;
mod store;

use std::process::ExitCode;

/// The whole plugin. `arguments` are those of the command line, without the program's name.
#[must_use]
pub fn main(arguments: &[String]) -> ExitCode {
    muster_fleeting::sdk::main_with::<provider::Static>(arguments)
}
