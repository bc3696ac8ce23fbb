//! `verify`: whether installed plugins are what was installed.

use muster_fleeting::install::{Store, Verdict};
use muster_fleeting::oci::Repository;

use super::error::PluginError;
use crate::ci::ui;

/// Arguments of `verify`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Plugins to check, without versions. Without any, all that are installed.
    #[arg(value_name = "PLUGIN")]
    plugins: Vec<String>,
}

/// Runs the command: one line for each version, more where it has changed.
pub(super) fn run(args: &Args) -> Result<bool, PluginError> {
    let store = Store::of_environment()?;
    let wanted: Vec<Repository> = args.plugins.iter().map(|plugin| plugin.parse()).collect::<Result<_, _>>()?;
    let mut installed = store.list();
    installed.retain(|installed| wanted.is_empty() || wanted.contains(&installed.repository));
    let missing: Vec<_> =
        wanted.iter().filter(|wanted| installed.iter().all(|installed| installed.repository != **wanted)).collect();
    let mut all = missing.is_empty();
    for repository in missing {
        ui::error(&format!("plugin {repository}: no version is installed in {}", store.folder().display()));
    }
    for finding in store.verify(installed)? {
        let name = format!("{} {}", finding.installed.repository, finding.installed.version);
        match finding.verdict {
            Verdict::Intact => ui::outln(&format!("{name}: intact")),
            Verdict::Unlocked => ui::outln(&format!(
                "{name}: not in {}, another program installed it; install it with --upgrade to have it checked",
                store.lock_file().display()
            )),
            Verdict::Changed(what) => {
                all = false;
                ui::outln(&format!("{name}: CHANGED"));
                for line in what {
                    ui::outln(&format!("  {line}"));
                }
                ui::outln(&format!(
                    "  install it anew: muster plugin install --upgrade {}:{}",
                    finding.installed.repository, finding.installed.version
                ));
            }
        }
    }
    Ok(all)
}
