//! Migrates `[runners.machine]` to `[runners.autoscaler]`, with notes about keys without a replacement (R026).
//!
//! ```text
//! text --load--> tree --machine.rs--> policies, limits --------------+
//!   |              +----drivers.rs--> options of the new settings ---+--> [runners.autoscaler] with notes as comments
//!   +--toml_edit keeps all other text byte for byte -----------------+
//! ```

mod drivers;
mod dropped;
mod write;

use toml_edit::{DocumentMut, Item, Table as EditTable};

use super::facts::HostFacts;
use super::load::{self, Loaded};
use super::machine;
use super::problem::shown_name;
use super::runners::Runner;
use super::tree::Table;
use drivers::{Driver, OptionTarget};

/// Replacement for the machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MigrationTarget {
    /// An instance group of the driver's cloud, or machines if the cloud has no group plugin.
    Group,
    /// The machines themselves, through the plugin `docker-machine`.
    Machines,
}

/// A migrated configuration, which has no `[runners.machine]`.
#[derive(Debug)]
pub struct Migration {
    /// New text of the file.
    pub text: String,
    /// Names of the changed entries, with their notes. `(global)` means the global section.
    pub entries: Vec<(String, Vec<String>)>,
}

/// Reason why a text was not migrated.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    /// The text is not a valid configuration.
    #[error("the configuration has errors; fix them first")]
    Invalid(Loaded),
    /// The text has no `[runners.machine]`.
    #[error("no entry of [[runners]] has [runners.machine]; nothing to migrate")]
    Nothing,
    /// The entry is an inline table.
    #[error("runner {0}: the entry is an inline table; write it as [[runners]] and [runners.machine], then try again")]
    Inline(String),
    /// The entry does not name the driver that creates the machines.
    #[error(
        "runner {0}: [runners.machine] has no MachineDriver, so it creates no machines; set it, for example \
         MachineDriver = \"amazonec2\" (google, azure, ...), then try again"
    )]
    NoDriver(String),
}

