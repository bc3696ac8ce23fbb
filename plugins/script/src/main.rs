//! Executable of the plugin.

use std::process::ExitCode;

fn main() -> ExitCode {
    fleeting_plugin_script::main(&std::env::args().skip(1).collect::<Vec<_>>())
}
