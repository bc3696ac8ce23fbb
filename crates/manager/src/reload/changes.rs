//! Describes the differences between two configurations, without secrets.

use muster_config::schema::{Entry, Key, Reload, schema};
use muster_config::tree::{Node, Table, Value};
use muster_config::{self, Config, Runner};
use muster_job::without_user_info;

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    /// One phrase for each difference.
    pub(super) descriptions: Vec<String>,
    /// Changed keys that need a restart.
    pub(super) restart: Vec<String>,
}

pub(super) fn between(old: &Config, new: &Config) -> Changes {
    let mut changes = Changes::default();
    changes.compare_tables("", "", &old.tree, &new.tree);
    let mut remaining: Vec<&Runner> = old.runners.iter().collect();
    for runner in &new.runners {
        match remaining.iter().position(|known| is_same(known, runner)) {
            Some(known) => {
                let known = remaining.remove(known);
                changes.compare_tables(
                    "runners",
                    &format!("runner {}: ", display_name(runner)),
                    &known.table,
                    &runner.table,
                );
                if known.token != runner.token && known.table == runner.table {
                    changes.descriptions.push(format!("runner {}: token changed", display_name(runner)));
                }
            }
            None => changes.descriptions.push(format!("runner {} is new", display_name(runner))),
        }
    }
    changes
        .descriptions
        .extend(remaining.into_iter().map(|runner| format!("runner {} was removed", display_name(runner))));
    changes
}

/// Returns whether both tables describe the same runner. [`muster_config::settings::RunnerKey`] and
/// [`muster_config::settings::Settings::carry_over`] follow the same rule.
fn is_same(old: &Runner, new: &Runner) -> bool {
    let same_id = if new.id > 0 { old.id == new.id } else { old.token == new.token || old.name == new.name };
    without_user_info(&old.url) == without_user_info(&new.url) && same_id
}

fn display_name(runner: &Runner) -> String {
    match runner.name.as_str() {
        "" => format!("{}", runner.index + 1),
        name => format!("`{}`", name.escape_debug()),
    }
}

impl Changes {
    /// Compares two tables. `prefix` precedes each phrase.
    fn compare_tables(&mut self, path: &str, prefix: &str, old: &Table, new: &Table) {
        let added = new.entries().filter(|(name, _)| old.entries().all(|(known, _)| known != *name));
        let names: Vec<&str> = old.entries().chain(added).map(|(name, _)| name).collect();
        for name in names {
            if path.is_empty() && name == "runners" {
                continue;
            }
            let node = |table: &Table| table.entries().find(|(known, _)| *known == name).map(|(_, node)| node.clone());
            self.compare_entries(path, prefix, name, node(old).as_ref(), node(new).as_ref());
        }
    }

    fn compare_entries(&mut self, path: &str, prefix: &str, name: &str, old: Option<&Node>, new: Option<&Node>) {
        let (old, new) = (old.map(|node| &node.value), new.map(|node| &node.value));
        if old == new {
            return;
        }
        let entry = schema().find(path, name);
        if let Some(Entry::Table(table)) = entry {
            let empty = Table::default();
            let inner = |value: Option<&Value>| match value {
                Some(Value::Table(table)) => Some(table.clone()),
                None => Some(empty.clone()),
                Some(_) => None,
            };
            if let (Some(old), Some(new)) = (inner(old), inner(new)) {
                return self.compare_tables(&table.path, &format!("{prefix}{name}."), &old, &new);
            }
            return self.add(format!("{prefix}{name}"), " changed".to_owned(), table.reload);
        }
        let Some(Entry::Key(key)) = entry else {
            return self.add(format!("{prefix}{name}"), " changed".to_owned(), Reload::Jobs);
        };
        let values = match (shown_value(key, old), shown_value(key, new)) {
            (Some(old), Some(new)) => format!(": {old} -> {new}"),
            _ => " changed".to_owned(),
        };
        self.add(format!("{prefix}{name}"), values, key.reload);
    }

    fn add(&mut self, name: String, values: String, reload: Reload) {
        if reload == Reload::Restart {
            self.restart.push(name.clone());
        }
        self.descriptions.push(format!("{name}{values}"));
    }
}

/// `None` means that the value is long, structured or secret.
fn shown_value(key: &Key, value: Option<&Value>) -> Option<String> {
    const MAX_SHOWN_CHARS: usize = 60;
    if key.secret {
        return None;
    }
    let text = match value {
        None => "default".to_owned(),
        Some(Value::Int(number)) => number.to_string(),
        Some(Value::Bool(flag)) => flag.to_string(),
        Some(Value::Str(text)) if muster_config::has_secret(text) => return None,
        Some(Value::Str(text)) => format!("`{}`", text.escape_debug()),
        Some(_) => return None,
    };
    (text.len() <= MAX_SHOWN_CHARS).then_some(text)
}