struct MigratedSettings {
    plugin: String,
    plugin_config: serde_json::Map<String, serde_json::Value>,
    /// Empty if the plugin provides the connection details.
    connector: Vec<(&'static str, ConnectorValue)>,
    notes: Vec<String>,
}

enum ConnectorValue {
    Text(String),
    Number(i64),
    Boolean(bool),
}

/// Replaces every `[runners.machine]` in the text.
///
/// # Errors
/// [`MigrateError`] if the text cannot be migrated.
pub fn migrate(text: &str, facts: &HostFacts, target: MigrationTarget) -> Result<Migration, MigrateError> {
    let loaded = load::parse(text, facts);
    let (Some(config), Ok(mut document)) = (&loaded.config, text.parse::<DocumentMut>()) else {
        return Err(MigrateError::Invalid(loaded));
    };
    let delete_on_shutdown = config.tree.bool("machine.shutdown_drain.enabled").unwrap_or_default();
    let mut entries = Vec::new();
    for runner in &config.runners {
        let Some(old) = runner.table.table("machine") else { continue };
        let name = shown_name(&runner.name);
        let Some(entry) = entry(&mut document, runner.index) else { return Err(MigrateError::Inline(name)) };
        let notes = if !MACHINE_EXECUTORS.contains(&runner.executor.as_str()) {
            remove(entry, "machine");
            let executor = shown_name(&runner.executor);
            vec![format!("executor `{executor}` has no machines: [runners.machine] had no effect and was removed")]
        } else if let Some(autoscaler) = runner.table.table("autoscaler") {
            write::remove_machine(entry, runner);
            notes_beside_autoscaler(runner, old, autoscaler, delete_on_shutdown)
        } else if old.str("MachineDriver").unwrap_or_default().trim().is_empty() {
            return Err(MigrateError::NoDriver(name));
        } else {
            let new = migrated_settings(runner, old, target);
            write::replace(entry, runner, old, &new, delete_on_shutdown);
            new.notes
        };
        entries.push((name, notes));
    }
    if entries.is_empty() {
        return Err(MigrateError::Nothing);
    }
    if let Some(drain) = config.tree.table("machine") {
        // Of the global `[machine]`, only `shutdown_drain` has a replacement.
        let notes = drain.table("shutdown_drain").map(|_| {
            "[machine.shutdown_drain] was dropped: delete_instances_on_shutdown of each entry replaces it".to_owned()
        });
        remove(document.as_table_mut(), "machine");
        entries.push(("(global)".to_owned(), notes.into_iter().collect()));
    }
    Ok(Migration { text: document.to_string(), entries })
}

/// Returns the entry with this index in `[[runners]]`. `None` if the entry or its `machine` is an inline table.
fn entry(document: &mut DocumentMut, index: usize) -> Option<&mut EditTable> {
    let root = document.as_table_mut();
    let name = root.iter().map(|(name, _)| name).find(|name| name.eq_ignore_ascii_case("runners"))?.to_owned();
    let entry = match root.get_mut(&name)? {
        Item::ArrayOfTables(tables) => tables.get_mut(index)?,
        Item::Table(table) if index == 0 => table,
        _ => return None,
    };
    let machine = entry.iter().find(|(name, _)| name.eq_ignore_ascii_case("machine")).map(|(_, item)| item)?;
    machine.is_table().then_some(entry)
}

const MACHINE_EXECUTORS: [&str; 3] = ["docker+machine", "docker-autoscaler", "instance"];

/// Returns notes about an entry that keeps its `[runners.autoscaler]`.
fn notes_beside_autoscaler(runner: &Runner, old: &Table, autoscaler: &Table, delete_on_shutdown: bool) -> Vec<String> {
    let mut notes = Vec::new();
    if runner.executor == "docker+machine" {
        notes.push(NEEDS_ENGINE.to_owned());
    }
    notes.push(
        "[runners.autoscaler] exists already and was not changed; [runners.machine] was removed: copy the settings that you still need \
         from the following notes"
            .to_owned(),
    );
    notes.extend(dropped::notes_of_keys(old));
    let no_driver =
        Driver { name: "", plugin: None, group: "", username: "", defaults: &[], advice: &[], options: &[] };
    let driver = drivers::driver(old.str("MachineDriver").unwrap_or_default()).unwrap_or(&no_driver);
    notes.extend(options(driver, old).map(|(option, value, to)| note(option, value, to)));
    if autoscaler.tables("policy").is_empty() {
        notes.push("[runners.autoscaler] has no policy, so no instance is kept idle".to_owned());
    }
    if delete_on_shutdown && autoscaler.bool("delete_instances_on_shutdown") != Some(true) {
        notes.push(
            "[machine.shutdown_drain] removed machines on shutdown: to keep this behavior, set delete_instances_on_shutdown = true"
                .to_owned(),
        );
    }
    notes
}

const NEEDS_ENGINE: &str = "executor `docker-autoscaler` runs jobs in containers on the instance: the image of the instance must \
                            contain a Docker engine, and the login user must have access to it";

/// Removes the key, whether it is written in upper or lower case.
fn remove(table: &mut EditTable, key: &str) {
    let name = table.iter().map(|(name, _)| name).find(|name| name.eq_ignore_ascii_case(key)).map(str::to_owned);
    if let Some(name) = name {
        table.remove(&name);
    }
}

fn migrated_settings(runner: &Runner, old: &Table, target: MigrationTarget) -> MigratedSettings {
    let mut notes = Vec::new();
    if runner.executor == "docker+machine" {
        notes.push(NEEDS_ENGINE.to_owned());
    }
    let driver = drivers::driver(old.str("MachineDriver").unwrap_or_default());
    let group = match (target, driver) {
        (MigrationTarget::Group, Some(driver)) => driver.plugin.map(|plugin| (driver, plugin)),
        _ => None,
    };
    let (plugin, plugin_config, connector) = match (group, driver) {
        (Some((driver, plugin)), _) => {
            let (config, connector) = group_of(driver, old, &mut notes);
            (plugin.to_owned(), config, connector)
        }
        (None, driver) => {
            if let (MigrationTarget::Group, Some(driver)) = (target, driver) {
                notes.extend(driver.advice.iter().map(|advice| (*advice).to_owned()));
                option_notes(driver, old, &mut notes);
            } else if target == MigrationTarget::Group {
                let name = shown_name(old.str("MachineDriver").unwrap_or_default());
                notes.push(format!(
                    "driver `{name}`: no replacement is known; docker-machine is still used, as a plugin"
                ));
            }
            let config = machine::plugin_config(runner, old);
            (machine::PLUGIN.to_owned(), config.as_object().cloned().unwrap_or_default(), Vec::new())
        }
    };
    notes.extend(dropped::notes(runner, old, plugin != machine::PLUGIN));
    for period in machine::lossy_periods(old) {
        let period = shown_name(period);
        notes.push(format!("period \"{period}\": policies have no seconds and no years; those parts were removed"));
    }
    if machine::max_instances(runner) == 0 {
        notes.push("the runner has no limit: set max_instances to limit the cost of instances".to_owned());
    }
    if old.str("OffPeakTimezone").is_some() || !old.list("OffPeakPeriods").is_empty() {
        notes.push("OffPeak keys have had no effect since GitLab 14.0 and were dropped".to_owned());
    }
    MigratedSettings { plugin, plugin_config, connector, notes }
}

/// Returns `plugin_config` and `connector_config` of an instance group.
fn group_of(
    driver: &Driver,
    old: &Table,
    notes: &mut Vec<String>,
) -> (serde_json::Map<String, serde_json::Value>, Vec<(&'static str, ConnectorValue)>) {
    let name = dropped::name_of_group(old);
    let name = name.as_str();
    let mut config = serde_json::Map::new();
    config.insert("name".to_owned(), name.into());
    config.extend(driver.defaults.iter().map(|(key, value)| ((*key).to_owned(), (*value).into())));
    let mut connector = vec![("username", ConnectorValue::Text(driver.username.to_owned()))];
    notes.push(format!("create the {} `{name}` first: {}", driver.group, driver.advice.join("; ")));
    notes.push(drivers::IMAGE_ADVICE.to_owned());
    let mut use_internal_address = false;
    for (option, value, to) in options(driver, old) {
        // A later option for the same key takes precedence over an earlier one, and over the default. For the internal
        // address, one true option is enough.
        match (to, value.filter(|value| !value.is_empty())) {
            (Some(OptionTarget::Plugin(key)), None) => {
                config.remove(key);
                notes.push(without_value(option, key, "plugin_config"));
            }
            (Some(OptionTarget::Plugin(key)), Some(value)) => drop(config.insert(key.to_owned(), value.into())),
            (Some(OptionTarget::Connector(key)), given) => {
                connector.retain(|(known, _)| *known != key);
                match given.map(|value| (value, value.parse::<u16>())) {
                    None => notes.push(without_value(option, key, "connector_config")),
                    Some((_, Ok(port))) if key == "protocol_port" => {
                        connector.push((key, ConnectorValue::Number(port.into())))
                    }
                    Some((value, Err(_))) if key == "protocol_port" => notes.push(format!(
                        "{option} = {} is not a valid port and was left out; set {key} in \
                         [runners.autoscaler.connector_config], for example {key} = 22",
                        shown_name(value)
                    )),
                    Some((value, _)) => {
                        connector.push((key, ConnectorValue::Text(value.to_owned())));
                        if key == "key_path" {
                            connector.retain(|(known, _)| *known != "use_static_credentials");
                            connector.push(("use_static_credentials", ConnectorValue::Boolean(true)));
                        }
                    }
                }
            }
            (Some(OptionTarget::Internal), _) => match parse_bool(value) {
                Some(enabled) => use_internal_address = use_internal_address || enabled,
                None => notes.push(format!(
                    "{option} = \"{}\" is neither true nor false and was left out; to use the internal address, set \
                     use_external_addr = false in [runners.autoscaler.connector_config]",
                    shown_name(value.unwrap_or_default())
                )),
            },
            _ => notes.push(note(option, value, to)),
        }
    }
    connector.push(("use_external_addr", ConnectorValue::Boolean(!use_internal_address)));
    (config, connector)
}

/// Adds notes about the options of an entry that continues to use docker-machine.
fn option_notes(driver: &Driver, old: &Table, notes: &mut Vec<String>) {
    notes.extend(options(driver, old).map(|(option, value, to)| match to {
        Some(OptionTarget::Secret(target)) => {
            format!("{option}: kept in this file, which other users must not be able to read; if you stop using docker-machine, put the value into {target}")
        }
        to => note(option, value, to),
    }));
}

/// Returns the note about an option without its required value.
fn without_value(option: &str, key: &str, table: &str) -> String {
    format!("{option} has no value: {key} was left out; set {key} = \"...\" in [runners.autoscaler.{table}]")
}

/// Parses the value of a Boolean option. An option without a value is true.
fn parse_bool(value: Option<&str>) -> Option<bool> {
    match value {
        None | Some("1" | "t" | "T" | "true" | "TRUE" | "True") => Some(true),
        Some("0" | "f" | "F" | "false" | "FALSE" | "False") => Some(false),
        Some(_) => None,
    }
}

/// Returns a note with the replacement of an option, or why it is not translated.
fn note(option: &str, value: Option<&str>, to: Option<OptionTarget>) -> String {
    let option = shown_name(option);
    let with_value = match value {
        Some("") => format!("{option} (without a value)"),
        Some(value) => format!("{option} = {}", shown_name(value)),
        None => option.clone(),
    };
    match to {
        Some(OptionTarget::Plugin(key) | OptionTarget::Connector(key)) => format!("{with_value}: `{key}`"),
        Some(OptionTarget::Internal) => format!("{with_value}: the internal address"),
        Some(OptionTarget::Group(setting)) => format!("{with_value}: {setting}"),
        Some(OptionTarget::Secret(target)) => format!("{option}: not written to this file; put it into {target}"),
        Some(OptionTarget::Dropped(reason)) => format!("{option}: {reason}"),
        // Omit the value, because it may be a secret.
        None => format!("{option}: unknown option; look for its replacement in the settings of the group"),
    }
}

/// Returns the machine options: name, value after `=`, and target of each.
fn options<'a>(
    driver: &'a Driver,
    old: &'a Table,
) -> impl Iterator<Item = (&'a str, Option<&'a str>, Option<OptionTarget>)> {
    let all = old.strings("MachineOptions").chain(old.strings("MachineOptionsWithName"));
    // Options without a name have a separate note.
    all.filter(|(option, _)| dropped::has_name(option)).map(|(option, _)| {
        let (name, value) = option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
        let name = name.trim_start_matches('-');
        let known = driver.options.iter().chain(&drivers::COMMON).find(|(known, _)| *known == name);
        (name, value, known.map(|(_, to)| *to))
    })
}

#[cfg(test)]
mod tests;
