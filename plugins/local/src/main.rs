//! Executable of the plugin.

use std::process::ExitCode;

fn main() -> ExitCode {
    fleeting_plugin_local::main(&[], &std::env::args().skip(1).collect::<Vec<_>>())
}
