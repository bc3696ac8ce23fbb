//! A plugin's command line (docs/spec/fleeting.md, section 2.6).

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::erased::Plugin;
use super::{Provider, config, log, serve};
use crate::layout;
use crate::model::Platform;
use crate::protocol::{COOKIE_KEY, COOKIE_VALUE};

/// Exit status for usage errors, the same as in Go's flag package.
const USAGE_ERROR_STATUS: u8 = 2;

/// Runs a plugin's whole program.
///
/// Without arguments, the program serves a host. `-version`, `--version` and `version` print the version. `settings` prints the reference of
/// `plugin_config`. `bootstrap REPOSITORY` copies the executable to the directory of installed plugins.
#[must_use]
pub fn main<P: Provider>() -> ExitCode {
    main_with::<P>(&std::env::args().skip(1).collect::<Vec<_>>())
}

/// Runs [`main`] with explicit arguments, for a plugin that is built into another program.
#[must_use]
pub fn main_with<P: Provider>(arguments: &[String]) -> ExitCode {
    execute(Plugin::of::<P>(), arguments)
}

fn execute(plugin: Plugin, arguments: &[String]) -> ExitCode {
    match arguments.first().map(String::as_str) {
        Some("-version" | "--version" | "version") => print(&version(&plugin)),
        Some("settings") => print(&config::describe(&(plugin.schema)())),
        Some("bootstrap") => match bootstrap(plugin.version, arguments.get(1).map(String::as_str)) {
            Ok(directory) => print(&format!("{directory}\n")),
            Err(error) => fail(&super::error_chain(&error), ExitCode::FAILURE),
        },
        Some("-h" | "-help" | "--help") => print(&usage(&plugin)),
        Some(flag) if flag.starts_with('-') => fail(
            &format!("flag provided but not defined: {flag}\n{}", usage(&plugin)),
            ExitCode::from(USAGE_ERROR_STATUS),
        ),
        // As in Go plugins, other arguments are ignored.
        _ => run(plugin),
    }
}

fn run(plugin: Plugin) -> ExitCode {
    if std::env::var(COOKIE_KEY).as_deref() != Ok(COOKIE_VALUE) {
        let text = format!(
            "This is the fleeting plugin {}. It is not meant to be executed directly: a runner manager starts it. To use it, set \
             `plugin` in [runners.autoscaler] of config.toml.\n{}",
            plugin.name,
            usage(&plugin)
        );
        return fail(&text, ExitCode::FAILURE);
    }
    log::init();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let result = match runtime {
        Ok(runtime) => {
            let result = runtime.block_on(serve::serve(plugin));
            // A provider call that hangs must not keep the process running.
            runtime.shutdown_background();
            result
        }
        Err(error) => Err(error.into()),
    };
    match result {
        Ok(code) => code,
        Err(error) => fail(&super::error_chain(error.as_ref()), ExitCode::FAILURE),
    }
}

fn print(text: &str) -> ExitCode {
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn fail(text: &str, code: ExitCode) -> ExitCode {
    // An error cannot be reported if stderr is closed.
    let _ = writeln!(std::io::stderr(), "{text}");
    code
}

fn usage(plugin: &Plugin) -> String {
    format!(
        "Usage: fleeting-plugin-{} [-version | settings | bootstrap REPOSITORY]\n  (no argument)  serve a runner manager\n  \
         -version       print the version\n  settings       print the reference of plugin_config\n  bootstrap      copy this \
         executable to $FLEETING_PLUGIN_PATH\n",
        plugin.name
    )
}

/// Returns seven lines with labels, followed by an empty line (docs/spec/fleeting.md, case P3).
fn version(plugin: &Plugin) -> String {
    let line = |label: &str, value: &str| format!("{label:<14}{value}\n");
    [
        line("Name:", &format!("fleeting-plugin-{}", plugin.name)),
        line("Version:", plugin.version),
        line("Git revision:", option_env!("MUSTER_GIT_REVISION").unwrap_or("unknown")),
        line("Git ref:", option_env!("MUSTER_GIT_REF").unwrap_or("unknown")),
        line("GO version:", "none (Rust)"),
        line("Built:", option_env!("MUSTER_BUILT_AT").unwrap_or("unknown")),
        line("OS/Arch:", &Platform::this().to_string()),
        "\n".to_owned(),
    ]
    .concat()
}

pub(super) fn build_info() -> String {
    format!(
        "sha={}; ref={}; go=none; built_at={}; os_arch={}",
        option_env!("MUSTER_GIT_REVISION").unwrap_or("unknown"),
        option_env!("MUSTER_GIT_REF").unwrap_or("unknown"),
        option_env!("MUSTER_BUILT_AT").unwrap_or("unknown"),
        Platform::this()
    )
}

#[derive(Debug, thiserror::Error)]
enum BootstrapError {
    #[error("bootstrap requires the repository from which this plugin was pulled")]
    NoRepository,
    #[error("{found:?} is not a valid repository; write REGISTRY/GROUP/NAME")]
    Repository { found: String },
    #[error("{root} is not a directory; mount a directory for plugins there, or set FLEETING_PLUGIN_PATH")]
    NoDirectory { root: String },
    #[error("failed to copy the plugin to {}", directory.display())]
    Copy { directory: PathBuf, source: std::io::Error },
}

/// Copies this executable to `<plugins>/<repository>/<version>/plugin`.
/// This code runs in the plugin's container image (docs/spec/fleeting.md, section 6.7).
fn bootstrap(version: &str, repository: Option<&str>) -> Result<String, BootstrapError> {
    let repository = repository.filter(|repository| !repository.is_empty()).ok_or(BootstrapError::NoRepository)?;
    let without_tag = match repository.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => name,
        _ => repository,
    };
    let is_plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    let (registry, path) = without_tag
        .split_once('/')
        .filter(|(registry, path)| is_plain(registry) && path.split('/').all(is_plain))
        .ok_or_else(|| BootstrapError::Repository { found: repository.to_owned() })?;
    let root = std::env::var("FLEETING_PLUGIN_PATH").unwrap_or_else(|_| "/plugins".to_owned());
    if !Path::new(&root).is_dir() {
        return Err(BootstrapError::NoDirectory { root });
    }
    let directory = layout::repository_directory(Path::new(&root), registry, path).join(layout::escape(version));
    let copy = || {
        std::fs::create_dir_all(&directory)?;
        let temporary = directory.join(".plugin.new");
        std::fs::copy(std::env::current_exe()?, &temporary)?;
        std::fs::rename(temporary, directory.join("plugin"))
    };
    copy().map_err(|source| BootstrapError::Copy { directory: directory.clone(), source })?;
    Ok(directory.display().to_string())
}
