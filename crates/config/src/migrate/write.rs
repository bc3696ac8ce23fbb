//! Writes the new tables of an entry, with the notes as comments above them.

use toml_edit::{Array, ArrayOfTables, Item, Table, Value};

use super::super::machine::{self, PolicySettings};
use super::super::runners::Runner;
use super::super::tree::Table as Tree;
use super::{ConnectorValue, MigratedSettings, remove};

pub(super) fn replace(
    entry: &mut Table,
    runner: &Runner,
    old: &Tree,
    new: &MigratedSettings,
    delete_on_shutdown: bool,
) {
    remove_machine(entry, runner);
    entry.insert("autoscaler", Item::Table(autoscaler(runner, old, new, delete_on_shutdown)));
}

/// Removes the old table, and replaces the executor `docker+machine`.
pub(super) fn remove_machine(entry: &mut Table, runner: &Runner) {
    remove(entry, "machine");
    if runner.executor == "docker+machine" {
        let name = entry.iter().map(|(name, _)| name).find(|name| name.eq_ignore_ascii_case("executor"));
        if let Some(Item::Value(executor)) = name.map(str::to_owned).and_then(|name| entry.get_mut(&name)) {
            let decor = executor.decor().clone();
            *executor = "docker-autoscaler".into();
            *executor.decor_mut() = decor;
        }
    }
}

fn autoscaler(runner: &Runner, old: &Tree, new: &MigratedSettings, delete_on_shutdown: bool) -> Table {
    let mut table = Table::new();
    set(&mut table, "plugin", new.plugin.as_str());
    set(&mut table, "capacity_per_instance", 1);
    for (key, count) in
        [("max_use_count", machine::max_use_count(old)), ("max_instances", machine::max_instances(runner))]
    {
        if count > 0 {
            set(&mut table, key, i64::from(count));
        }
    }
    if delete_on_shutdown {
        set(&mut table, "delete_instances_on_shutdown", true);
    }
    let mut config = Table::new();
    for (key, json) in &new.plugin_config {
        if let Some(value) = toml(json) {
            set(&mut config, key, value);
        }
    }
    insert_table(&mut table, "plugin_config", config);
    if !new.connector.is_empty() {
        let mut connector = Table::new();
        for (key, value) in &new.connector {
            match value {
                ConnectorValue::Text(text) => set(&mut connector, key, text.as_str()),
                ConnectorValue::Number(number) => set(&mut connector, key, *number),
                ConnectorValue::Boolean(value) => set(&mut connector, key, *value),
            }
        }
        insert_table(&mut table, "connector_config", connector);
    }
    let mut policies = ArrayOfTables::new();
    machine::policies(old).iter().for_each(|settings| policies.push(policy(settings)));
    table.insert("policy", Item::ArrayOfTables(policies));
    let notes: String = new.notes.iter().map(|note| format!("  # {note}\n")).collect();
    table.decor_mut().set_prefix(format!("\n{notes}  "));
    table
}

fn policy(policy: &PolicySettings) -> Table {
    let PolicySettings { periods, timezone, idle_target } = policy;
    let mut table = Table::new();
    table.decor_mut().set_prefix("\n    ");
    if !periods.is_empty() {
        set(&mut table, "periods", periods.iter().collect::<Array>());
        if !timezone.is_empty() {
            set(&mut table, "timezone", timezone.as_str());
        }
    }
    set(&mut table, "idle_count", i64::from(idle_target.idle_count));
    set(&mut table, "idle_time", format!("{}s", idle_target.idle_time.as_secs()));
    if idle_target.scale_factor > 0.0 {
        set(&mut table, "scale_factor", idle_target.scale_factor);
        set(&mut table, "scale_factor_limit", i64::from(idle_target.scale_factor_limit));
    }
    table
}

fn insert_table(table: &mut Table, key: &str, mut inner: Table) {
    inner.decor_mut().set_prefix("\n    ");
    table.insert(key, Item::Table(inner));
}

/// Adds a key, indented by four spaces.
fn set(table: &mut Table, key: &str, value: impl Into<Value>) {
    table.insert(key, toml_edit::value(value));
    if let Some(mut key) = table.key_mut(key) {
        key.leaf_decor_mut().set_prefix("    ");
    }
}

/// Converts a value of `plugin_config`. Returns `None` for a default of the plugin (empty list or 0), which is omitted.
fn toml(json: &serde_json::Value) -> Option<Value> {
    match json {
        serde_json::Value::String(text) => Some(text.as_str().into()),
        serde_json::Value::Number(number) => number.as_i64().filter(|number| *number != 0).map(Value::from),
        serde_json::Value::Array(list) if !list.is_empty() => {
            Some(Value::Array(list.iter().filter_map(serde_json::Value::as_str).collect()))
        }
        _ => None,
    }
}
