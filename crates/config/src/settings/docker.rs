//! Settings of jobs in containers: `[runners.docker]`.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

/// Policies for pulling an image.
pub const PULL_POLICIES: [&str; 3] = ["always", "if-not-present", "never"];

/// Capabilities with which a container could undo the block of addresses. Their names have no prefix `CAP_`.
const UNBLOCKING_CAPABILITIES: [&str; 4] = ["ALL", "NET_ADMIN", "NET_RAW", "SYS_ADMIN"];

/// `[runners.docker.prepared_containers]`, checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreparedContainers {
    /// Maximum number of containers of the runner that wait for a job on one machine.
    pub max_containers: u32,
    /// One container is prepared for each `min_uses` jobs of the last `window_s` seconds.
    pub min_uses: u32,
    /// Length of the window in seconds. Older jobs do not count.
    pub window_s: u32,
    /// Maximum number of seconds for which a container is kept ready. After this time without a job that needs such a container, no more containers are prepared.
    pub max_idle_s: u32,
}

/// `[runners.docker]`, checked. Stored with a job.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DockerSettings {
    /// Messages about invalid values. If there are any, every job fails with the first one.
    pub problems: Vec<String>,
    /// URL of the engine. Empty means `DOCKER_HOST`, or else the usual sockets.
    pub host: String,
    /// Directory with the client's certificate for the engine. Empty means none.
    pub tls_cert_path: String,
    /// Whether the engine's certificate is verified.
    pub tls_verify: bool,
    /// Image of jobs that do not specify one. Empty means that such jobs fail, unless `host_without_image` is set.
    pub image: String,
    /// Whether jobs without an image run without containers. Set by `muster ci` only.
    pub host_without_image: bool,
    /// Patterns of images that jobs may name. Empty allows every image.
    pub allowed_images: Vec<String>,
    /// Patterns of service images that jobs may name. Empty allows every image.
    pub allowed_services: Vec<String>,
    /// Pull policies in the order in which they are tried. Empty means `always`.
    pub pull_policy: Vec<String>,
    /// Pull policies that jobs may set. Empty means the policies in `pull_policy`.
    pub allowed_pull_policies: Vec<String>,
    /// Whether entrypoints that jobs set are ignored.
    pub disable_entrypoint_overwrite: bool,
    /// Services of every job.
    pub services: Vec<DockerService>,
    /// Maximum number of services of a job. `None` means no limit.
    pub services_limit: Option<u32>,
    /// Seconds to wait for services. 0 means that services are not checked.
    pub wait_for_services_s: u32,
    /// User of the build container. Empty means the user that the job or its image specifies.
    pub user: String,
    /// Users that the build container may have. Empty allows every user.
    pub allowed_users: Vec<String>,
    /// Host name of the build container. Empty means a name that is derived from the job.
    pub hostname: String,
    /// MAC address of the build container. Empty means that the engine chooses one.
    pub mac_address: String,
    /// Labels of all containers. Variables in the values are expanded.
    pub container_labels: BTreeMap<String, String>,
    /// Patterns of images that may be privileged. Empty allows every image.
    pub allowed_privileged_images: Vec<String>,
    /// Patterns of service images that may be privileged. Empty allows every image.
    pub allowed_privileged_services: Vec<String>,
    /// Volumes of all containers, in the syntax of `docker run --volume`.
    pub volumes: Vec<String>,
    /// Driver of new volumes. Empty means the engine's default.
    pub volume_driver: String,
    /// Options of the driver.
    pub volume_driver_ops: BTreeMap<String, String>,
    /// Whether volumes are kept after a job.
    pub volume_keep: bool,
    /// Whether volumes without a source exist for one job only.
    pub disable_cache: bool,
    /// Directory on the engine's machine for volumes that later jobs reuse. Empty means volumes of the engine.
    pub cache_dir: String,
    /// Network of the containers. Empty means the default bridge, or a network for each job (FF_NETWORK_PER_BUILD).
    pub network_mode: String,
    /// Whether the network of a job has IPv6 addresses.
    pub enable_ipv6: bool,
    /// Maximum transmission unit of the network of a job. 0 means the engine's default.
    pub network_mtu: u32,
    /// Addresses that no container of a job can reach. Defaults to [`Self::METADATA_ADDRESSES`] for a public runner, and to none for others.
    pub blocked_addresses: Vec<IpAddr>,
    /// Containers that are prepared before a job needs them. `None` means that none are prepared.
    pub prepared_containers: Option<PreparedContainers>,
    /// Name of the slot's cgroup for services, with `${slot}`. Empty means the cgroup of the build container.
    pub service_slot_cgroup_template: String,
    /// Devices of services, by pattern of the service's image.
    pub services_devices: BTreeMap<String, Vec<Device>>,
    /// Settings of the build container.
    pub build: ContainerSettings,
    /// Settings of services.
    pub service: ContainerSettings,
}

