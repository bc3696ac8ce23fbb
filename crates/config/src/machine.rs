//! Converts `[runners.machine]` to settings of instances from the plugin `docker-machine` (R025).
//!
//! With `IdleScaleFactor`, `IdleCountMin` corresponds to `idle_count`, and `IdleCount` to `scale_factor_limit`.

use std::num::NonZeroU32;
use std::time::Duration;

use muster_job::short_token;
use muster_taskscaler::config::{Config, GroupConfig};
use muster_taskscaler::policy::{IdleTarget, Policies};
use serde_json::json;

use super::runners::Runner;
use super::scaling::policy_in_periods;
use super::tree::{Table, Value};
use crate::settings::{AutoscalerSettings, Scaling};

/// Plugin that drives docker-machine, included in Muster.
pub(super) const PLUGIN: &str = "fleeting-plugin-docker-machine";

/// Note about a `[[runners.machine.autoscaling]]` without periods.
pub(super) const NO_PERIODS_NOTE: &str = "without Periods it never applied, so it was removed";

#[derive(Debug, Clone, PartialEq)]
pub(super) struct PolicySettings {
    /// Empty means always.
    pub(super) periods: Vec<String>,
    /// Empty means the time zone of this machine.
    pub(super) timezone: String,
    pub(super) idle_target: IdleTarget,
}

/// Returns the settings of `[runners.machine]`. `None` if the entry has no such table, or has `[runners.autoscaler]`.
pub(super) fn read(entry: &Runner) -> Option<AutoscalerSettings> {
    if entry.table.table("autoscaler").is_some() {
        return None;
    }
    let machine = entry.table.table("machine")?;
    Some(AutoscalerSettings {
        plugin: PLUGIN.to_owned(),
        plugin_config: plugin_config(entry, machine),
        has_token_prefix: true,
        scaling: scaling(entry, machine),
        ..AutoscalerSettings::default()
    })
}

fn scaling(entry: &Runner, machine: &Table) -> Scaling {
    let mut problems = Vec::new();
    let policies = policies(machine).into_iter().enumerate().map(|(index, policy)| {
        let report = |key: &str, message: String| problems.push(format!("policy[{}].{key}: {message}", index + 1));
        policy_in_periods(&policy.periods, &policy.timezone, policy.idle_target, report)
    });
    let mut config = Config::new(GroupConfig::new("", max_instances(entry)));
    config.max_uses = NonZeroU32::new(max_use_count(machine));
    config.policies = Policies::new(policies.collect());
    Scaling { config, problems, ..Scaling::default() }
}

/// Returns the configuration of the plugin: the keys of `[runners.machine]` that describe machines, and gitlab-runner's
/// prefix of machine names.
pub(super) fn plugin_config(entry: &Runner, machine: &Table) -> serde_json::Value {
    let list = |name: &str| machine.strings(name).map(|(option, _)| option).collect::<Vec<_>>();
    let mut config = json!({
        "prefix": prefix(entry),
        "MachineDriver": machine.str("MachineDriver").unwrap_or_default(),
        "MachineName": machine.str("MachineName").unwrap_or_default(),
        "MachineOptions": list("MachineOptions"),
        "MachineOptionsWithName": list("MachineOptionsWithName"),
        "MaxGrowthRate": count(machine, "MaxGrowthRate"),
        "MaxRemovalAttempts": count(machine, "MaxRemovalAttempts"),
    });
    let limit = max_instances(entry);
    if let Some(config) = config.as_object_mut().filter(|_| limit > 0) {
        config.insert("max_size".to_owned(), limit.into());
    }
    config
}

/// Returns gitlab-runner's prefix of machine names, so that existing machines are found.
///
/// It has those characters of the short token that a host name may have.
fn prefix(entry: &Runner) -> String {
    let short = short_token(entry.token.expose()).to_lowercase();
    let allowed: String = short.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
    match allowed.trim_start_matches('-') {
        "" => String::new(),
        allowed => format!("runner-{allowed}-"),
    }
}

/// Returns `MaxBuilds`. 0 means no limit.
pub(super) fn max_use_count(machine: &Table) -> u32 {
    count(machine, "MaxBuilds")
}

/// Returns `limit`, which counts machines in every state. 0 means no limit.
pub(super) fn max_instances(entry: &Runner) -> u32 {
    count(&entry.table, "limit")
}

/// Returns the policy outside of all periods, then one for each table. The last match applies.
pub(super) fn policies(machine: &Table) -> Vec<PolicySettings> {
    let periods = machine.tables("autoscaling").iter().map(|table| PolicySettings {
        periods: table.strings("Periods").flat_map(|(period, _)| five_fields(period)).collect(),
        timezone: table.str("Timezone").filter(|zone| *zone != "Local").unwrap_or_default().to_owned(),
        idle_target: idle_target(table),
    });
    // Drop tables without periods: such a table never applied, but such a policy would always apply.
    let periods = periods.filter(|policy| !policy.periods.is_empty());
    let outside = PolicySettings { periods: Vec::new(), timezone: String::new(), idle_target: idle_target(machine) };
    std::iter::once(outside).chain(periods).collect()
}

