//! Runs checks and cleanups on machines.

use std::time::Duration;

use muster_fleeting::connector::{self, DialOptions};
use muster_fleeting::sdk::{ConnectInfo, ConnectorConfig, InstanceId};
use muster_remote::{Exit, KnownHosts, RemoteCommand, Target, dial};
use tokio::net::TcpStream;

use crate::config::{Config, HealthCheck, Machine};
use crate::pool::MachineTask;

/// Returns how to connect to the machine. Its own settings take precedence over `defaults`, the `connector_config`.
pub(crate) async fn connect_info(machine: &Machine, defaults: &ConnectorConfig) -> Result<ConnectInfo, String> {
    let or_default = |own: &str, default: &str| if own.is_empty() { default.to_owned() } else { own.to_owned() };
    let key = if machine.key_path.as_os_str().is_empty() {
        // If the machine has a password, the key of `connector_config` is not used.
        if machine.password.is_empty() { defaults.key.clone() } else { Vec::new() }
    } else {
        tokio::fs::read(&machine.key_path).await.map_err(|error| {
            format!("machine {}: failed to read key_path {}: {error}", machine.name, machine.key_path.display())
        })?
    };
    let current_user =
        || std::env::var("USER").ok().filter(|user| !user.is_empty()).unwrap_or_else(|| "root".to_owned());
    let username = or_default(&machine.username, &defaults.username);
    Ok(ConnectInfo {
        connector: ConnectorConfig {
            os: or_default(&or_default(&machine.os, &defaults.os), "linux"),
            arch: or_default(&machine.arch, &defaults.arch),
            protocol: or_default(&or_default(&machine.protocol, &defaults.protocol), "ssh"),
            protocol_port: if machine.port == 0 { defaults.protocol_port } else { machine.port },
            username: if username.is_empty() { current_user() } else { username },
            password: or_default(&machine.password, &defaults.password),
            key,
            ..defaults.clone()
        },
        external_addr: machine.external_address.clone(),
        internal_addr: machine.address.clone(),
        expires: None,
    })
}

/// Runs the task: a check, or a cleanup and then a check.
pub(crate) async fn run(task: &MachineTask, config: &Config, defaults: &ConnectorConfig) -> Result<(), String> {
    match task {
        MachineTask::Check(machine) => check(machine, config, defaults).await,
        MachineTask::Clean(machine) => {
            if !config.cleanup_command.is_empty() {
                let (name, timeout) = ("cleanup_command", config.cleanup_timeout());
                with_timeout(name, timeout, run_command(machine, &config.cleanup_command, name, timeout, defaults))
                    .await?;
            }
            check(machine, config, defaults).await
        }
    }
}

pub(crate) async fn check(machine: &Machine, config: &Config, defaults: &ConnectorConfig) -> Result<(), String> {
    let timeout = config.health_timeout();
    match config.health {
        HealthCheck::None => Ok(()),
        HealthCheck::Tcp => with_timeout("the connection", timeout, connect(machine, defaults)).await,
        HealthCheck::Command => {
            let name = "health_command";
            with_timeout(name, timeout, run_command(machine, &config.health_command, name, timeout, defaults)).await
        }
    }
}

async fn with_timeout(
    name: &str,
    timeout: Duration,
    work: impl Future<Output = Result<(), String>>,
) -> Result<(), String> {
    match tokio::time::timeout(timeout, work).await {
        Ok(result) => result,
        Err(_) => Err(format!("{name} did not finish within {} s", timeout.as_secs())),
    }
}

async fn connect(machine: &Machine, defaults: &ConnectorConfig) -> Result<(), String> {
    let address = target(machine, connect_info(machine, defaults).await?)?.host_and_port();
    TcpStream::connect(&address).await.map(drop).map_err(|error| format!("failed to connect to {address}: {error}"))
}

fn target(machine: &Machine, info: ConnectInfo) -> Result<Target, String> {
    let use_external_addr = info.internal_addr.is_empty();
    let options = DialOptions { use_external_addr, allow_unencrypted: machine.allow_unencrypted };
    connector::target(&InstanceId::new(machine.name.clone()), info, options).map_err(|error| error.to_string())
}

async fn run_command(
    machine: &Machine,
    line: &str,
    name: &str,
    timeout: Duration,
    defaults: &ConnectorConfig,
) -> Result<(), String> {
    let mut info = connect_info(machine, defaults).await?;
    info.connector.timeout = timeout;
    let target = target(machine, info)?;
    let hosts = KnownHosts::default();
    if !machine.host_key.is_empty() {
        hosts.pin(&target.machine, std::slice::from_ref(&machine.host_key));
    }
    let session = dial(&target, &hosts).await.map_err(|error| format!("machine {}: {error}", machine.name))?;
    let outcome = session.run(RemoteCommand::new(line)).await.map_err(|error| error.to_string());
    session.close().await;
    let outcome = outcome?;
    match outcome.exit {
        Exit::Code(0) => Ok(()),
        Exit::Code(code) => Err(format!("{name} failed with status {code}: {}", outcome.stderr.to_string().trim())),
        Exit::Signal(signal) => Err(format!("{name} was terminated by SIG{signal}")),
    }
}
