//! What of `[runners.machine]` has no counterpart, or had no effect: a note for each, so that nothing goes unseen.

use super::super::machine::PERIODS_NONE;
use super::super::problem::shown_name;
use super::super::runners::Runner;
use super::super::tree::{Node, Table, Value};

/// Counts, which are 0 where they are less, and the keys that take their place.
const COUNTS: [(&str, &str); 6] = [
    ("IdleCount", "idle_count"),
    ("IdleCountMin", "idle_count"),
    ("IdleTime", "idle_time"),
    ("MaxBuilds", "max_use_count"),
    ("MaxGrowthRate", "MaxGrowthRate"),
    ("MaxRemovalAttempts", "MaxRemovalAttempts"),
];
/// The longest name of a group that all clouds take.
const NAME_LENGTH_MAX: usize = 63;

/// What is not in the new keys; `is_group`: nor in the settings of a plugin that drives docker-machine.
pub(super) fn notes(runner: &Runner, old: &Table, is_group: bool) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(limit) = runner.table.int("limit").filter(|limit| *limit < 0) {
        notes.push(format!("limit = {limit} is less than 0: it is no limit, and max_instances is not written"));
    }
    notes.extend(too_large("", &runner.table, "limit", "max_instances"));
    counts("", old, &mut notes);
    for (index, table) in old.tables("autoscaling").iter().enumerate() {
        let place = format!("entry {} of autoscaling: ", index + 1);
        if table.strings("Periods").next().is_none() {
            notes.push(format!("{place}{PERIODS_NONE}"));
        } else {
            counts(&place, table, &mut notes);
        }
    }
    if is_group {
        if let Some(rate) = old.int("MaxGrowthRate").filter(|rate| *rate > 0) {
            notes.push(format!(
                "MaxGrowthRate = {rate} is gone: a group gets its instances all at once; [runners.autoscaler.scale_throttle] \
                 (limit, burst) bounds how many are asked for in a second"
            ));
        }
        if let Some(attempts) = old.int("MaxRemovalAttempts").filter(|attempts| *attempts > 0) {
            notes.push(format!(
                "MaxRemovalAttempts = {attempts} is gone: a removal is repeated until the provider confirms it"
            ));
        }
        let name = old.str("MachineName").unwrap_or_default();
        let (stem, group) = (stem(name), name_of_group(old));
        if stem != group {
            notes.push(format!(
                "MachineName = \"{}\" gave the group its name, of which `{group}` is left: clouds allow small letters, digits and `-`",
                shown_name(name)
            ));
        }
    }
    if old.str("MachineName").unwrap_or_default().matches("%s").count() > 1 {
        notes.push("MachineName has more than one %s: only the first one becomes a machine's own part".to_owned());
    }
    let options = old.strings("MachineOptions").chain(old.strings("MachineOptionsWithName"));
    let nameless = options.filter(|(option, _)| !has_name(option)).count();
    if nameless > 0 {
        let done = if is_group { "left out" } else { "kept, and docker-machine refuses them" };
        notes.push(format!("{nameless} of the options of machines have no name before `=`: {done}"));
    }
    notes
}

/// Each key that is set, with its value where that cannot be a secret; options and periods are told of by themselves.
pub(super) fn keys(old: &Table) -> Vec<String> {
    let shown = |node: &Node| match &node.value {
        Value::Str(text) => Some(format!("\"{}\"", shown_name(text))),
        Value::Int(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        Value::Bool(truth) => Some(truth.to_string()),
        _ => None,
    };
    let key = |(name, node): (&str, &Node)| match shown(node) {
        Some(value) => Some(format!("{name} = {value}: gone")),
        None if name.starts_with("MachineOptions") => None,
        None => Some(format!("{name}: gone")),
    };
    old.entries().filter_map(key).collect()
}

/// Counts below zero, and those that mean nothing without another one.
fn counts(place: &str, table: &Table, notes: &mut Vec<String>) {
    for (key, new) in COUNTS {
        if let Some(count) = table.int(key).filter(|count| *count < 0) {
            notes.push(format!(
                "{place}{key} = {count} is less than 0, and taken as 0; write {new} if another one is meant"
            ));
        }
        notes.extend(too_large(place, table, key, new));
    }
    let factor = match table.node("IdleScaleFactor").map(|node| &node.value) {
        Some(Value::Float(factor)) => *factor,
        _ => 0.0,
    };
    let idle = table.int("IdleCount").unwrap_or_default();
    if !factor.is_finite() {
        notes.push(format!(
            "{place}IdleScaleFactor = {factor} is no number to multiply with, and is gone; write scale_factor, such as 1.5"
        ));
    } else if factor < 0.0 {
        notes.push(format!("{place}IdleScaleFactor = {factor} is less than 0, and gone"));
    } else if factor > 0.0 && idle <= 0 {
        notes.push(format!("{place}IdleScaleFactor = {factor} has no effect without IdleCount, and is gone"));
    } else if factor <= 0.0 && table.int("IdleCountMin").is_some_and(|least| least > 0) {
        notes.push(format!("{place}IdleCountMin has no effect without IdleScaleFactor, and is gone"));
    } else if let Some(least) = table.int("IdleCountMin").filter(|least| factor > 0.0 && *least > idle) {
        notes.push(format!(
            "{place}IdleCountMin = {least} is more than IdleCount = {idle}, which is the most: idle_count = {idle}"
        ));
    }
}

/// What is said of a count that its new key has no room for.
fn too_large(place: &str, table: &Table, key: &str, new: &str) -> Option<String> {
    let most = u32::MAX;
    let count = table.int(key).filter(|count| *count > i64::from(most))?;
    Some(format!(
        "{place}{key} = {count} is more than {most}, the most that can be: that is written; write {new} as it is meant"
    ))
}

/// Whether an option of docker-machine's has a name.
pub(super) fn has_name(option: &str) -> bool {
    let name = option.split_once('=').map_or(option, |(name, _)| name);
    !name.trim_start_matches('-').trim().is_empty()
}

/// A template without the machine's own part.
fn stem(template: &str) -> String {
    let stem = template.replace("%s", "");
    match stem.trim_matches(['-', '_', '.']) {
        "" => "runners".to_owned(),
        stem => stem.to_owned(),
    }
}

/// The group's name: what all clouds take of the machines' template.
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
    let cut: String = name.chars().take(NAME_LENGTH_MAX).collect();
    cut.trim_end_matches('-').to_owned()
}
