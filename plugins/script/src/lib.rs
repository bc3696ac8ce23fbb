//! `fleeting-plugin-script`: each call of the plugin protocol is a program of the user's, in any language. The contract
//! is in docs/reference/plugin-script.md.
//!
//! - `config`: the settings, checked.
//! - `call`: runs one program: arguments, environment, stdin, limit.
//! - `answer`: what a program printed, as lines or as JSON, to values; pure.
//! - `provider`: the calls.

mod answer;
mod call;
mod config;
mod programs;
mod provider;

use std::process::ExitCode;

/// The whole plugin. `arguments` are those of the command line, without the program's name.
#[must_use]
pub fn main(arguments: &[String]) -> ExitCode {
    muster_fleeting::sdk::main_with::<provider::Script>(arguments)
}