impl DockerSettings {
    /// Addresses of metadata services, which hand out the credentials of a machine to its programs.
    pub const METADATA_ADDRESSES: [IpAddr; 11] = [
        // AWS, Google Cloud, Azure, OpenStack and most other clouds.
        IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)),
        // Credentials of the tasks of Amazon ECS.
        IpAddr::V4(Ipv4Addr::new(169, 254, 170, 2)),
        // Credentials of the pods of Amazon EKS.
        IpAddr::V4(Ipv4Addr::new(169, 254, 170, 23)),
        IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23)),
        // Tencent Cloud.
        IpAddr::V4(Ipv4Addr::new(169, 254, 0, 23)),
        // Scaleway.
        IpAddr::V4(Ipv4Addr::new(169, 254, 42, 42)),
        IpAddr::V6(Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42)),
        // Alibaba Cloud.
        IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
        // AWS, Google Cloud and Oracle Cloud over IPv6.
        IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
        IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
        IpAddr::V6(Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe)),
    ];

    /// Returns whether `network_mode` is a network that other programs use, in which no address can be blocked for a job.
    #[must_use]
    pub fn uses_network_of_others(&self) -> bool {
        self.network_mode == "host" || self.network_mode.starts_with("container:")
    }
}

/// Settings of the containers of one kind. Empty and 0 mean the engine's default.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the field names are those of config.toml")]
pub struct ContainerSettings {
    pub privileged: bool,
    /// Limit of memory, in bytes.
    pub memory: i64,
    /// Limit of memory and swap together, in bytes. -1 means no limit.
    pub memory_swap: i64,
    /// Soft limit of memory, in bytes.
    pub memory_reservation: i64,
    /// Number of CPUs, in billionths.
    pub nano_cpus: i64,
    pub cpuset_cpus: String,
    pub cpuset_mems: String,
    pub cpu_shares: i64,
    pub cgroup_parent: String,
    pub cap_add: Vec<String>,
    pub cap_drop: Vec<String>,
    pub security_opt: Vec<String>,
    pub devices: Vec<Device>,
    pub device_cgroup_rules: Vec<String>,
    pub gpus: Vec<GpuRequest>,
    pub dns: Vec<IpAddr>,
    pub dns_search: Vec<String>,
    pub extra_hosts: Vec<String>,
    pub links: Vec<String>,
    pub ulimits: Vec<Ulimit>,
    /// Size of `/dev/shm`, in bytes.
    pub shm_size: i64,
    pub tmpfs: BTreeMap<String, String>,
    pub sysctls: BTreeMap<String, String>,
    pub group_add: Vec<String>,
    pub userns_mode: String,
    pub ipc_mode: String,
    pub pid_mode: String,
    pub runtime: String,
    pub oom_kill_disable: bool,
    pub oom_score_adjust: i64,
    pub volume_driver: String,
    pub volumes_from: Vec<String>,
    pub log_options: BTreeMap<String, String>,
}

impl ContainerSettings {
    /// Returns the first added capability with which the container could undo the block of addresses.
    #[must_use]
    pub fn unblocking_capability(&self) -> Option<&'static str> {
        self.cap_add.iter().find_map(|name| {
            let name = name.to_uppercase();
            let name = name.strip_prefix("CAP_").unwrap_or(&name);
            UNBLOCKING_CAPABILITIES.into_iter().find(|unblocking| *unblocking == name)
        })
    }
}

/// A device of the engine's machine.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Device {
    /// Path on the engine's machine.
    pub on_host: String,
    /// Path in the container.
    pub in_container: String,
    /// Permissions: some of `r`, `w` and `m`.
    pub permissions: String,
}

/// GPUs, as in `docker run --gpus`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuRequest {
    /// Driver. Empty means that the engine chooses one.
    pub driver: String,
    /// Number of GPUs. -1 means all GPUs, and 0 means the GPUs in `device_ids`.
    pub count: i64,
    /// IDs of GPUs.
    pub device_ids: Vec<String>,
    /// Capabilities that the driver must have.
    pub capabilities: Vec<String>,
    /// Options of the driver.
    pub options: BTreeMap<String, String>,
}

/// Limit of a resource of processes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the field names are those of the Docker API")]
pub struct Ulimit {
    pub name: String,
    pub soft: i64,
    pub hard: i64,
}

/// `[[runners.docker.services]]`. Variables in all texts are expanded, except in the command and the entrypoint.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DockerService {
    /// Image of the service.
    pub name: String,
    /// Further host names, separated by commas or whitespace.
    pub alias: String,
    /// Command. Empty means the command of the image.
    pub command: Vec<String>,
    /// Entrypoint. Empty means the entrypoint of the image.
    pub entrypoint: Vec<String>,
    /// Environment variables: names and values.
    pub environment: Vec<(String, String)>,
}
