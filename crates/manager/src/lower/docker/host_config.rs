//! Host configuration of containers (docs/spec/job-execution.md, section 5.3).

use std::collections::BTreeMap;

use muster_config::settings::{ContainerSettings, Device, GpuRequest, Ulimit};
use muster_job::StepLimits;
use serde_json::{Map, Value, json};

use super::super::LowerError;
use super::DockerFiles;

/// Inputs of [`host_config`] that are not settings.
pub(super) struct ContainerFacts {
    pub(super) privileged: bool,
    pub(super) cgroup_parent: String,
    /// Devices in addition to the configured ones.
    pub(super) devices: Vec<Device>,
    /// Whether the engine's init program is the first process.
    pub(super) init: bool,
}

/// Returns `HostConfig` of the Docker API, without values that equal the engine's default.
pub(super) fn host_config(
    settings: &ContainerSettings,
    facts: &ContainerFacts,
    files: &DockerFiles,
) -> Result<Map<String, Value>, LowerError> {
    let security_opt: Vec<String> =
        settings.security_opt.iter().map(|option| security_option(option, files)).collect::<Result<_, _>>()?;
    let devices: Vec<Value> = settings.devices.iter().chain(&facts.devices).map(device).collect();
    let dns: Vec<String> = settings.dns.iter().map(ToString::to_string).collect();
    let mut config = Fields(Map::new());
    config.set("Memory", settings.memory);
    config.set("MemorySwap", settings.memory_swap);
    config.set("MemoryReservation", settings.memory_reservation);
    config.set("NanoCpus", settings.nano_cpus);
    config.set("CpusetCpus", &settings.cpuset_cpus);
    config.set("CpusetMems", &settings.cpuset_mems);
    config.set("CpuShares", settings.cpu_shares);
    config.set("CgroupParent", &facts.cgroup_parent);
    config.set("Privileged", facts.privileged);
    config.set("CapAdd", &settings.cap_add);
    config.set("CapDrop", &settings.cap_drop);
    config.set("SecurityOpt", security_opt);
    config.set("Devices", devices);
    config.set("DeviceCgroupRules", &settings.device_cgroup_rules);
    config.set("DeviceRequests", settings.gpus.iter().map(gpus).collect::<Vec<_>>());
    config.set("Dns", dns);
    config.set("DnsSearch", &settings.dns_search);
    config.set("ExtraHosts", &settings.extra_hosts);
    config.set("Links", &settings.links);
    config.set("Ulimits", settings.ulimits.iter().map(ulimit).collect::<Vec<_>>());
    config.set("ShmSize", settings.shm_size);
    config.set("Tmpfs", map(&settings.tmpfs));
    config.set("Sysctls", map(&settings.sysctls));
    config.set("GroupAdd", &settings.group_add);
    config.set("UsernsMode", &settings.userns_mode);
    config.set("IpcMode", &settings.ipc_mode);
    config.set("PidMode", &settings.pid_mode);
    config.set("Runtime", &settings.runtime);
    config.set("OomKillDisable", settings.oom_kill_disable);
    config.set("OomScoreAdj", settings.oom_score_adjust);
    config.set("VolumeDriver", &settings.volume_driver);
    config.set("VolumesFrom", &settings.volumes_from);
    config.set("Init", facts.init);
    // Logs of services are read from the engine, which only some log drivers allow.
    config.set("LogConfig", json!({ "Type": "json-file", "Config": settings.log_options }));
    Ok(config.0)
}

/// Applies limits of the step policy, unless the container has lower ones.
pub(super) fn apply_limits(config: &mut Map<String, Value>, limits: &StepLimits) {
    let of_policy =
        [("Memory", limits.memory_bytes), ("NanoCpus", limits.cpu_milli.map(|milli| u64::from(milli) * 1_000_000))];
    for (name, limit) in of_policy {
        let Some(limit) = limit else { continue };
        let configured = config.get(name).and_then(Value::as_u64).filter(|value| *value > 0);
        config.insert(name.to_owned(), json!(configured.map_or(limit, |configured| configured.min(limit))));
    }
}

struct Fields(Map<String, Value>);

impl Fields {
    fn set(&mut self, name: &str, value: impl serde::Serialize) {
        // Numbers, strings and lists can always be represented in JSON.
        let value = serde_json::to_value(value).unwrap_or_default();
        let is_default = match &value {
            Value::Null => true,
            Value::Bool(truth) => !truth,
            Value::Number(number) => number.as_i64() == Some(0),
            Value::String(text) => text.is_empty(),
            Value::Array(list) => list.is_empty(),
            Value::Object(fields) => fields.is_empty(),
        };
        if !is_default {
            self.0.insert(name.to_owned(), value);
        }
    }
}

fn map(map: &BTreeMap<String, String>) -> Value {
    json!(map)
}

fn device(device: &Device) -> Value {
    json!({
        "PathOnHost": device.on_host,
        "PathInContainer": device.in_container,
        "CgroupPermissions": device.permissions,
    })
}

fn gpus(request: &GpuRequest) -> Value {
    json!({
        "Driver": request.driver,
        "Count": request.count,
        "DeviceIDs": request.device_ids,
        "Capabilities": [request.capabilities],
        "Options": request.options,
    })
}

fn ulimit(limit: &Ulimit) -> Value {
    json!({ "Name": limit.name, "Soft": limit.soft, "Hard": limit.hard })
}

/// The engine cannot read the manager's files, so a seccomp profile is replaced with its content.
fn security_option(option: &str, files: &DockerFiles) -> Result<String, LowerError> {
    let Some(path) = seccomp_path(option) else { return Ok(option.to_owned()) };
    let profile = files.seccomp.get(path).cloned().unwrap_or_else(|| Err("it was not read".to_owned()));
    let profile = profile.and_then(|text| {
        let json: Result<Value, _> = serde_json::from_str(&text);
        json.map(|json| json.to_string()).map_err(|error| format!("it is not valid JSON: {error}"))
    });
    let profile = profile.map_err(|reason| {
        LowerError::configuration(format!("failed to use the seccomp profile {path} of security_opt: {reason}"))
    })?;
    Ok(format!("seccomp={profile}"))
}

/// Returns the path of a seccomp profile. `None` means that the option does not name a file with a profile.
pub(super) fn seccomp_path(option: &str) -> Option<&str> {
    let profile = option.strip_prefix("seccomp=").or_else(|| option.strip_prefix("seccomp:"))?;
    let is_inline = matches!(profile, "unconfined" | "builtin" | "") || profile.trim_start().starts_with('{');
    (!is_inline).then_some(profile)
}
