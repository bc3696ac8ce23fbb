//! Inputs of the step that runs other steps in a container (`docs/spec/job-execution.md`, section 5).

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Inputs, record};

/// Creates a job's containers, network and volumes. The steps inside run at an agent in the build container.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DockerContainer {
    /// Lines that are printed first.
    pub lines: Vec<LogLine>,
    /// Engine that runs the containers.
    pub engine: DockerEngine,
    /// Labels of all containers, networks and volumes of the job.
    pub labels: BTreeMap<String, String>,
    /// Container in which the steps run.
    pub build: ContainerSpec,
    /// Names of the containers of [`ServiceContainer`] steps, which are removed with the build container.
    pub services: Vec<String>,
    /// Network of the containers.
    pub network: DockerNetwork,
    /// Volumes of the build container and the services.
    pub volumes: Vec<DockerVolume>,
    /// Registry credentials. The first entry for a registry path has precedence.
    pub credentials: Vec<RegistryCredentials>,
    /// Directories in the build container that must be writable for every user, such as the builds directory.
    pub directories: Vec<String>,
    /// Directories that recursively get the build container's user as owner, because earlier jobs may have had another
    /// user.
    pub owned: Vec<String>,
    /// Project directory of the job in the build container.
    pub project_dir: String,
    /// Maximum time until the services accept connections, in milliseconds. 0 means no check.
    pub service_timeout_ms: u64,
    /// Whether anonymous volumes of removed containers are kept.
    pub keep_volumes: bool,
    /// Whether the output of the services is copied to the log (CI_DEBUG_SERVICES).
    pub log_services: bool,
    /// Loopback address `host:port` of a coordinator to which the agent forwards connections of the build container.
    /// Empty means none.
    pub relay: String,
    /// Addresses that the job's containers cannot reach. Containers must not have a capability to remove the block.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blocked_addresses: Vec<IpAddr>,
    /// Policy for containers that are prepared before jobs need them. `None` means that the job uses no prepared
    /// container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prepared: Option<PreparedPolicy>,
}

impl Inputs for DockerContainer {
    const BUILTIN: &'static str = "docker/container";

    fn record(&self) -> Map<String, Value> {
        record::docker_container(self)
    }
}

/// Policy for prepared build containers: how many are prepared, depending on the number of recent jobs, and how long
/// they wait for a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PreparedPolicy {
    /// Maximum number of unused prepared containers of the runner at the engine.
    pub max_containers: u32,
    /// Number of jobs per prepared container: the number of prepared containers is the number of jobs within the
    /// window, divided by `min_uses`.
    pub min_uses: u32,
    /// Length of the window, in milliseconds.
    pub window_ms: u64,
    /// Maximum time for which a prepared container waits for a job, in milliseconds. After this time without a job
    /// that needs such a container, no more containers are prepared.
    pub max_idle_ms: u64,
}

/// Line of the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogLine {
    /// Line without color.
    Plain(String),
    /// Notice, in bold green.
    Info(String),
    /// Warning.
    Warning(String),
}

/// Endpoint of a Docker or Podman engine.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DockerEngine {
    /// URL: `unix://`, `tcp://`, `http://`, `https://` or `ssh://`. Empty means the agent's `DOCKER_HOST`, or else a
    /// usual socket.
    pub host: String,
    /// Directory of `ca.pem`, `cert.pem` and `key.pem` on the agent's machine.
    ///
    /// If this is empty and the certificate is verified, the directory is the agent's `DOCKER_CERT_PATH`, or else
    /// `~/.docker`. If this is empty and the certificate is not verified, no files are used.
    pub cert_path: String,
    /// Whether the engine's certificate is verified. If the host is the agent's `DOCKER_HOST`, the certificate is also
    /// verified if the agent's `DOCKER_TLS_VERIFY` is not empty.
    pub tls_verify: bool,
}

/// Container of a job.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ContainerSpec {
    /// Name of the container.
    pub name: String,
    /// Labels in addition to those of the job.
    pub labels: BTreeMap<String, String>,
    /// Image and how to get it.
    pub image: ImageSpec,
    /// Entrypoint. `None` means that of the image.
    pub entrypoint: Option<Vec<String>>,
    /// Command instead of the image's. The build container's command is always the agent.
    pub command: Option<Vec<String>>,
    /// User and group. Empty means those of the image.
    pub user: String,
    /// Host name. Empty means the engine's default.
    pub hostname: String,
    /// Environment variables as `KEY=VALUE`. The steps in the build container get the job's variables from the agent.
    pub env: Vec<String>,
    /// MAC address. Empty means that the engine chooses one.
    pub mac_address: String,
    /// `HostConfig` of the Docker API, without binds, mounts and network.
    pub host_config: Map<String, Value>,
}

/// Starts a service container while [`DockerContainer`] creates the job's environment.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ServiceContainer {
    /// Name and version of the service for the log, such as `postgres:16`.
    pub title: String,
    /// Container of the service.
    pub container: ContainerSpec,
    /// Host names of the service in the job's network.
    pub aliases: Vec<String>,
}

impl Inputs for ServiceContainer {
    const BUILTIN: &'static str = "docker/service";

    fn record(&self) -> Map<String, Value> {
        record::service_container(self)
    }
}

/// Image, and how to get it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ImageSpec {
    /// Reference of the image.
    pub name: String,
    /// Pull policies in order: `always`, `if-not-present` or `never`. Empty means `always`.
    pub pull_policies: Vec<String>,
    /// Platform, such as `linux/arm64`. Empty means the engine's default.
    pub platform: String,
}

/// Network of a job's containers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DockerNetwork {
    /// The engine's default bridge. Host names of services are written to `/etc/hosts`.
    #[default]
    Bridge,
    /// `network_mode` of the configuration: `host`, `none`, `container:<id>` or the name of a network.
    Mode(String),
    /// Network only for this job.
    PerJob {
        /// Name of the network.
        name: String,
        /// Whether it has IPv6 addresses.
        ipv6: bool,
        /// Maximum transmission unit. 0 means the engine's default.
        mtu: u32,
    },
}

/// Volume of a job's containers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DockerVolume {
    /// Name of a volume, or an absolute path on the engine's machine. Empty means an anonymous volume.
    pub source: String,
    /// Absolute path in the containers.
    pub destination: String,
    /// Mount options, such as `ro`. Empty means none.
    pub mode: String,
    /// Whether the volume is removed after the job.
    pub temporary: bool,
    /// Labels of a new volume, in addition to those of the job.
    pub labels: BTreeMap<String, String>,
    /// Driver of a new volume. Empty means the engine's default.
    pub driver: String,
    /// Options of the driver.
    pub driver_options: BTreeMap<String, String>,
}

/// Credentials of one registry path.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RegistryCredentials {
    /// Registry host with an optional path. Docker Hub is `docker.io`. The longest path that matches an image has
    /// precedence.
    ///
    /// If this field is empty, `helper` is queried for the registry host of each image.
    pub registry: String,
    /// User name. Empty if `helper` is set.
    pub username: String,
    /// Password or token.
    pub password: String,
    /// Identity token instead of a password. Empty means no token.
    pub identity_token: String,
    /// Name of the credential helper `docker-credential-<name>` on the agent's machine. Empty means no helper.
    pub helper: String,
    /// Origin of the credentials for the log, such as `$DOCKER_AUTH_CONFIG`.
    pub source: String,
}

impl std::fmt::Debug for RegistryCredentials {
    /// Omits the password and the token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RegistryCredentials")
            .field("registry", &self.registry)
            .field("username", &self.username)
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}
