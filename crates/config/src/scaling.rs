//! Reads `[runners.autoscaler]` into the configuration of the scaler.

mod reader;

use std::num::NonZeroU32;
use std::ops::Range;
use std::time::Duration;

use jiff::tz::TimeZone;
use muster_job::GoDuration;
use muster_taskscaler::config::{Config, GroupConfig, GroupSelection, Throttle, UnmanagedPolicy};
use muster_taskscaler::driver::Buckets;
use muster_taskscaler::forecast::ForecastConfig;
use muster_taskscaler::policy::{IdleTarget, Placement, Policies, Policy};
use muster_taskscaler::resources::{Density, cpu_milli, memory_bytes};
use muster_taskscaler::types::ResourceRequest;

use super::settings::Scaling;
use super::tree::{Table, Value};
use reader::Reader;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ScalingProblem {
    /// Key below `[runners.autoscaler]`. Tables of a list count from 1: `policy[1].idle_count`.
    pub(super) key: String,
    /// What is wrong, and what to use instead.
    pub(super) message: String,
    /// Range of the value, or of its table's header.
    pub(super) span: Range<usize>,
}

impl std::fmt::Display for ScalingProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.key, self.message)
    }
}

/// Reads the settings of the scaler. A value that it does not accept is a problem, and counts as not set.
pub(super) fn read(table: &Table) -> (Scaling, Vec<ScalingProblem>) {
    let reader = &mut Reader::new(table);
    let config = config(reader);
    let buckets = buckets(table);
    let problems = std::mem::take(&mut reader.problems);
    (Scaling { config, buckets, problems: problems.iter().map(ToString::to_string).collect() }, problems)
}

fn config(reader: &mut Reader<'_>) -> Config {
    let mut config = Config::new(GroupConfig::new("", 0));
    config.capacity = NonZeroU32::new(reader.count("capacity_per_instance")).unwrap_or(NonZeroU32::MIN);
    config.max_uses = NonZeroU32::new(reader.count("max_use_count"));
    config.groups = groups(reader);
    let orders = [("order", GroupSelection::Order), ("price", GroupSelection::Price)];
    config.group_selection = reader.one_of("group_selection", &orders).unwrap_or_default();
    let request_ahead = reader.table.bool("request_ahead").unwrap_or(true);
    config.policies = Policies::new(reader.each("policy", |reader| policy(reader, request_ahead)));
    config.forecast = reader.nested("forecast", forecast);
    for (key, field) in [
        ("failure_threshold", &mut config.failure_threshold),
        ("shutdown_deletion_retries", &mut config.shutdown_deletion_retries),
    ] {
        // As in gitlab-runner, zero and negative values mean the default.
        if reader.table.int(key).is_some_and(|count| count > 0) {
            *field = reader.count(key);
        }
    }
    for (key, field) in [
        ("update_interval", &mut config.update_interval),
        ("update_interval_when_expecting", &mut config.update_interval_when_expecting),
        ("deletion_retry_interval", &mut config.deletion_retry_interval),
        ("shutdown_deletion_interval", &mut config.shutdown_deletion_interval),
        ("create_timeout", &mut config.create_timeout),
        ("boot_timeout", &mut config.boot_timeout),
        ("ready_timeout", &mut config.ready_timeout),
        ("suspended_ttl", &mut config.suspended_ttl),
    ] {
        *field = reader.duration(key, *field);
    }
    config.heartbeat_interval = match reader.table.duration("heartbeat_interval") {
        Some(GoDuration::NonNegative(Duration::ZERO)) => None,
        _ => config.heartbeat_interval.map(|default| reader.duration("heartbeat_interval", default)),
    };
    config.reservation_throttling = reader.table.bool("reservation_throttling").unwrap_or(true);
    config.max_cost_per_hour = reader.amount("max_cost_per_hour");
    let policies =
        [("ignore", UnmanagedPolicy::Ignore), ("adopt", UnmanagedPolicy::Adopt), ("delete", UnmanagedPolicy::Delete)];
    config.unmanaged = reader.one_of("unmanaged_instances", &policies).unwrap_or_default();
    config.density = reader.nested("density", density).unwrap_or_default();
    config.delete_on_shutdown = reader.table.bool("delete_instances_on_shutdown").unwrap_or_default();
    config
}

/// Reads the groups. Without `[[groups]]`, returns one group whose name is empty until [`Scaling::named`] sets it.
fn groups(reader: &mut Reader<'_>) -> Vec<GroupConfig> {
    let mut names: Vec<String> = Vec::new();
    let listed = reader.each("groups", |reader| {
        let name = reader.table.str("name").unwrap_or_default().to_owned();
        if name.is_empty() {
            reader.add_problem("name", "each group needs a unique `name`, under which its instances are stored");
        } else if names.contains(&name) {
            reader.add_problem("name", format!("`{name}` is the name of another group"));
        }
        names.push(name.clone());
        GroupConfig { name, is_named: true, ..group(reader) }
    });
    if listed.is_empty() { vec![group(reader)] } else { listed }
}

