//! An instance group in Rust: each instance is an OpenSSH server on this host.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use async_trait::async_trait;
use muster_fleeting::sdk::{
    self, ConnectInfo, ConnectorConfig, Error, Init, InstanceId, InstanceState, PartialFailure, Provider, Settings,
    program,
};
use schemars::JsonSchema;
use serde::Deserialize;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::sync::Mutex;

/// The keys of `plugin_config`; the comments are their documentation.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default)]
struct Config {
    /// Maximum number of instances.
    max_size: u32,
    /// Path of the SSH server.
    sshd: PathBuf,
}

impl Default for Config {
    fn default() -> Self {
        Self { max_size: 10, sshd: PathBuf::from("/usr/sbin/sshd") }
    }
}

struct Sshd {
    config: Config,
    settings: Settings,
    instances: Mutex<BTreeMap<InstanceId, Instance>>,
}

/// Dropping this value kills the server and deletes its directory.
struct Instance {
    home: TempDir,
    port: u16,
    server: Child,
}

impl Sshd {
    async fn create(&self) -> Result<(InstanceId, Instance), Error> {
        let home = tempfile::Builder::new().prefix("i-").tempdir()?;
        for key in ["host", "login"] {
            let mut command = Command::new("ssh-keygen");
            command.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(home.path().join(key));
            program::run(command, "ssh-keygen", b"", Duration::from_secs(30)).await?.success("ssh-keygen")?;
        }
        let port = TcpListener::bind("127.0.0.1:0").await?.local_addr()?.port();
        let mut server = Command::new(&self.config.sshd);
        server.args(["-D", "-f", "/dev/null", "-oListenAddress=127.0.0.1", "-oStrictModes=no", "-oPidFile=none"]);
        server.arg("-p").arg(port.to_string()).arg("-h").arg(home.path().join("host"));
        server.arg(format!("-oAuthorizedKeysFile={}", home.path().join("login.pub").display()));
        let server = server.kill_on_drop(true).spawn()?;
        let name = home.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok((InstanceId::new(name), Instance { home, port, server }))
    }
}

#[async_trait]
impl Provider for Sshd {
    const NAME: &'static str = "sshd";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    type Config = Config;

    async fn init(config: Config, settings: Settings) -> Result<(Self, Init), Error> {
        if !config.sshd.is_file() {
            return Err(format!("sshd = {}: no such file; install openssh-server", config.sshd.display()).into());
        }
        let init = Init { id: "sshd/local".to_owned(), max_size: config.max_size, can_suspend: false };
        Ok((Self { config, settings, instances: Mutex::default() }, init))
    }

    async fn update(&self) -> Result<Vec<(InstanceId, InstanceState)>, Error> {
        let mut instances = self.instances.lock().await;
        instances.retain(|_, instance| matches!(instance.server.try_wait(), Ok(None)));
        Ok(instances.keys().map(|id| (id.clone(), InstanceState::Running)).collect())
    }

    async fn increase(&self, n: u32) -> Result<u32, PartialFailure<u32>> {
        let mut instances = self.instances.lock().await;
        for succeeded in 0..n {
            if instances.len() >= self.config.max_size as usize {
                return Err(PartialFailure { succeeded, error: "the group is full".into() });
            }
            let (id, instance) = self.create().await.map_err(|error| PartialFailure { succeeded, error })?;
            instances.insert(id, instance);
        }
        Ok(n)
    }

    async fn decrease(&self, ids: Vec<InstanceId>) -> Result<Vec<InstanceId>, PartialFailure<Vec<InstanceId>>> {
        let mut instances = self.instances.lock().await;
        instances.retain(|id, _| !ids.contains(id));
        Ok(ids)
    }

    async fn connect_info(&self, id: InstanceId) -> Result<ConnectInfo, Error> {
        let instances = self.instances.lock().await;
        let instance = instances.get(&id).ok_or_else(|| format!("instance {id} does not exist"))?;
        let key = std::fs::read(instance.home.path().join("login"))?;
        let configured = self.settings.connector.clone();
        let username = if configured.username.is_empty() { "root".to_owned() } else { configured.username.clone() };
        let address = format!("127.0.0.1:{}", instance.port);
        Ok(ConnectInfo {
            connector: ConnectorConfig { os: "linux".to_owned(), username, key, ..configured },
            external_addr: address.clone(),
            internal_addr: address,
            expires: None,
        })
    }
}

fn main() -> ExitCode {
    sdk::main::<Sshd>()
}