fn idle_target(table: &Table) -> IdleTarget {
    let idle_count = count(table, "IdleCount");
    let factor = factor(table);
    let idle_time = Duration::from_secs(count(table, "IdleTime").into());
    // At most `IdleCount` machines were idle, whatever the factor was.
    let (idle_count, scale_factor, scale_factor_limit) = if factor > 0.0 && idle_count > 0 {
        (count(table, "IdleCountMin").clamp(1, idle_count), factor, idle_count)
    } else {
        (idle_count, 0.0, 0)
    };
    let preemptive = idle_count > 0;
    IdleTarget { idle_count, idle_time, scale_factor, scale_factor_limit, preemptive, ..IdleTarget::default() }
}

/// Converts seven fields to one or two periods of five, without seconds and years.
///
/// In the old format, steps count from the first value, and the day or the weekday must match.
pub(super) fn five_fields(period: &str) -> Vec<String> {
    /// Lowest and highest value of minute, hour, day, month and weekday.
    const LIMITS: [(u32, u32); 5] = [(0, 59), (0, 23), (1, 31), (1, 12), (0, 6)];
    let fields: Vec<_> = period.split_whitespace().collect();
    let [_seconds, middle @ .., _year] = fields.as_slice() else { return vec![period.to_owned()] };
    if fields.len() != 7 {
        return vec![period.to_owned()];
    }
    let fields: Vec<String> = middle.iter().zip(LIMITS).map(|(field, limits)| without_steps(field, limits)).collect();
    let [minute, hour, day, month, weekday] = fields.as_slice() else { return vec![period.to_owned()] };
    if [day, weekday].iter().any(|field| *field == "*") {
        return vec![fields.join(" ")];
    }
    vec![format!("{minute} {hour} {day} {month} *"), format!("{minute} {hour} * {month} {weekday}")]
}

/// Replaces steps with values, and `?` with `*`. An invalid field is kept, so that the parser of
/// policies reports it.
fn without_steps(field: &str, (min, max): (u32, u32)) -> String {
    let values = |part: &str| {
        if part == "?" {
            return Some("*".to_owned());
        }
        let (base, step) = part.split_once('/')?;
        let step = step.parse::<usize>().ok().filter(|step| *step > 0)?;
        let (from, to) = match base.split_once('-') {
            _ if matches!(base, "*" | "?") && step == 1 => return Some("*".to_owned()),
            _ if matches!(base, "*" | "?") => (min, max),
            Some((from, to)) => (from.parse().ok()?, to.parse().ok()?),
            None => (base.parse().ok()?, max),
        };
        if from < min || to > max || from > to {
            return None;
        }
        Some((from..=to).step_by(step).map(|value| value.to_string()).collect::<Vec<_>>().join(","))
    };
    field.split(',').map(|part| values(part).unwrap_or_else(|| part.to_owned())).collect::<Vec<_>>().join(",")
}

/// Returns the periods that restrict seconds or years.
pub(super) fn lossy_periods(machine: &Table) -> Vec<&str> {
    let tables = machine.tables("autoscaling").iter();
    let lossy = |period: &str| {
        let fields: Vec<_> = period.split_whitespace().collect();
        let every = |field: Option<&&str>| field.is_none_or(|field| matches!(*field, "*" | "?" | "*/1"));
        fields.len() == 7 && !(every(fields.first()) && every(fields.last()))
    };
    tables.flat_map(|table| table.strings("Periods")).map(|(period, _)| period).filter(|period| lossy(period)).collect()
}

/// Reads a count. A count that is too large becomes the maximum and not 0, which may mean "no limit".
fn count(table: &Table, name: &str) -> u32 {
    table.int(name).map_or(0, |value| u32::try_from(value.max(0)).unwrap_or(u32::MAX))
}