fn group(reader: &mut Reader<'_>) -> GroupConfig {
    GroupConfig {
        price_per_hour: reader.amount("price_per_hour").unwrap_or_default(),
        throttle: Throttle {
            limit: reader.table.int("scale_throttle.limit").unwrap_or_default(),
            burst: reader.count("scale_throttle.burst"),
        },
        ..GroupConfig::new("", reader.count("max_instances"))
    }
}

fn policy(reader: &mut Reader<'_>, request_ahead: bool) -> Policy {
    let idle_count = reader.count("idle_count");
    let preemptive = reader.table.bool("preemptive_mode");
    let placements = [("pack", Placement::Pack), ("spread", Placement::Spread)];
    let idle_target = IdleTarget {
        idle_count,
        idle_time: reader.duration("idle_time", Duration::ZERO),
        scale_factor: reader.amount("scale_factor").unwrap_or_default(),
        scale_factor_limit: reader.count("scale_factor_limit"),
        preemptive: preemptive.unwrap_or(idle_count > 0),
        // An explicit `preemptive_mode` disables `request_ahead`.
        reserve_ahead: preemptive.is_none() && request_ahead,
        placement: reader.one_of("placement", &placements).unwrap_or_default(),
    };
    let periods: Vec<&str> = reader.table.strings("periods").map(|(period, _)| period).collect();
    let zone = reader.table.str("timezone").unwrap_or_default();
    policy_in_periods(&periods, zone, idle_target, |key, message| reader.add_problem(key, message))
}

/// Returns a policy that is active in the periods, or always if there are none.
///
/// `problem` is called with the key and the message of each invalid value.
/// An empty time zone and `Local` mean the time zone of this machine.
pub(super) fn policy_in_periods<T: AsRef<str>>(
    periods: &[T],
    zone: &str,
    idle_target: IdleTarget,
    mut problem: impl FnMut(&'static str, String),
) -> Policy {
    let always = || "* * * * *".parse().ok();
    let parsed = periods
        .iter()
        .filter_map(|period| period.as_ref().parse().map_err(|error| problem("periods", format!("{error}"))).ok());
    let parsed = if periods.is_empty() { always().into_iter().collect() } else { parsed.collect() };
    let zone = match zone {
        "" | "Local" => TimeZone::system(),
        name => TimeZone::get(name).unwrap_or_else(|_| {
            problem("timezone", format!("`{name}` is not a valid time zone; use for example Europe/Berlin"));
            TimeZone::UTC
        }),
    };
    Policy { periods: parsed, zone, idle_target }
}

fn forecast(reader: &mut Reader<'_>) -> ForecastConfig {
    let default = ForecastConfig::default();
    let days = reader.table.int("days");
    let within = days.map(|days| u32::try_from(days).ok().filter(|days| (1..=60).contains(days)));
    if let (Some(days), Some(None)) = (days, within) {
        reader.add_problem("days", format!("{days} is not between 1 and 60"));
    }
    ForecastConfig {
        days: within.flatten().unwrap_or(default.days),
        quantile: reader.within("quantile", 0.0..=1.0, default.quantile),
        safety_factor: reader.within("safety_factor", -10.0..=100.0, default.safety_factor),
        retention_factor: reader.amount("retention_factor").unwrap_or(default.retention_factor),
        by_weekday: reader.table.bool("by_weekday").unwrap_or_default(),
        lead_time: reader.duration("lead_time", default.lead_time),
        max_idle_slot_hours_per_day: reader.amount("max_idle_slot_hours_per_day"),
    }
}

fn density(reader: &mut Reader<'_>) -> Density {
    let default = Density::default();
    let cpus = reader.amount("slot_cpus").unwrap_or_default();
    let memory = reader.table.str("slot_memory").map(|text| (text, memory_bytes(text)));
    if let Some((text, None)) = memory {
        reader.add_problem("slot_memory", format!("`{text}` is not a valid amount of memory; write for example 2g"));
    }
    let runs = reader.count("min_runs");
    // Zero means the default, as for durations.
    let margin = reader.amount("usage_margin").filter(|margin| *margin > 0.0);
    Density {
        slot: ResourceRequest {
            cpu_milli: cpu_milli(&cpus.to_string()),
            memory_bytes: memory.and_then(|(_, bytes)| bytes),
        },
        learn_from_usage: reader.table.bool("learn_from_usage").unwrap_or_default(),
        min_runs: if runs > 0 { runs as usize } else { default.min_runs },
        usage_margin: margin.unwrap_or(default.usage_margin),
    }
}

fn buckets(table: &Table) -> Buckets {
    let bounds = |key: &str| {
        let numbers = table.list(key).iter().filter_map(|node| match node.value {
            Value::Float(bound) if bound.is_finite() => Some(bound),
            _ => None,
        });
        let mut bounds: Vec<f64> = numbers.collect();
        bounds.sort_unstable_by(f64::total_cmp);
        bounds.dedup();
        bounds
    };
    Buckets {
        operation: bounds("instance_operation_time_buckets"),
        creation: bounds("instance_creation_time_buckets"),
        is_running: bounds("instance_is_running_time_buckets"),
        deletion: bounds("instance_deletion_time_buckets"),
        readiness: bounds("instance_readiness_time_buckets"),
        life: bounds("instance_life_duration_buckets"),
    }
}

#[cfg(test)]
mod tests;
