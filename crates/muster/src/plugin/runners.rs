//! `gitlab-runner fleeting install` and `list`: for the plugins that the runners of a configuration use.

use muster_fleeting::install::{InstallError, ResolveError, ResolvedPlugin, resolve};

use super::error::PluginError;
use super::install::{self, InstallFlags};
use super::serve::lookup_context;
use crate::ci::ui;
use crate::config_file::ConfigArg;

/// Arguments of `gitlab-runner fleeting install`.
#[derive(Debug, clap::Args)]
pub(crate) struct ConfiguredInstallArgs {
    #[command(flatten)]
    flags: InstallFlags,
    #[command(flatten)]
    config: ConfigArg,
}

/// Arguments of `gitlab-runner fleeting list`.
#[derive(Debug, clap::Args)]
pub(crate) struct ConfiguredListArgs {
    #[command(flatten)]
    config: ConfigArg,
}

struct ConfiguredPlugin {
    runner: String,
    plugin: String,
}

fn configured_plugins(config: &ConfigArg) -> Result<Vec<ConfiguredPlugin>, PluginError> {
    let config = config.load().map_err(|error| PluginError::Config(error.to_string()))?;
    let mut configured = Vec::new();
    for runner in &config.runners {
        let Some(autoscaler) = runner.table.table("autoscaler") else { continue };
        let default = autoscaler.str("plugin").unwrap_or_default();
        let groups = autoscaler.tables("groups").iter().map(|group| group.str("plugin").unwrap_or(default));
        let mut plugins: Vec<&str> = groups.collect();
        if plugins.is_empty() {
            plugins.push(default);
        }
        plugins.sort_unstable();
        plugins.dedup();
        let runner = &runner.name;
        configured.extend(
            plugins.iter().map(|plugin| ConfiguredPlugin { runner: runner.clone(), plugin: (*plugin).to_owned() }),
        );
    }
    Ok(configured)
}

fn report(configured: &ConfiguredPlugin, path: &std::path::Path) {
    ui::outln(&format!("runner: {}, plugin: {}, path: {}", configured.runner, configured.plugin, path.display()));
}

/// Prints the error. Always returns false, as the new value of `all_succeeded`.
fn report_error(configured: &ConfiguredPlugin, error: &PluginError) -> bool {
    ui::error(&format!(
        "runner: {}, plugin: {}: {}",
        configured.runner,
        configured.plugin,
        muster_job::error_chain(error)
    ));
    false
}

/// Installs the plugins of a configuration. Returns false if a plugin failed.
///
/// Skips executables at a path or on `PATH`, built-in plugins, and installed plugins unless `flags` require a query of
/// the registry.
pub(super) async fn install_all(config: &ConfigArg, flags: InstallFlags) -> Result<bool, PluginError> {
    let context = lookup_context();
    let mut all_succeeded = true;
    let plugins = configured_plugins(config)?;
    if plugins.is_empty() {
        ui::note(&format!("{} uses no plugin; nothing to install", config.path().display()));
    }
    for plugin in plugins {
        match resolve(&plugin.plugin, &context) {
            Ok(ResolvedPlugin::Installed(path)) if !flags.must_query_registry() => report(&plugin, &path),
            Ok(ResolvedPlugin::Path(path) | ResolvedPlugin::OnPath(path)) => report(&plugin, &path),
            Ok(ResolvedPlugin::BuiltIn { executable, .. }) => report(&plugin, &executable),
            // Neither a path nor an executable's name refers to a registry.
            Err(error @ (ResolveError::Path { .. } | ResolveError::NotOnPath { .. })) => {
                all_succeeded = report_error(&plugin, &error.into());
            }
            Ok(ResolvedPlugin::Installed(_)) | Err(_) => {
                let Some(store) = &context.store else {
                    all_succeeded = report_error(&plugin, &InstallError::NoDirectory.into());
                    continue;
                };
                match install::install_one(store, &plugin.plugin, flags).await {
                    Ok(result) => report(&plugin, &result.installed.executable),
                    Err(error) => all_succeeded = report_error(&plugin, &error),
                }
            }
        }
    }
    Ok(all_succeeded)
}

pub(super) async fn install(args: &ConfiguredInstallArgs) -> Result<bool, PluginError> {
    install_all(&args.config, args.flags).await
}

pub(super) fn list(args: &ConfiguredListArgs) -> Result<bool, PluginError> {
    let context = lookup_context();
    let mut all_succeeded = true;
    for plugin in configured_plugins(&args.config)? {
        match resolve(&plugin.plugin, &context) {
            Ok(found) => report(&plugin, found.executable()),
            Err(error) => all_succeeded = report_error(&plugin, &error.into()),
        }
    }
    Ok(all_succeeded)
}
