//! Reads `[runners.autoscaler]`.

use std::path::PathBuf;

use muster_taskscaler::resources::memory_bytes;

use super::checks::PLUGIN_EXECUTORS;
use super::scaling;
use super::tree::{Table, Value, json};
use crate::settings::{
    AutoscalerSettings, ConnectorSettings, GroupSettings, IsolationSettings, OnInstances, StickySettings,
};

/// Reads `[runners.autoscaler]` of a runner. `None` means that the runner has no such table. An invalid value counts as
/// not set.
pub(super) fn read(runner: &Table) -> Option<AutoscalerSettings> {
    let table = runner.table("autoscaler")?;
    let defaults = AutoscalerSettings::default();
    let owned = |name: &str| table.str(name).map(str::to_owned);
    let isolation = table.table("vm_isolation").and_then(isolation);
    let (plugin, plugin_config) = (owned("plugin").unwrap_or_default(), opaque_table(table, "plugin_config"));
    let plugin_config = plugin_config.unwrap_or_default();
    let connector = table.table("connector_config").map(connector).unwrap_or_default();
    // A group uses the runner's value of each key that it does not set.
    let group = |group: &Table| GroupSettings {
        name: group.str("name").unwrap_or_default().to_owned(),
        plugin: group.str("plugin").unwrap_or(&plugin).to_owned(),
        plugin_config: opaque_table(group, "plugin_config").unwrap_or_else(|| plugin_config.clone()),
        connector: group.table("connector_config").map_or_else(|| connector.clone(), self::connector),
    };
    Some(AutoscalerSettings {
        groups: table.tables("groups").iter().map(group).collect(),
        plugin: plugin.clone(),
        plugin_config: plugin_config.clone(),
        has_token_prefix: false,
        connector: connector.clone(),
        instance_ready_command: owned("instance_ready_command"),
        instance_acquire_timeout: table.time("instance_acquire_timeout").unwrap_or(defaults.instance_acquire_timeout),
        log_internal_ip: table.bool("log_internal_ip").unwrap_or_default(),
        log_external_ip: table.bool("log_external_ip").unwrap_or_default(),
        scaling: scaling::read(table).0,
        // A job's files are deleted with its virtual machine, so no context can be kept.
        sticky: table.table("sticky_context").and_then(sticky).filter(|_| isolation.is_none()),
        isolation,
    })
}

/// Reads the settings for jobs on instances. Returns the default if the executor uses no autoscaler.
pub(super) fn on_instances(runner: &Table, executor: &str) -> OnInstances {
    let Some(autoscaler) = runner.table("autoscaler").filter(|_| PLUGIN_EXECUTORS.contains(&executor)) else {
        return OnInstances::default();
    };
    let image = autoscaler.str("vm_isolation.image").unwrap_or_default().to_owned();
    if executor != "instance" {
        // With `docker-autoscaler`, a job's `image` is that of its container.
        return OnInstances { image, ..OnInstances::default() };
    }
    OnInstances {
        image,
        allowed_images: runner
            .table("instance")
            .map(|table| table.strings("allowed_images").map(|(image, _)| image.to_owned()).collect())
            .unwrap_or_default(),
        use_common_build_dir: runner.bool("instance.use_common_build_dir").unwrap_or_default(),
    }
}

fn isolation(table: &Table) -> Option<IsolationSettings> {
    table.bool("enabled").unwrap_or_default().then(|| IsolationSettings {
        nesting_host: table.str("nesting_host").unwrap_or_default().to_owned(),
        nesting_config: opaque_table(table, "nesting_config").unwrap_or_default(),
        connector: table.table("connector_config").map(connector).unwrap_or_default(),
    })
}

/// Reads a table whose keys only the plugin knows. The plugin gets it unchanged.
fn opaque_table(table: &Table, name: &str) -> Option<serde_json::Value> {
    match table.node(name).map(|node| &node.value) {
        Some(Value::Any(text)) => Some(json(text)),
        _ => None,
    }
}

fn sticky(table: &Table) -> Option<StickySettings> {
    let default = StickySettings::default();
    table.bool("enabled").unwrap_or_default().then(|| StickySettings {
        max_size_bytes: table.str("max_size").and_then(memory_bytes).unwrap_or(default.max_size_bytes),
        max_age: table.time("max_age").unwrap_or(default.max_age),
    })
}

