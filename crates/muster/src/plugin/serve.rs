//! `muster plugin serve NAME`: the plugins that come with Muster, as plugins of this program. A manager starts them by itself
//! where no executable of the name is installed or on PATH.

use std::ffi::OsString;
use std::process::ExitCode;

use muster_fleeting::install::{BuiltIn, LookupContext};

use crate::ci::ui;

/// The plugins that come with Muster.
const NAMES: &[&str] = &["docker-machine", "local", "script", "static"];

/// What a look-up knows: the machine's plugins, and this program's.
pub(crate) fn surroundings() -> LookupContext {
    let built_in = std::env::current_exe().ok().map(|executable| BuiltIn { executable, names: NAMES });
    LookupContext { built_in, ..LookupContext::from_environment() }
}

/// Be one of the plugins that come with Muster: local, static, script, docker-machine.
#[derive(Debug, clap::Parser)]
// `--version` is the plugin's.
#[command(name = "muster plugin serve", disable_version_flag = true)]
pub(crate) struct Args {
    /// Its name.
    name: String,
    /// What the plugin's own executable takes: `-version`, `settings`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Whether these are the words by which a plugin is started, under whichever name the program was called.
pub(crate) fn is_asked(arguments: &[OsString]) -> bool {
    arguments.get(1).is_some_and(|word| word == "plugin") && arguments.get(2).is_some_and(|word| word == "serve")
}

/// Serves.
pub(crate) fn run(args: &Args) -> ExitCode {
    match args.name.as_str() {
        "local" => fleeting_plugin_local::main(&["plugin", "serve", "local"], &args.arguments),
        "static" => fleeting_plugin_static::main(&args.arguments),
        "script" => fleeting_plugin_script::main(&args.arguments),
        "docker-machine" => fleeting_plugin_docker_machine::main(&args.arguments),
        other => {
            let known = NAMES.join(", ");
            ui::error(&format!("there is no plugin {other:?} in this program; there are {known}"));
            ExitCode::from(2)
        }
    }
}
