//! Reads `[runners.docker]`.

mod values;

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::problem::shown_name;
use super::tree::{Table, Value};
use crate::settings::{
    ContainerSettings, Device, DockerService, DockerSettings, GpuRequest, PULL_POLICIES, PreparedContainers, Ulimit,
};

const DEFAULT_WAIT_FOR_SERVICES_S: u32 = 30;
const DEFAULT_PREPARED: PreparedContainers =
    PreparedContainers { max_containers: 0, min_uses: 2, window_s: 3600, max_idle_s: 600 };
const MAX_PREPARED: u32 = 100;
/// Allowed `log_options`, which affect neither other jobs nor the engine's machine.
const ALLOWED_LOG_OPTIONS: [&str; 2] = ["env", "labels"];

pub(super) struct InvalidValue {
    pub(super) key: &'static str,
    pub(super) message: String,
    pub(super) help: &'static str,
}

/// Returns the settings and the invalid values.
///
/// `is_public` is whether the runner is public, which determines the default of `blocked_addresses`.
pub(super) fn read(docker: &Table, is_public: bool) -> (DockerSettings, Vec<InvalidValue>) {
    let mut reader = Reader { docker, is_public, problems: Vec::new() };
    let settings = reader.settings();
    let problems = reader.problems;
    let messages = problems.iter().map(|problem| format!("{}; {}", problem.message, problem.help)).collect();
    (DockerSettings { problems: messages, ..settings }, problems)
}

struct Reader<'a> {
    docker: &'a Table,
    is_public: bool,
    problems: Vec<InvalidValue>,
}