fn connector(table: &Table) -> ConnectorSettings {
    let text = |name: &str| table.str(name).unwrap_or_default().to_owned();
    ConnectorSettings {
        os: text("os"),
        arch: text("arch"),
        protocol: text("protocol"),
        protocol_port: table.int("protocol_port").and_then(|port| u16::try_from(port).ok()).unwrap_or_default(),
        username: text("username"),
        password: text("password"),
        key_path: table.str("key_path").map(PathBuf::from),
        use_static_credentials: table.bool("use_static_credentials").unwrap_or_default(),
        keepalive: table.time("keepalive"),
        timeout: table.time("timeout"),
        use_external_addr: table.bool("use_external_addr").unwrap_or_default(),
        allow_unencrypted: table.bool("allow_unencrypted").unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::tz::TimeZone;
    use muster_taskscaler::config::{Config, GroupConfig, GroupSelection, Throttle, UnmanagedPolicy};
    use muster_taskscaler::driver::Buckets;
    use muster_taskscaler::forecast::ForecastConfig;
    use muster_taskscaler::policy::{IdleTarget, Placement, Policies, Policy};
    use muster_taskscaler::resources::Density;
    use muster_taskscaler::types::ResourceRequest;

    use super::*;
    use crate::settings::Scaling;
    use crate::{SettingsContext, parse, settings};

    fn load_runner(text: &str) -> std::sync::Arc<crate::settings::RunnerSettings> {
        let runner = "[[runners]]\nurl = \"https://one.example\"\ntoken = \"glrt-x\"\nexecutor = \"instance\"\n";
        let loaded = parse(&format!("{runner}{text}"), &crate::HostFacts::default());
        let settings = settings(&loaded.config.unwrap(), &SettingsContext::default());
        std::sync::Arc::clone(&settings.runners[0])
    }

    fn autoscaler(text: &str) -> AutoscalerSettings {
        (**load_runner(text).autoscaler.as_ref().unwrap()).clone()
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "one line per key")]
    fn every_autoscaler_key_is_read() {
        let found = autoscaler(
            r#"
[runners.autoscaler]
plugin = "aws:1.x"
capacity_per_instance = 2
max_use_count = 3
max_instances = 4
instance_ready_command = "docker info"
instance_acquire_timeout = "20m0s"
update_interval = "30s"
deletion_retry_interval = "1m30.5s"
failure_threshold = 5
reservation_throttling = false
request_ahead = false
log_internal_ip = true
log_external_ip = true
delete_instances_on_shutdown = true
instance_creation_time_buckets = [1, 2.5]
unmanaged_instances = "adopt"
[runners.autoscaler.forecast]
days = 14
[runners.autoscaler.scale_throttle]
limit = -1
burst = 7
[runners.autoscaler.density]
slot_cpus = 1.5
slot_memory = "2g"
learn_from_usage = true
min_runs = 7
usage_margin = 2
[runners.autoscaler.sticky_context]
enabled = true
max_size = "1g"
max_age = "24h"
[runners.autoscaler.plugin_config]
name = "group"
sizes = [1, 2]
[runners.autoscaler.plugin_config.tags]
team = "ci"
[runners.autoscaler.connector_config]
os = "linux"
username = "ci"
password = "secret"
key_path = "/etc/key"
protocol_port = 2222
keepalive = "5s"
timeout = "1m"
use_external_addr = true
allow_unencrypted = true
[[runners.autoscaler.policy]]
periods = ["* * * * *"]
timezone = "Europe/Berlin"
idle_count = 2
idle_time = "5m"
scale_factor = 1.5
preemptive_mode = false
placement = "spread"
"#,
        );
        let connector = ConnectorSettings {
            os: "linux".to_owned(),
            username: "ci".to_owned(),
            password: "secret".to_owned(),
            key_path: Some("/etc/key".into()),
            protocol_port: 2222,
            keepalive: Some(Duration::from_secs(5)),
            timeout: Some(Duration::from_secs(60)),
            use_external_addr: true,
            allow_unencrypted: true,
            ..ConnectorSettings::default()
        };
        let idle_target = IdleTarget {
            idle_count: 2,
            idle_time: Duration::from_secs(300),
            scale_factor: 1.5,
            reserve_ahead: false,
            placement: Placement::Spread,
            ..IdleTarget::default()
        };
        let periods = vec!["* * * * *".parse().unwrap()];
        let zone = TimeZone::get("Europe/Berlin").unwrap();
        let slot = ResourceRequest { cpu_milli: Some(1500), memory_bytes: Some(2 << 30) };
        let group = GroupConfig { throttle: Throttle { limit: -1, burst: 7 }, ..GroupConfig::new("", 4) };
        let config = Config {
            capacity: 2.try_into().unwrap(),
            max_uses: Some(3.try_into().unwrap()),
            policies: Policies::new(vec![Policy { periods, zone, idle_target }]),
            forecast: Some(ForecastConfig { days: 14, ..ForecastConfig::default() }),
            failure_threshold: 5,
            update_interval: Duration::from_secs(30),
            deletion_retry_interval: Duration::from_millis(90_500),
            reservation_throttling: false,
            density: Density { slot, learn_from_usage: true, min_runs: 7, usage_margin: 2.0 },
            unmanaged: UnmanagedPolicy::Adopt,
            delete_on_shutdown: true,
            ..Config::new(group)
        };
        let buckets = Buckets { creation: vec![1.0, 2.5], ..Buckets::default() };
        let scaling = Scaling { config, buckets, problems: Vec::new() };
        let wanted = AutoscalerSettings {
            plugin: "aws:1.x".to_owned(),
            has_token_prefix: false,
            plugin_config: serde_json::json!({ "name": "group", "sizes": [1, 2], "tags": { "team": "ci" } }),
            connector,
            groups: Vec::new(),
            instance_ready_command: Some("docker info".to_owned()),
            instance_acquire_timeout: Duration::from_secs(1200),
            log_internal_ip: true,
            log_external_ip: true,
            scaling,
            sticky: Some(StickySettings { max_size_bytes: 1 << 30, max_age: Duration::from_secs(86_400) }),
            isolation: None,
        };
        assert!(found == wanted, "{found:?}");
    }

    #[test]
    fn group_overrides_values_of_runner() {
        let found = autoscaler(
            r#"
[runners.autoscaler]
plugin = "aws"
group_selection = "price"
[runners.autoscaler.plugin_config]
name = "all"
[runners.autoscaler.connector_config]
username = "ci"
[[runners.autoscaler.groups]]
name = "spot"
max_instances = 8
[runners.autoscaler.groups.plugin_config]
name = "spot"
[[runners.autoscaler.groups]]
name = "other cloud"
plugin = "googlecloud"
price_per_hour = 0.5
[runners.autoscaler.groups.scale_throttle]
limit = 3
[runners.autoscaler.groups.connector_config]
username = "root"
password = "secret"
"#,
        );
        let user = |name: &str, password: &str| ConnectorSettings {
            username: name.to_owned(),
            password: password.to_owned(),
            ..ConnectorSettings::default()
        };
        let group = |name: &str, plugin: &str, config: &str, connector| GroupSettings {
            name: name.to_owned(),
            plugin: plugin.to_owned(),
            plugin_config: serde_json::json!({ "name": config }),
            connector,
        };
        let wanted = [
            group("spot", "aws", "spot", user("ci", "")),
            group("other cloud", "googlecloud", "all", user("root", "secret")),
        ];
        assert!(found.groups == wanted && found.all_groups("") == wanted);
        let spot = GroupConfig { is_named: true, ..GroupConfig::new("spot", 8) };
        let throttle = Throttle { limit: 3, burst: 0 };
        let other = GroupConfig { is_named: true, price_per_hour: 0.5, throttle, ..GroupConfig::new("other cloud", 0) };
        let config = found.scaling.named("a").unwrap();
        assert_eq!((config.groups, config.group_selection), (vec![spot, other], GroupSelection::Price));
    }

    #[test]
    fn every_vm_isolation_key_is_read() {
        let text = r#"
[runners.instance]
allowed_images = ["ubuntu-*", "macos"]
use_common_build_dir = true
[runners.autoscaler]
plugin = "aws"
[runners.autoscaler.sticky_context]
enabled = true
[runners.autoscaler.vm_isolation]
enabled = true
nesting_host = "unix:///run/nesting.sock"
image = "ubuntu-$VERSION"
[runners.autoscaler.vm_isolation.nesting_config]
image_directory = "/images"
[runners.autoscaler.vm_isolation.connector_config]
username = "ci"
password = "secret"
timeout = "3m"
"#;
        let runner = load_runner(text);
        let found = runner.autoscaler.as_ref().unwrap();
        let connector = ConnectorSettings {
            username: "ci".to_owned(),
            password: "secret".to_owned(),
            timeout: Some(Duration::from_secs(180)),
            ..ConnectorSettings::default()
        };
        let wanted = IsolationSettings {
            nesting_host: "unix:///run/nesting.sock".to_owned(),
            nesting_config: serde_json::json!({ "image_directory": "/images" }),
            connector,
        };
        assert!(found.isolation == Some(wanted));
        assert_eq!(found.sticky, None, "vm_isolation must disable sticky contexts");
        let settings = OnInstances {
            image: "ubuntu-$VERSION".to_owned(),
            allowed_images: vec!["ubuntu-*".to_owned(), "macos".to_owned()],
            use_common_build_dir: true,
        };
        assert_eq!(runner.on_instances, settings);
        let without_isolation = load_runner(&text.replace("enabled = true\nnesting", "nesting"));
        assert!(without_isolation.autoscaler.as_ref().unwrap().isolation.is_none());
        assert_eq!(without_isolation.on_instances, settings, "vm_isolation.enabled must not change the job settings");
    }

    #[test]
    fn inline_table_is_passed_on() {
        let found = autoscaler("[runners.autoscaler]\nplugin = \"local\"\nplugin_config = { max_size = 3 }\n");
        assert_eq!(found.plugin_config, serde_json::json!({ "max_size": 3 }));
    }

    #[test]
    fn heartbeat_interval_of_zero_disables_heartbeats() {
        let found = autoscaler("[runners.autoscaler]\nplugin = \"aws\"\nheartbeat_interval = \"0s\"\n");
        assert_eq!(found.scaling.named("main").unwrap().heartbeat_interval, None);
    }

    /// R041: a change of one key affects no other concern of an operator.
    #[test]
    fn each_of_five_concerns_can_be_changed_alone() {
        let base = "shell = \"bash\"\n[runners.autoscaler]\nplugin = \"aws\"\nmax_instances = 3\n[runners.autoscaler.plugin_config]\n\
                    size = \"small\"\n[[runners.autoscaler.policy]]\nidle_count = 1\nplacement = \"pack\"\n";
        let concerns = |text: &str| {
            let runner = "[[runners]]\nurl = \"https://one.example\"\ntoken = \"glrt-x\"\nexecutor = \"instance\"\n";
            let loaded = parse(&format!("{runner}{text}"), &crate::HostFacts::default());
            let settings = settings(&loaded.config.unwrap(), &SettingsContext::default());
            let runner = &settings.runners[0];
            let autoscaler = runner.autoscaler.as_deref().unwrap();
            let config = autoscaler.scaling.named("").unwrap();
            let wanted = config.policies.active_at(0).1.clone();
            [
                autoscaler.plugin_config.to_string(),
                autoscaler.plugin.clone(),
                format!("{} {}", config.groups[0].max_instances, wanted.idle_count),
                format!("{:?}", wanted.placement),
                runner.shell.clone(),
            ]
        };
        let before = concerns(base);
        let swaps = [
            ("size = \"small\"", "size = \"large\""),
            ("\"aws\"", "\"googlecloud\""),
            ("idle_count = 1", "idle_count = 5"),
            ("\"pack\"", "\"spread\""),
            ("\"bash\"", "\"sh\""),
        ];
        for (index, (old, new)) in swaps.into_iter().enumerate() {
            let after = concerns(&base.replace(old, new));
            let changed: Vec<usize> = (0..before.len()).filter(|concern| before[*concern] != after[*concern]).collect();
            assert_eq!(changed, [index], "{new}");
        }
    }
}
