//! The plugins that the runners of a configuration name.

use muster_fleeting::install::{InstallError, ResolveError, ResolvedPlugin, resolve};

use super::error::PluginError;
use super::install::{self, How};
use super::serve::surroundings;
use crate::ci::ui;
use crate::config_file::ConfigArg;

/// Arguments of `gitlab-runner fleeting install`.
#[derive(Debug, clap::Args)]
pub(crate) struct InstallArgs {
    #[command(flatten)]
    how: How,
    #[command(flatten)]
    config: ConfigArg,
}

/// Arguments of `gitlab-runner fleeting list`.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    config: ConfigArg,
}

/// One runner with an autoscaler.
struct Wanted {
    runner: String,
    plugin: String,
}

fn wanted(config: &ConfigArg) -> Result<Vec<Wanted>, PluginError> {
    let config = config.load().map_err(|error| PluginError::Config(error.to_string()))?;
    let mut wanted = Vec::new();
    for runner in &config.runners {
        let Some(autoscaler) = runner.table.table("autoscaler") else { continue };
        let own = autoscaler.str("plugin").unwrap_or_default();
        let groups = autoscaler.tables("groups").iter().map(|group| group.str("plugin").unwrap_or(own));
        let mut plugins: Vec<&str> = groups.collect();
        if plugins.is_empty() {
            plugins.push(own);
        }
        plugins.sort_unstable();
        plugins.dedup();
        wanted
            .extend(plugins.iter().map(|plugin| Wanted { runner: runner.name.clone(), plugin: (*plugin).to_owned() }));
    }
    Ok(wanted)
}

fn tell(wanted: &Wanted, path: &std::path::Path) {
    ui::outln(&format!("runner: {}, plugin: {}, path: {}", wanted.runner, wanted.plugin, path.display()));
}

fn fail(wanted: &Wanted, error: &PluginError) -> bool {
    ui::error(&format!("runner: {}, plugin: {}: {}", wanted.runner, wanted.plugin, muster_job::error_chain(error)));
    false
}

/// Brings each plugin that is not here. Those that are named by a path or on `PATH` are nobody's to upgrade.
pub(super) async fn install_all(config: &ConfigArg, how: How) -> Result<bool, PluginError> {
    let around = surroundings();
    let mut all = true;
    let wanted = wanted(config)?;
    if wanted.is_empty() {
        ui::note(&format!("{} names no plugin: nothing is installed", config.path().display()));
    }
    for wanted in wanted {
        match resolve(&wanted.plugin, &around) {
            Ok(ResolvedPlugin::Installed(path)) if !how.upgrades() => tell(&wanted, &path),
            Ok(ResolvedPlugin::Path(path) | ResolvedPlugin::OnPath(path)) => tell(&wanted, &path),
            // It comes with this program.
            Ok(ResolvedPlugin::BuiltIn { executable, .. }) => tell(&wanted, &executable),
            // A path or an executable's name is no registry's.
            Err(error @ (ResolveError::Path { .. } | ResolveError::NotOnPath { .. })) => {
                all = fail(&wanted, &error.into());
            }
            Ok(ResolvedPlugin::Installed(_)) | Err(_) => {
                let Some(store) = &around.store else {
                    all = fail(&wanted, &InstallError::NoDirectory.into());
                    continue;
                };
                match install::one(store, &wanted.plugin, how).await {
                    Ok(done) => tell(&wanted, &done.installed.executable),
                    Err(error) => all = fail(&wanted, &error),
                }
            }
        }
    }
    Ok(all)
}

/// `gitlab-runner fleeting install`.
pub(super) async fn install(args: &InstallArgs) -> Result<bool, PluginError> {
    install_all(&args.config, args.how).await
}

/// `gitlab-runner fleeting list`.
pub(super) fn list(args: &ListArgs) -> Result<bool, PluginError> {
    let around = surroundings();
    let mut all = true;
    for wanted in wanted(&args.config)? {
        match resolve(&wanted.plugin, &around) {
            Ok(found) => tell(&wanted, found.executable()),
            Err(error) => all = fail(&wanted, &error.into()),
        }
    }
    Ok(all)
}
