//! `muster plugin serve NAME`: runs a built-in plugin. Managers use it if no executable of that name is installed or on
//! PATH.

use std::ffi::OsString;
use std::process::ExitCode;

use muster_fleeting::install::{BuiltIn, LookupContext};

use crate::ci::ui;

const NAMES: &[&str] = &["docker-machine", "local", "script", "static"];

/// Returns where to look up plugins: the directory of installed plugins, PATH, and the built-in plugins.
pub(crate) fn lookup_context() -> LookupContext {
    let built_in = std::env::current_exe().ok().map(|executable| BuiltIn { executable, names: NAMES });
    LookupContext { built_in, ..LookupContext::from_environment() }
}

/// Run a plugin that is built into Muster: local, static, script or docker-machine.
#[derive(Debug, clap::Parser)]
// `--version` is an argument of the plugin.
#[command(name = "muster plugin serve", disable_version_flag = true)]
pub(crate) struct PluginServeArgs {
    /// Name of the plugin.
    name: String,
    /// Arguments of the plugin, such as `-version` or `settings`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Returns whether the arguments start a plugin, regardless of the program's name.
pub(crate) fn is_serve_invocation(arguments: &[OsString]) -> bool {
    arguments.get(1).is_some_and(|word| word == "plugin") && arguments.get(2).is_some_and(|word| word == "serve")
}

pub(crate) fn run(args: &PluginServeArgs) -> ExitCode {
    match args.name.as_str() {
        "local" => fleeting_plugin_local::main(&["plugin", "serve", "local"], &args.arguments),
        "static" => fleeting_plugin_static::main(&args.arguments),
        "script" => fleeting_plugin_script::main(&args.arguments),
        "docker-machine" => fleeting_plugin_docker_machine::main(&args.arguments),
        other => {
            let known = NAMES.join(", ");
            ui::error(&format!("unknown plugin {other:?}; built-in plugins are {known}"));
            ExitCode::from(2)
        }
    }
}
