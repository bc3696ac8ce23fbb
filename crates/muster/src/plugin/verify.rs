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

/// Prints one line per version, and what changed in a modified version.
pub(super) fn run(args: &PluginVerifyArgs) -> Result<bool, PluginError> {
    let store = Store::from_environment()?;
    let requested = args.plugins.iter().map(|plugin| Reference::parse(plugin, &DEFAULTS));
    let requested = requested.collect::<Result<Vec<_>, _>>()?;
    let mut installed = store.list();
    installed
        .retain(|installed| requested.is_empty() || requested.iter().any(|requested| matches(requested, installed)));
    let missing: Vec<_> =
        requested.iter().filter(|requested| !installed.iter().any(|installed| matches(requested, installed))).collect();
    let mut all_succeeded = missing.is_empty();
    for plugin in missing {
        let missing_version = if has_no_version(plugin) { "no version" } else { "no matching version" };
        ui::error(&format!("plugin {plugin}: {missing_version} is installed in {}", store.directory().display()));
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
                all_succeeded = false;
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
    Ok(all_succeeded)
}

/// Returns whether a reference names no particular version, and so matches all installed versions.
fn has_no_version(requested: &Reference) -> bool {
    matches!(requested.constraint, Constraint::Latest | Constraint::Any)
}

fn matches(requested: &Reference, installed: &Installed) -> bool {
    let version_matches = has_no_version(requested) || requested.constraint.matches(&installed.version);
    requested.repository == installed.repository && version_matches
}
