//! Notes about the parts of `[runners.machine]` that have no replacement or had no effect.

use super::super::machine::NO_PERIODS_NOTE;
use super::super::problem::shown_name;
use super::super::runners::Runner;
use super::super::tree::{Node, Table, Value};

/// Keys of counts, and their replacements. A negative count means 0.
const COUNTS: [(&str, &str); 6] = [
    ("IdleCount", "idle_count"),
    ("IdleCountMin", "idle_count"),
    ("IdleTime", "idle_time"),
    ("MaxBuilds", "max_use_count"),
    ("MaxGrowthRate", "MaxGrowthRate"),
    ("MaxRemovalAttempts", "MaxRemovalAttempts"),
];
/// Maximum length of a group name that all clouds accept.
const MAX_NAME_LENGTH: usize = 63;

/// Returns the notes about an entry. `is_group` means that the new plugin is not docker-machine.
pub(super) fn notes(runner: &Runner, old: &Table, is_group: bool) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(limit) = runner.table.int("limit").filter(|limit| *limit < 0) {
        notes.push(format!("limit = {limit} is negative and means no limit, so max_instances is not written"));
    }
    notes.extend(too_large("", &runner.table, "limit", "max_instances"));
    add_notes_of_counts("", old, &mut notes);
    for (index, table) in old.tables("autoscaling").iter().enumerate() {
        let prefix = format!("entry {} of autoscaling: ", index + 1);
        if table.strings("Periods").next().is_none() {
            notes.push(format!("{prefix}{NO_PERIODS_NOTE}"));
        } else {
            add_notes_of_counts(&prefix, table, &mut notes);
        }
    }
    if is_group {
        if let Some(rate) = old.int("MaxGrowthRate").filter(|rate| *rate > 0) {
            notes.push(format!(
                "MaxGrowthRate = {rate} was dropped: a group gets its instances all at once; [runners.autoscaler.scale_throttle] \
                 (limit, burst) limits how many are requested per second"
            ));
        }
        if let Some(attempts) = old.int("MaxRemovalAttempts").filter(|attempts| *attempts > 0) {
            notes.push(format!(
                "MaxRemovalAttempts = {attempts} was dropped: a removal is repeated until the provider confirms it"
            ));
        }
        let name = old.str("MachineName").unwrap_or_default();
        let (stem, group) = (stem(name), name_of_group(old));
        if stem != group {
            notes.push(format!(
                "MachineName = \"{}\" became the group's name `{group}`: clouds allow only lower-case letters, digits and `-`",
                shown_name(name)
            ));
        }
    }
    if old.str("MachineName").unwrap_or_default().matches("%s").count() > 1 {
        notes.push(
            "MachineName has more than one %s: only the first one is replaced by the unique part of a machine's name"
                .to_owned(),
        );
    }
    let options = old.strings("MachineOptions").chain(old.strings("MachineOptionsWithName"));
    let unnamed = options.filter(|(option, _)| !has_name(option)).count();
    if unnamed > 0 {
        let action = if is_group { "omitted" } else { "kept, but docker-machine refuses them" };
        notes.push(format!("machine options without a name before `=` ({unnamed}): {action}"));
    }
    notes
}

/// Returns a note for each key of the old table, with its value if that is not a list or table.
/// Machine options have separate notes.
pub(super) fn notes_of_keys(old: &Table) -> Vec<String> {
    let shown = |node: &Node| match &node.value {
        Value::Str(text) => Some(format!("\"{}\"", shown_name(text))),
        Value::Int(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        Value::Bool(truth) => Some(truth.to_string()),
        _ => None,
    };
    let key = |(name, node): (&str, &Node)| match shown(node) {
        Some(value) => Some(format!("{name} = {value}: dropped")),
        None if name.starts_with("MachineOptions") => None,
        None => Some(format!("{name}: dropped")),
    };
    old.entries().filter_map(key).collect()
}

/// Adds notes about counts and factors that are out of range, or have no effect without another key.
fn add_notes_of_counts(prefix: &str, table: &Table, notes: &mut Vec<String>) {
    for (key, new) in COUNTS {
        if let Some(count) = table.int(key).filter(|count| *count < 0) {
            notes.push(format!(
                "{prefix}{key} = {count} is negative and is treated as 0; to use another value, set {new}"
            ));
        }
        notes.extend(too_large(prefix, table, key, new));
    }
    let factor = match table.node("IdleScaleFactor").map(|node| &node.value) {
        Some(Value::Float(factor)) => *factor,
        _ => 0.0,
    };
    let idle = table.int("IdleCount").unwrap_or_default();
    if !factor.is_finite() {
        notes.push(format!(
            "{prefix}IdleScaleFactor = {factor} is not a valid factor and was dropped; write scale_factor, such as 1.5"
        ));
    } else if factor < 0.0 {
        notes.push(format!("{prefix}IdleScaleFactor = {factor} is negative and was dropped"));
    } else if factor > 0.0 && idle <= 0 {
        notes.push(format!("{prefix}IdleScaleFactor = {factor} has no effect without IdleCount and was removed"));
    } else if factor <= 0.0 && table.int("IdleCountMin").is_some_and(|minimum| minimum > 0) {
        notes.push(format!("{prefix}IdleCountMin has no effect without IdleScaleFactor and was removed"));
    } else if let Some(minimum) = table.int("IdleCountMin").filter(|minimum| factor > 0.0 && *minimum > idle) {
        notes.push(format!(
            "{prefix}IdleCountMin = {minimum} exceeds the maximum IdleCount = {idle}: idle_count = {idle} was written"
        ));
    }
}

/// Returns a note if the count exceeds the range of its new key.
fn too_large(prefix: &str, table: &Table, key: &str, new: &str) -> Option<String> {
    let maximum = u32::MAX;
    let count = table.int(key).filter(|count| *count > i64::from(maximum))?;
    Some(format!("{prefix}{key} = {count} exceeds the maximum {maximum}, which was written; correct {new}"))
}

pub(super) fn has_name(option: &str) -> bool {
    let name = option.split_once('=').map_or(option, |(name, _)| name);
    !name.trim_start_matches('-').trim().is_empty()
}

/// Removes the part that differs between machines.
fn stem(template: &str) -> String {
    let stem = template.replace("%s", "");
    match stem.trim_matches(['-', '_', '.']) {
        "" => "runners".to_owned(),
        stem => stem.to_owned(),
    }
}

/// Returns a name for the group, from the template of the machines' names. All clouds accept it.
pub(super) fn name_of_group(old: &Table) -> String {
    let stem = stem(old.str("MachineName").unwrap_or_default()).to_lowercase();
    let mut name = String::new();
    for letter in stem.chars() {
        match letter {
            'a'..='z' | '0'..='9' => name.push(letter),
            _ if name.ends_with('-') => {}
            _ => name.push('-'),
        }
    }
    let is_letter = |letter: char| letter.is_ascii_lowercase();
    let name = if name.starts_with(is_letter) { name } else { format!("runners-{}", name.trim_start_matches('-')) };
    let cut: String = name.chars().take(MAX_NAME_LENGTH).collect();
    cut.trim_end_matches('-').to_owned()
}
