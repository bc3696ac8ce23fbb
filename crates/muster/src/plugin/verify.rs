//! `verify`: whether installed plugins are what was installed.

use muster_fleeting::install::{DEFAULTS, Installed, Store, VerifyOutcome};
use muster_oci::{Constraint, Reference};

use super::error::PluginError;
use crate::ci::ui;

/// Arguments of `verify`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Plugins to check; with :VERSION only those versions. Without any, all that are installed.
    #[arg(value_name = "PLUGIN")]
    plugins: Vec<String>,
}

/// Runs the command: one line for each version, more where it has changed.
pub(super) fn run(args: &Args) -> Result<bool, PluginError> {
    let store = Store::from_environment()?;
    let wanted = args.plugins.iter().map(|plugin| Reference::parse(plugin, &DEFAULTS));
    let wanted = wanted.collect::<Result<Vec<_>, _>>()?;
    let mut installed = store.list();
    installed.retain(|installed| wanted.is_empty() || wanted.iter().any(|wanted| fits(wanted, installed)));
    let missing: Vec<_> =
        wanted.iter().filter(|wanted| !installed.iter().any(|installed| fits(wanted, installed))).collect();
    let mut all = missing.is_empty();
    for plugin in missing {
        let version = if names_all(plugin) { "no version" } else { "no such version" };
        ui::error(&format!("plugin {plugin}: {version} is installed in {}", store.directory().display()));
    }
    for finding in store.verify(installed)? {
        let name = format!("{} {}", finding.installed.repository, finding.installed.version);
        match finding.outcome {
            VerifyOutcome::Intact => ui::outln(&format!("{name}: intact")),
            VerifyOutcome::NotLocked => ui::outln(&format!(
                "{name}: not in {}, another program installed it; install it with --upgrade to have it checked",
                store.lock_file().display()
            )),
            VerifyOutcome::Changed(what) => {
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

/// Whether all versions are meant: none is named.
fn names_all(wanted: &Reference) -> bool {
    matches!(wanted.constraint, Constraint::Latest | Constraint::Any)
}

fn fits(wanted: &Reference, installed: &Installed) -> bool {
    let is_it = names_all(wanted) || wanted.constraint.matches(&installed.version);
    wanted.repository == installed.repository && is_it
}
