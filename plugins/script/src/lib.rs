//! `fleeting-plugin-script`: each call of the plugin protocol is a program of the user
//! (docs/reference/plugin-script.md).
//!
//! - `config`: the settings.
//! - `programs`: runs a program with arguments, environment, stdin and timeout.
//! - `output`: parses the output of a program, as lines or as JSON; no I/O.
//! - `provider`: the calls.

mod call;
mod config;
mod output;
mod programs;
mod provider;

use std::process::ExitCode;

/// Runs the plugin. `arguments` is the command line without the program's name.
#[must_use]
pub fn main(arguments: &[String]) -> ExitCode {
    muster_fleeting::sdk::main_with::<provider::Script>(arguments)
}