impl Reader<'_> {
    fn settings(&mut self) -> DockerSettings {
        let docker = self.docker;
        let bool = |key: &str| docker.bool(key).unwrap_or_default();
        let (build, service) = (self.build_container(), self.service_containers());
        let mac_address = self.text("mac_address");
        if !mac_address.is_empty() && !values::is_mac_address(&mac_address) {
            self.invalid("mac_address", &mac_address, "MAC address", "write six bytes, such as 92:d0:c6:0a:29:33");
        }
        let pull_policies = ["pull_policy", "allowed_pull_policies"].map(|key| self.pull_policies(key));
        let [pull_policy, allowed_pull_policies] = pull_policies;
        let services_devices = self.services_devices();
        DockerSettings {
            problems: Vec::new(),
            host: self.text("host"),
            tls_cert_path: self.text("tls_cert_path"),
            tls_verify: bool("tls_verify"),
            image: self.text("image"),
            host_without_image: false,
            allowed_images: self.list("allowed_images"),
            allowed_services: self.list("allowed_services"),
            pull_policy,
            allowed_pull_policies,
            disable_entrypoint_overwrite: bool("disable_entrypoint_overwrite"),
            services: self.docker.tables("services").iter().filter_map(service_entry).collect(),
            services_limit: self.docker.int("services_limit").and_then(|limit| u32::try_from(limit).ok()),
            wait_for_services_s: match self.docker.int("wait_for_services_timeout") {
                None | Some(0) => DEFAULT_WAIT_FOR_SERVICES_S,
                Some(seconds) => u32::try_from(seconds).unwrap_or_default(),
            },
            user: self.text("user"),
            allowed_users: self.list("allowed_users"),
            hostname: self.text("hostname"),
            mac_address,
            container_labels: self.map("container_labels"),
            allowed_privileged_images: self.list("allowed_privileged_images"),
            allowed_privileged_services: self.list("allowed_privileged_services"),
            volumes: self.list("volumes"),
            volume_driver: self.text("volume_driver"),
            volume_driver_ops: self.map("volume_driver_ops"),
            volume_keep: bool("volume_keep"),
            disable_cache: bool("disable_cache"),
            cache_dir: self.text("cache_dir"),
            network_mode: self.text("network_mode"),
            enable_ipv6: bool("enable_ipv6"),
            network_mtu: self.docker.int("network_mtu").and_then(|mtu| u32::try_from(mtu).ok()).unwrap_or_default(),
            blocked_addresses: self.blocked_addresses(),
            prepared_containers: self.prepared_containers(),
            service_slot_cgroup_template: self.text("service_slot_cgroup_template"),
            services_devices,
            build,
            service,
        }
    }

    fn build_container(&mut self) -> ContainerSettings {
        ContainerSettings {
            privileged: self.docker.bool("privileged").unwrap_or_default(),
            memory: self.size("memory"),
            memory_swap: self.swap("memory_swap"),
            memory_reservation: self.size("memory_reservation"),
            nano_cpus: self.cpus("cpus"),
            cpuset_cpus: self.text("cpuset_cpus"),
            cpuset_mems: self.text("cpuset_mems"),
            cpu_shares: self.docker.int("cpu_shares").unwrap_or_default(),
            cgroup_parent: self.text("cgroup_parent"),
            cap_add: self.list("cap_add"),
            cap_drop: self.list("cap_drop"),
            security_opt: self.list("security_opt"),
            devices: self.devices(),
            device_cgroup_rules: self.list("device_cgroup_rules"),
            gpus: self.gpus("gpus"),
            links: self.list("links"),
            ulimits: self.ulimits(),
            tmpfs: self.map("tmpfs"),
            sysctls: self.map("sysctls"),
            group_add: self.list("group_add"),
            ipc_mode: self.text("ipcmode"),
            pid_mode: self.text("pid_mode"),
            oom_kill_disable: self.docker.bool("oom_kill_disable").unwrap_or_default(),
            oom_score_adjust: self.docker.int("oom_score_adjust").unwrap_or_default(),
            volume_driver: self.text("volume_driver"),
            volumes_from: self.list("volumes_from"),
            dns: self.dns(),
            log_options: self.log_options(),
            ..self.common()
        }
    }

    fn service_containers(&mut self) -> ContainerSettings {
        let privileged = self.docker.bool("services_privileged").or_else(|| self.docker.bool("privileged"));
        // Skip invalid addresses, which `build_container` reports.
        let dns = self.docker.strings("dns").filter_map(|(address, _)| address.parse().ok()).collect();
        ContainerSettings {
            privileged: privileged.unwrap_or_default(),
            dns,
            memory: self.size("service_memory"),
            memory_swap: self.swap("service_memory_swap"),
            memory_reservation: self.size("service_memory_reservation"),
            nano_cpus: self.cpus("service_cpus"),
            cpuset_cpus: self.text("service_cpuset_cpus"),
            cpu_shares: self.docker.int("service_cpu_shares").unwrap_or_default(),
            cgroup_parent: self.text("service_cgroup_parent"),
            security_opt: self.list("services_security_opt"),
            gpus: self.gpus("service_gpus"),
            tmpfs: self.map("services_tmpfs"),
            log_options: self.map("log_options"),
            ..self.common()
        }
    }

    /// Reads the settings that the build container and services share.
    fn common(&self) -> ContainerSettings {
        ContainerSettings {
            dns_search: self.list("dns_search"),
            extra_hosts: self.list("extra_hosts"),
            shm_size: self.docker.int("shm_size").unwrap_or_default(),
            userns_mode: self.text("userns_mode"),
            runtime: self.text("runtime"),
            ..ContainerSettings::default()
        }
    }

    fn text(&self, key: &str) -> String {
        self.docker.str(key).unwrap_or_default().to_owned()
    }

    fn list(&self, key: &str) -> Vec<String> {
        self.docker.strings(key).map(|(text, _)| text.to_owned()).collect()
    }

    fn map(&self, key: &str) -> BTreeMap<String, String> {
        map(self.docker, key).map(|(name, text)| (name.to_owned(), text.to_owned())).collect()
    }

    fn size(&mut self, key: &'static str) -> i64 {
        const HELP: &str = "write a number with the unit b, k, m or g, such as 512m";
        self.parsed(key, values::size, "size", HELP)
    }

    fn swap(&mut self, key: &'static str) -> i64 {
        const HELP: &str = "write a number with the unit b, k, m or g, such as 1g, or -1 for no limit";
        self.parsed(key, |text| if text.trim() == "-1" { Some(-1) } else { values::size(text) }, "size", HELP)
    }

    fn cpus(&mut self, key: &'static str) -> i64 {
        self.parsed(key, values::cpus, "number of CPUs", "write a decimal number, such as 1.5")
    }

    fn gpus(&mut self, key: &'static str) -> Vec<GpuRequest> {
        const HELP: &str = "write all, a number, or fields as for `docker run --gpus`, such as \"device=0,1\"";
        self.parsed(key, |text| values::gpus(text).map(|gpus| vec![gpus]), "request for GPUs", HELP)
    }

    /// Parses the value of a key. Returns the default if the key is not set. An invalid value is a problem, and also
    /// means the default.
    fn parsed<T: Default>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&str) -> Option<T>,
        kind: &str,
        help: &'static str,
    ) -> T {
        let Some(text) = self.docker.str(key) else { return T::default() };
        parse(text).unwrap_or_else(|| {
            self.invalid(key, text, kind, help);
            T::default()
        })
    }

    fn devices(&mut self) -> Vec<Device> {
        let texts = self.list("devices");
        texts.iter().filter_map(|text| self.device("devices", text)).collect()
    }

    fn services_devices(&mut self) -> BTreeMap<String, Vec<Device>> {
        let lists = self.docker.table("services_devices").map(Table::entries).into_iter().flatten();
        let mut devices = BTreeMap::new();
        for (pattern, node) in lists {
            let Value::List(list) = &node.value else { continue };
            let texts =
                list.iter().filter_map(|node| if let Value::Str(text) = &node.value { Some(text) } else { None });
            let parsed = texts.filter_map(|text| self.device("services_devices", text)).collect();
            devices.insert(pattern.to_owned(), parsed);
        }
        devices
    }

    fn device(&mut self, key: &'static str, text: &str) -> Option<Device> {
        let device = values::device(text);
        if device.is_none() {
            self.invalid(key, text, "device", "write a path, or HOST:CONTAINER:PERMISSIONS such as /dev/a:/dev/b:rwm");
        }
        device
    }

    fn ulimits(&mut self) -> Vec<Ulimit> {
        let mut ulimits = Vec::new();
        for (name, text) in map(self.docker, "ulimit") {
            match values::ulimit(name, text) {
                Some(ulimit) => ulimits.push(ulimit),
                None => self.invalid("ulimit", text, "limit", "write SOFT or SOFT:HARD, such as 1024:2048"),
            }
        }
        ulimits
    }

    fn dns(&mut self) -> Vec<IpAddr> {
        let texts = self.list("dns");
        let mut address = |text: &String| match text.parse() {
            Ok(address) => Some(address),
            Err(_) => {
                self.invalid("dns", text, "IP address", "write the address of a name server, such as 192.0.2.53");
                None
            }
        };
        texts.iter().filter_map(&mut address).collect()
    }

    fn blocked_addresses(&mut self) -> Vec<IpAddr> {
        const KEY: &str = "blocked_addresses";
        if self.is_public && self.docker.node(KEY).is_none() {
            return DockerSettings::METADATA_ADDRESSES.to_vec();
        }
        let mut addresses = Vec::new();
        for text in self.list(KEY) {
            match text.parse::<IpAddr>() {
                // An IPv4 address may be written as IPv6.
                Ok(address) => addresses.push(address.to_canonical()),
                Err(_) => {
                    self.invalid(KEY, &text, "IP address", "write an address without a prefix, such as 169.254.169.254")
                }
            }
        }
        addresses
    }

    fn prepared_containers(&mut self) -> Option<PreparedContainers> {
        let table = self.docker.table("prepared_containers")?;
        let mut number = |name: &str, default: u32, range: std::ops::RangeInclusive<u32>| {
            let Some(given) = table.int(name) else { return default };
            let Some(number) = u32::try_from(given).ok().filter(|number| range.contains(number)) else {
                let help = "write max_containers from 0 to 100, and the other keys from 1";
                self.invalid("prepared_containers", &format!("{name} = {given}"), "setting", help);
                return default;
            };
            number
        };
        let prepared = PreparedContainers {
            max_containers: number("max_containers", DEFAULT_PREPARED.max_containers, 0..=MAX_PREPARED),
            min_uses: number("min_uses", DEFAULT_PREPARED.min_uses, 1..=u32::MAX),
            window_s: number("window", DEFAULT_PREPARED.window_s, 1..=u32::MAX),
            max_idle_s: number("max_idle_time", DEFAULT_PREPARED.max_idle_s, 1..=u32::MAX),
        };
        Some(prepared).filter(|prepared| prepared.max_containers > 0)
    }

    fn pull_policies(&mut self, key: &'static str) -> Vec<String> {
        let policies = self.list(key);
        for policy in policies.iter().filter(|policy| !PULL_POLICIES.contains(&policy.as_str())) {
            self.invalid(key, policy, "pull policy", "write always, if-not-present or never");
        }
        policies
    }

    fn log_options(&mut self) -> BTreeMap<String, String> {
        let options = self.map("log_options");
        for name in options.keys().filter(|name| !ALLOWED_LOG_OPTIONS.contains(&name.as_str())) {
            self.invalid("log_options", name, "log option of a runner", "keep only env and labels");
        }
        options
    }

    fn invalid(&mut self, key: &'static str, value: &str, kind: &str, help: &'static str) {
        let message = format!("{key} of [runners.docker]: `{}` is not a valid {kind}", shown_name(value));
        self.problems.push(InvalidValue { key, message, help });
    }
}

/// Returns the entries of a table of strings.
fn map<'a>(table: &'a Table, key: &str) -> impl Iterator<Item = (&'a str, &'a str)> {
    let entries = table.table(key).map(Table::entries).into_iter().flatten();
    entries.filter_map(|(name, node)| match &node.value {
        Value::Str(text) => Some((name, text.as_str())),
        _ => None,
    })
}

/// Reads an entry of `services`. Returns `None` if it has no `name`, which is the image of the service.
fn service_entry(table: &Table) -> Option<DockerService> {
    let text = |key: &str| table.str(key).unwrap_or_default().to_owned();
    let list = |key: &str| table.strings(key).map(|(text, _)| text.to_owned()).collect();
    let environment = table.strings("environment").filter_map(|(entry, _)| entry.split_once('='));
    Some(DockerService {
        name: table.str("name")?.to_owned(),
        alias: text("alias"),
        command: list("command"),
        entrypoint: list("entrypoint"),
        environment: environment.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
    })
}

#[cfg(test)]
mod tests;
