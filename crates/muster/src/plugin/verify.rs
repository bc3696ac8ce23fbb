//! `verify`: checks that installed plugins have not been modified.

use muster_fleeting::install::{DEFAULTS, Installed, Store, VerifyOutcome};
use muster_oci::{Constraint, Reference};

use super::error::PluginError;
use crate::ci::ui;

/// Arguments of `muster plugin verify`.
#[derive(Debug, clap::Args)]
pub(crate) struct PluginVerifyArgs {
    /// Plugins to check; all by default. With :VERSION, checks only matching versions.
    #[arg(value_name = "PLUGIN")]
    plugins: Vec<String>,
}

/// Runs `muster plugin verify`. Prints a line per version, and the changes of a modified one.
pub(super) fn run(args: &PluginVerifyArgs) -> Result<bool, PluginError> {
    let store = Store::from_environment()?;
    let wanted = args.plugins.iter().map(|plugin| Reference::parse(plugin, &DEFAULTS));
    let wanted = wanted.collect::<Result<Vec<_>, _>>()?;
    let mut installed = store.list();
    installed.retain(|installed| wanted.is_empty() || wanted.iter().any(|wanted| matches(wanted, installed)));
    let missing: Vec<_> =
        wanted.iter().filter(|wanted| !installed.iter().any(|installed| matches(wanted, installed))).collect();
    let mut all = missing.is_empty();
    for plugin in missing {
        let which = if has_no_version(plugin) { "no version" } else { "no matching version" };
        ui::error(&format!("plugin {plugin}: {which} is installed in {}", store.directory().display()));
    }
    for finding in store.verify(installed)? {
        let name = format!("{} {}", finding.installed.repository, finding.installed.version);
        match finding.outcome {
            VerifyOutcome::Intact => ui::outln(&format!("{name}: intact")),
            VerifyOutcome::NotLocked => ui::outln(&format!(
                "{name}: not in {}, because another program installed it; reinstall it with --upgrade to enable checks",
                store.lock_file().display()
            )),
            VerifyOutcome::Changed(changes) => {
                all = false;
                ui::outln(&format!("{name}: MODIFIED"));
                for line in changes {
                    ui::outln(&format!("  {line}"));
                }
                ui::outln(&format!(
                    "  reinstall it: muster plugin install --upgrade {}:{}",
                    finding.installed.repository, finding.installed.version
                ));
            }
        }
    }
    Ok(all)
}

/// Whether the reference selects all versions, because it has none.
fn has_no_version(wanted: &Reference) -> bool {
    matches!(wanted.constraint, Constraint::Latest | Constraint::Any)
}

fn matches(wanted: &Reference, installed: &Installed) -> bool {
    let has_version = has_no_version(wanted) || wanted.constraint.matches(&installed.version);
    wanted.repository == installed.repository && has_version
}
