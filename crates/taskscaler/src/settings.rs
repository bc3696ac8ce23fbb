//! `[runners.autoscaler]` as text has it, and the way from there to a checked [`Config`], which tells all problems at once.

mod check;

use std::num::NonZeroU32;
use std::time::Duration;

use jiff::tz::TimeZone;
use serde::Deserialize;
use serde::de::IgnoredAny;

use self::check::Check;
use crate::config::{Config, Foreign, GroupConfig, GroupOrder, Throttle};
use crate::driver::Buckets;
use crate::forecast::ForecastConfig;
use crate::need::{self, Density};
use crate::policy::{Placement, Policies, Policy, Wanted};
use crate::words::Need;

/// The keys of the table that a scaler acts on; a key that the table does not have is an error. Those that belong to who
/// starts the plugin are read over.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    capacity_per_instance: i64,
    max_use_count: i64,
    max_instances: i64,
    update_interval: Option<String>,
    update_interval_when_expecting: Option<String>,
    deletion_retry_interval: Option<String>,
    shutdown_deletion_interval: Option<String>,
    shutdown_deletion_retries: i64,
    failure_threshold: i64,
    reservation_throttling: Option<bool>,
    delete_instances_on_shutdown: bool,
    scale_throttle: ThrottleSettings,
    policy: Vec<PolicySettings>,
    instance_operation_time_buckets: Vec<f64>,
    instance_creation_time_buckets: Vec<f64>,
    instance_is_running_time_buckets: Vec<f64>,
    instance_deletion_time_buckets: Vec<f64>,
    instance_readiness_time_buckets: Vec<f64>,
    instance_life_duration_buckets: Vec<f64>,
    // Muster's own.
    groups: Vec<GroupSettings>,
    group_order: Option<String>,
    price_per_hour: f64,
    spend_max_per_hour: Option<f64>,
    foreign_instances: Option<String>,
    create_deadline: Option<String>,
    boot_deadline: Option<String>,
    prepare_deadline: Option<String>,
    heartbeat_interval: Option<String>,
    suspended_max: Option<String>,
    request_ahead: Option<bool>,
    forecast: Option<ForecastSettings>,
    density: DensitySettings,
    #[serde(rename = "plugin")]
    _plugin: IgnoredAny,
    #[serde(rename = "plugin_config")]
    _plugin_config: IgnoredAny,
    #[serde(rename = "connector_config")]
    _connector_config: IgnoredAny,
    #[serde(rename = "instance_ready_command")]
    _instance_ready_command: IgnoredAny,
    #[serde(rename = "instance_acquire_timeout")]
    _instance_acquire_timeout: IgnoredAny,
    #[serde(rename = "log_internal_ip")]
    _log_internal_ip: IgnoredAny,
    #[serde(rename = "log_external_ip")]
    _log_external_ip: IgnoredAny,
    #[serde(rename = "sticky_context")]
    _sticky_context: IgnoredAny,
    #[serde(rename = "state_storage")]
    _state_storage: IgnoredAny,
    #[serde(rename = "vm_isolation")]
    _vm_isolation: IgnoredAny,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct DensitySettings {
    slot_cpus: f64,
    slot_memory: Option<String>,
    measured: bool,
    measured_runs: i64,
    measured_margin: Option<f64>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ThrottleSettings {
    limit: i64,
    burst: i64,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct PolicySettings {
    periods: Vec<String>,
    timezone: String,
    idle_count: i64,
    idle_time: Option<String>,
    scale_factor: f64,
    scale_factor_limit: i64,
    preemptive_mode: Option<bool>,
    placement: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct GroupSettings {
    name: String,
    max_instances: i64,
    price_per_hour: f64,
    scale_throttle: ThrottleSettings,
    #[serde(rename = "plugin")]
    _plugin: IgnoredAny,
    #[serde(rename = "plugin_config")]
    _plugin_config: IgnoredAny,
    #[serde(rename = "connector_config")]
    _connector_config: IgnoredAny,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ForecastSettings {
    days: Option<i64>,
    quantile: Option<f64>,
    safety: Option<f64>,
    keep: Option<f64>,
    by_weekday: bool,
    lead: Option<String>,
    idle_hours_per_day_max: Option<f64>,
}

/// A value that cannot be acted on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Its key, below `[runners.autoscaler]`.
    pub key: String,
    /// What is wrong, and what to write instead.
    pub message: String,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.key, self.message)
    }
}

/// The table `density` of a whole configuration, as [`Settings::config`] has it; what cannot be acted on is as if it were not
/// there.
#[must_use]
pub fn density(settings: &serde_json::Value) -> Density {
    let table = settings.get("density").map(DensitySettings::deserialize);
    table.and_then(Result::ok).unwrap_or_default().density(&mut Check::default())
}

impl DensitySettings {
    fn density(&self, check: &mut Check) -> Density {
        let default = Density::default();
        let cpus = check.positive("density.slot_cpus", self.slot_cpus);
        let memory = self.slot_memory.as_ref().map(|text| (text, need::memory_bytes(text)));
        if let Some((text, None)) = memory {
            check.problem("density.slot_memory", format!("`{text}` is no amount of memory; write for example 2g"));
        }
        let runs = check.count("density.measured_runs", self.measured_runs);
        let margin = self.measured_margin.map(|margin| check.positive("density.measured_margin", margin));
        // Zero is the default, as of durations.
        let margin = margin.filter(|margin| *margin > 0.0);
        Density {
            slot: Need {
                cpu_milli: need::cpu_milli(&cpus.to_string()),
                memory_bytes: memory.and_then(|(_, bytes)| bytes),
            },
            measured: self.measured,
            runs_least: if runs > 0 { runs as usize } else { default.runs_least },
            margin: margin.unwrap_or(default.margin),
        }
    }
}

impl Settings {
    /// The checked configuration; `name` is that of the group where none is listed.
    ///
    /// # Errors
    /// All problems.
    pub fn config(&self, name: &str) -> Result<Config, Vec<Problem>> {
        let check = &mut Check::default();
        let mut config = Config::new(GroupConfig::new(name, 0));
        let capacity = check.count("capacity_per_instance", self.capacity_per_instance);
        config.capacity = NonZeroU32::new(capacity).unwrap_or(NonZeroU32::MIN);
        config.uses_max = NonZeroU32::new(check.count("max_use_count", self.max_use_count));
        config.groups = self.groups(check, name);
        let orders = [("listed", GroupOrder::Listed), ("price", GroupOrder::Price)];
        config.order = check.one_of("group_order", self.group_order.as_ref(), &orders).unwrap_or_default();
        config.policies = Policies::new(self.policies(check));
        config.forecast = self.forecast.as_ref().map(|forecast| forecast.config(check));
        if self.failure_threshold > 0 {
            config.failure_threshold = check.count("failure_threshold", self.failure_threshold);
        }
        for (key, text, place) in [
            ("update_interval", &self.update_interval, &mut config.update_interval),
            (
                "update_interval_when_expecting",
                &self.update_interval_when_expecting,
                &mut config.update_interval_when_expecting,
            ),
            ("deletion_retry_interval", &self.deletion_retry_interval, &mut config.deletion_retry_interval),
            ("shutdown_deletion_interval", &self.shutdown_deletion_interval, &mut config.shutdown_deletion_interval),
            ("create_deadline", &self.create_deadline, &mut config.create_deadline),
            ("boot_deadline", &self.boot_deadline, &mut config.boot_deadline),
            ("prepare_deadline", &self.prepare_deadline, &mut config.prepare_deadline),
            ("suspended_max", &self.suspended_max, &mut config.suspended_max),
        ] {
            *place = check.duration(key, text.as_ref(), *place);
        }
        if self.shutdown_deletion_retries > 0 {
            config.shutdown_deletion_retries = check.count("shutdown_deletion_retries", self.shutdown_deletion_retries);
        }
        config.heartbeat_interval = match self.heartbeat_interval.as_deref() {
            Some("0" | "0s") => None,
            _ => config
                .heartbeat_interval
                .map(|default| check.duration("heartbeat_interval", self.heartbeat_interval.as_ref(), default)),
        };
        config.reservation_throttling = self.reservation_throttling.unwrap_or(true);
        config.spend_max_per_hour = self.spend_max_per_hour.map(|max| check.positive("spend_max_per_hour", max));
        let foreign = [("leave", Foreign::Leave), ("adopt", Foreign::Adopt), ("delete", Foreign::Delete)];
        config.foreign =
            check.one_of("foreign_instances", self.foreign_instances.as_ref(), &foreign).unwrap_or_default();
        config.density = self.density.density(check);
        config.delete_on_shutdown = self.delete_instances_on_shutdown;
        if check.0.is_empty() { Ok(config) } else { Err(std::mem::take(&mut check.0)) }
    }

    /// The bounds of the histograms.
    #[must_use]
    pub fn buckets(&self) -> Buckets {
        let bounds = |text: &[f64]| {
            let mut bounds: Vec<f64> = text.iter().copied().filter(|bound| bound.is_finite()).collect();
            bounds.sort_unstable_by(f64::total_cmp);
            bounds.dedup();
            bounds
        };
        Buckets {
            operation: bounds(&self.instance_operation_time_buckets),
            creation: bounds(&self.instance_creation_time_buckets),
            is_running: bounds(&self.instance_is_running_time_buckets),
            deletion: bounds(&self.instance_deletion_time_buckets),
            readiness: bounds(&self.instance_readiness_time_buckets),
            life: bounds(&self.instance_life_duration_buckets),
        }
    }

    fn groups(&self, check: &mut Check, name: &str) -> Vec<GroupConfig> {
        let own = GroupSettings {
            name: name.to_owned(),
            max_instances: self.max_instances,
            price_per_hour: self.price_per_hour,
            scale_throttle: self.scale_throttle,
            ..GroupSettings::default()
        };
        let listed = if self.groups.is_empty() { std::slice::from_ref(&own) } else { &self.groups };
        let mut groups: Vec<GroupConfig> = Vec::new();
        for (index, group) in listed.iter().enumerate() {
            let key = |key: &str| {
                if self.groups.is_empty() { key.to_owned() } else { format!("groups[{}].{key}", index + 1) }
            };
            if group.name.is_empty() && !self.groups.is_empty() {
                check.problem(key("name"), "each group needs a name of its own: it stands in the books");
            } else if groups.iter().any(|other| other.name == group.name) {
                check.problem(key("name"), format!("`{}` is the name of another group", group.name));
            }
            groups.push(GroupConfig {
                name: group.name.clone(),
                listed: !self.groups.is_empty(),
                instances_max: check.count(&key("max_instances"), group.max_instances),
                price_per_hour: check.positive(&key("price_per_hour"), group.price_per_hour),
                throttle: Throttle {
                    limit: group.scale_throttle.limit,
                    burst: check.count(&key("scale_throttle.burst"), group.scale_throttle.burst),
                },
            });
        }
        groups
    }

    fn policies(&self, check: &mut Check) -> Vec<Policy> {
        let policy = |(index, policy): (usize, &PolicySettings)| {
            let key = |key: &str| format!("policy[{}].{key}", index + 1);
            let always = ["* * * * *".to_owned()];
            let texts = if policy.periods.is_empty() { always.as_slice() } else { &policy.periods };
            let mut periods = Vec::new();
            for text in texts {
                match text.parse() {
                    Ok(period) => periods.push(period),
                    Err(error) => check.problem(key("periods"), format!("{error}")),
                }
            }
            let zone = match policy.timezone.as_str() {
                "" | "Local" => TimeZone::system(),
                name => TimeZone::get(name).unwrap_or_else(|_| {
                    check
                        .problem(key("timezone"), format!("`{name}` is no time zone; write for example Europe/Berlin"));
                    TimeZone::UTC
                }),
            };
            let idle_count = check.count(&key("idle_count"), policy.idle_count);
            let placements = [("pack", Placement::Pack), ("spread", Placement::Spread)];
            let wanted = Wanted {
                idle_count,
                idle_time: check.duration(&key("idle_time"), policy.idle_time.as_ref(), Duration::ZERO),
                scale_factor: check.positive(&key("scale_factor"), policy.scale_factor),
                scale_factor_limit: check.count(&key("scale_factor_limit"), policy.scale_factor_limit),
                preemptive: policy.preemptive_mode.unwrap_or(idle_count > 0),
                // Who asks for this mode by name means it without exception.
                ahead: policy.preemptive_mode.is_none() && self.request_ahead.unwrap_or(true),
                placement: check.one_of(&key("placement"), policy.placement.as_ref(), &placements).unwrap_or_default(),
            };
            Policy { periods, zone, wanted }
        };
        self.policy.iter().enumerate().map(policy).collect()
    }
}

impl ForecastSettings {
    fn config(&self, check: &mut Check) -> ForecastConfig {
        let default = ForecastConfig::default();
        let mut days = self.days.map_or(default.days, |days| check.count("forecast.days", days));
        if days == 0 || days > 60 {
            check.problem("forecast.days", format!("{days} is not from 1 to 60"));
            days = default.days;
        }
        let quantile = self.quantile.unwrap_or(default.quantile);
        if !(0.0..=1.0).contains(&quantile) {
            check.problem("forecast.quantile", format!("{quantile} is not from 0 to 1"));
        }
        let safety = self.safety.unwrap_or(default.safety);
        if !(-10.0..=100.0).contains(&safety) {
            check.problem("forecast.safety", format!("{safety} is not from -10 to 100"));
        }
        ForecastConfig {
            days,
            quantile,
            safety,
            keep: check.positive("forecast.keep", self.keep.unwrap_or(default.keep)),
            by_weekday: self.by_weekday,
            lead: check.duration("forecast.lead", self.lead.as_ref(), default.lead),
            idle_hours_per_day_max: self
                .idle_hours_per_day_max
                .map(|max| check.positive("forecast.idle_hours_per_day_max", max)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Settings {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn every_key_reaches_the_engine() {
        let text = r#"
            capacity_per_instance = 4
            max_use_count = 10
            max_instances = 20
            update_interval = "1m30s"
            shutdown_deletion_interval = "2s"
            shutdown_deletion_retries = 5
            failure_threshold = 5
            reservation_throttling = false
            scale_throttle = { limit = 3, burst = 7 }
            suspended_max = "90m"
            plugin = "aws"
            [[policy]]
            idle_count = 8
            idle_time = "20m0s"
            scale_factor = 0.5
            scale_factor_limit = 12
            [[policy]]
            periods = ["* 8-18 * * mon-fri", "* 10-12 * * sat"]
            timezone = "Europe/Berlin"
            placement = "spread"
            [forecast]
            days = 14
            lead = "5m"
            safety = -0.5
            keep = 2.0
            [density]
            slot_cpus = 0.5
            slot_memory = "2g"
            measured = true
        "#;
        let config = settings(text).config("main").unwrap();
        assert_eq!((config.capacity.get(), config.uses_max.unwrap().get()), (4, 10));
        assert_eq!((config.update_interval.as_secs(), config.failure_threshold), (90, 5));
        assert_eq!((config.shutdown_deletion_interval.as_secs(), config.shutdown_deletion_retries), (2, 5));
        assert!(!config.reservation_throttling && config.suspended_max.as_secs() == 5400);
        assert_eq!(config.groups[0].throttle, Throttle { limit: 3, burst: 7 });
        assert_eq!((config.groups[0].name.as_str(), config.groups[0].instances_max), ("main", 20));
        let (index, wanted) = config.policies.at(1_772_409_600);
        assert_eq!((index, wanted.idle_count, wanted.idle_time.as_secs(), wanted.preemptive), (Some(0), 8, 1200, true));
        let monday_noon = 1_772_409_600 + 12 * 3600;
        let (index, wanted) = config.policies.at(monday_noon);
        assert_eq!((index, wanted.placement, wanted.idle_time), (Some(1), Placement::Spread, Duration::ZERO));
        let forecast = config.forecast.unwrap();
        assert_eq!((forecast.lead.as_secs(), forecast.safety, forecast.keep), (300, -0.5, 2.0));
        let slot = Need { cpu_milli: Some(500), memory_bytes: Some(2 << 30) };
        assert_eq!(config.density, Density { slot, measured: true, ..Density::default() });
    }

    #[test]
    fn jobs_are_requested_ahead_unless_a_key_forbids_it() {
        let ahead = |text: &str| settings(text).config("main").unwrap().policies.at(0).1.ahead;
        assert!(ahead("[[policy]]\nidle_count = 2"));
        assert!(!ahead("request_ahead = false\n[[policy]]\nidle_count = 2"));
        assert!(!ahead("[[policy]]\nidle_count = 2\npreemptive_mode = true"), "asked for by name, it has no exception");
    }

    /// What slots stand for is read in one way by the scaler and by what gives a job its share.
    #[test]
    fn density_is_the_same_for_all_who_ask() {
        let text = "[density]\nslot_cpus = 1.5\nslot_memory = \"512m\"\nmeasured_runs = 7\nmeasured_margin = 0.0";
        let value = serde_json::to_value(text.parse::<toml::Table>().unwrap()).unwrap();
        let alone = density(&value);
        assert_eq!(serde_json::from_value::<Settings>(value).unwrap().config("g").unwrap().density, alone);
        let slot = Need { cpu_milli: Some(1500), memory_bytes: Some(512 << 20) };
        assert_eq!(alone, Density { slot, runs_least: 7, ..Density::default() });
        assert_eq!(density(&serde_json::json!({ "density": { "slot_memory": "much" } })), Density::default());
    }

    #[test]
    fn a_key_that_is_not_known_is_not_the_default() {
        let others = "plugin = \"local\"\ninstance_ready_command = \"true\"\n[plugin_config]\nanything = 1\n[connector_config]\nos = \"linux\"";
        toml::from_str::<Settings>(others).unwrap();
        for (text, wrong) in
            [("[[polcy]]", "polcy"), ("[[policy]]\nidle_cont = 5", "idle_cont"), ("[scale_throttle]\nrate = 1", "rate")]
        {
            let error = toml::from_str::<Settings>(text).unwrap_err().to_string();
            assert!(error.contains(&format!("unknown field `{wrong}`")), "{error}");
        }
    }

    #[test]
    fn all_problems_are_told_at_once() {
        let text = r#"
            max_instances = -1
            update_interval = "soon"
            boot_deadline = "5 minutes"
            capacity_per_instance = -2
            foreign_instances = "eat"
            [[policy]]
            periods = ["@daily"]
            timezone = "Mars/Olympus"
            [[policy]]
            scale_factor = -1.0
        "#;
        let problems = settings(text).config("main").unwrap_err();
        let text: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(
            text,
            [
                "capacity_per_instance: -2 is not from 0 to 4294967295",
                "max_instances: -1 is not from 0 to 4294967295",
                "policy[1].periods: period `@daily`: has 1 fields; it needs five: minute, hour, day, month, weekday",
                "policy[1].timezone: `Mars/Olympus` is no time zone; write for example Europe/Berlin",
                "policy[2].scale_factor: -1 is not a number from 0 on",
                "update_interval: `soon` is no duration; write for example 20m0s or 500ms",
                "boot_deadline: `5 minutes` is no duration; write for example 20m0s or 500ms",
                "foreign_instances: `eat` is not known; write leave or adopt or delete",
            ]
        );
    }
}