/// Returns `IdleScaleFactor`, or 0 if it is unusable.
fn factor(table: &Table) -> f64 {
    match table.node("IdleScaleFactor").map(|node| &node.value) {
        Some(Value::Float(factor)) if *factor > 0.0 && factor.is_finite() => *factor,
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HostFacts, SettingsContext, parse, settings};

    fn autoscaler(text: &str) -> Option<AutoscalerSettings> {
        let runner = "[[runners]]\nurl = \"https://one.example\"\ntoken = \"glrt-Abcdefghijklmnop\"\nlimit = 12\n";
        let loaded = parse(&format!("{runner}{text}"), &HostFacts::default());
        settings(&loaded.config.unwrap(), &SettingsContext::default()).runners[0].autoscaler.as_deref().cloned()
    }

    #[test]
    fn machine_keys_become_plugin_and_scaler_settings() {
        let found = autoscaler(
            r#"
executor = "docker+machine"
[runners.machine]
IdleCount = 5
IdleTime = 600
MaxBuilds = 100
MaxGrowthRate = 3
MachineName = "auto-%s"
MachineDriver = "amazonec2"
MachineOptions = ["amazonec2-region=eu-central-1"]
MachineOptionsWithName = ["amazonec2-tags=name,%s"]
[[runners.machine.autoscaling]]
Periods = ["* * 9-17 * * mon-fri *", "0 30 8 * * sat 2030"]
Timezone = "Europe/Vienna"
IdleCount = 50
IdleTime = 3600
"#,
        )
        .unwrap();
        assert_eq!(found.plugin, "fleeting-plugin-docker-machine");
        assert_eq!(
            found.plugin_config,
            json!({
                "prefix": "runner-abcdefghi-", "MachineDriver": "amazonec2", "MachineName": "auto-%s",
                "MachineOptions": ["amazonec2-region=eu-central-1"], "MachineOptionsWithName": ["amazonec2-tags=name,%s"],
                "MaxGrowthRate": 3, "MaxRemovalAttempts": 0, "max_size": 12,
            })
        );
        let config = found.scaling.named("").unwrap();
        assert_eq!((config.max_uses.unwrap().get(), config.groups), (100, vec![GroupConfig::new("", 12)]));
        let periods = ["* 9-17 * * mon-fri", "30 8 * * sat"].map(str::to_owned);
        let wanted = |idle_count, seconds| IdleTarget {
            idle_count,
            idle_time: Duration::from_secs(seconds),
            preemptive: true,
            ..IdleTarget::default()
        };
        let policy = |periods: &[String], zone, wanted| {
            policy_in_periods(periods, zone, wanted, |_, problem| panic!("{problem}"))
        };
        let policies = vec![policy(&[], "", wanted(5, 600)), policy(&periods, "Europe/Vienna", wanted(50, 3600))];
        assert_eq!(config.policies, Policies::new(policies));
    }

    #[test]
    fn old_idle_count_is_the_limit_of_the_scale_factor() {
        let found = autoscaler(
            "executor = \"instance\"\n[runners.machine]\nMachineName = \"m-%s\"\nMachineDriver = \"none\"\n\
                        IdleCount = 20\nIdleScaleFactor = 1.5\n",
        );
        let config = found.unwrap().scaling.config;
        let (_, wanted) = config.policies.active_at(0);
        assert_eq!((wanted.idle_count, wanted.scale_factor, wanted.scale_factor_limit), (1, 1.5, 20));
    }

    #[test]
    fn converted_periods_keep_their_meaning() {
        for (old, new) in [
            ("* * 9-17 * * mon-fri *", &["* 9-17 * * mon-fri"][..]),
            ("0 1-9/4 */6 ? * * *", &["1,5,9 0,6,12,18 * * *"]),
            ("0 50/5,3 9 */10 * ? *", &["50,55,3 9 1,11,21,31 * *"]),
            ("* */1 * * * * *", &["* * * * *"]),
            // Either the day or the weekday must match.
            ("* * 9 1,15 * mon *", &["* 9 1,15 * *", "* 9 * * mon"]),
        ] {
            assert_eq!(five_fields(old), new, "{old}");
        }
    }

    #[test]
    fn number_of_idle_machines_never_exceeds_the_old_idle_count() {
        let wanted = |keys: &str| {
            let machine =
                "[runners.machine]\nMachineName = \"m-%s\"\nMachineDriver = \"none\"\nIdleScaleFactor = 1.5\n";
            autoscaler(&format!("executor = \"instance\"\n{machine}{keys}"))
                .unwrap()
                .scaling
                .config
                .policies
                .active_at(0)
                .1
                .clone()
        };
        for none in ["", "IdleCount = 0\nIdleCountMin = 3\n"] {
            let wanted = wanted(none);
            assert_eq!((wanted.idle_count, wanted.scale_factor), (0, 0.0), "{none}");
        }
        let wanted = wanted("IdleCount = 4\nIdleCountMin = 9\n");
        assert_eq!((wanted.idle_count, wanted.scale_factor_limit), (4, 4));
    }

    #[test]
    fn autoscaler_table_overrides_machine_table() {
        let both = "executor = \"instance\"\n[runners.machine]\nMachineName = \"m-%s\"\n[runners.autoscaler]\nplugin = \"aws\"\n";
        assert_eq!(autoscaler(both).unwrap().plugin, "aws");
        assert_eq!(autoscaler("executor = \"shell\"\n"), None);
    }
}
