//! Runs checks and cleanups on machines.

use std::time::Duration;

use muster_fleeting::connector::{self, DialOptions};
use muster_fleeting::sdk::{ConnectInfo, ConnectorConfig, InstanceId};
use muster_remote::{Exit, KnownHosts, RemoteCommand, Target, dial};
use tokio::net::TcpStream;

use crate::config::{Config, HealthCheck, Machine};
use crate::pool::MachineTask;

/// Returns the connection details of a machine. Its own settings take precedence over those for all machines.
pub(crate) async fn connect_info(machine: &Machine, set: &ConnectorConfig) -> Result<ConnectInfo, String> {
    let or = |own: &str, set: &str| if own.is_empty() { set.to_owned() } else { own.to_owned() };
    let key = if machine.key_path.as_os_str().is_empty() {
        // If the machine has a password, the key for all machines is not used.
        if machine.password.is_empty() { set.key.clone() } else { Vec::new() }
    } else {
        tokio::fs::read(&machine.key_path)
            .await
            .map_err(|error| format!("machine {}: key_path {}: {error}", machine.name, machine.key_path.display()))?
    };
    let user = || std::env::var("USER").ok().filter(|user| !user.is_empty()).unwrap_or_else(|| "root".to_owned());
    let username = or(&machine.username, &set.username);
    Ok(ConnectInfo {
        connector: ConnectorConfig {
            os: or(&or(&machine.os, &set.os), "linux"),
            arch: or(&machine.arch, &set.arch),
            protocol: or(&or(&machine.protocol, &set.protocol), "ssh"),
            protocol_port: if machine.port == 0 { set.protocol_port } else { machine.port },
            username: if username.is_empty() { user() } else { username },
            password: or(&machine.password, &set.password),
            key,
            ..set.clone()
        },
        external_addr: machine.external_address.clone(),
        internal_addr: machine.address.clone(),
        expires: None,
    })
}

/// Runs a task within its timeout.
pub(crate) async fn run(work: &MachineTask, config: &Config, set: &ConnectorConfig) -> Result<(), String> {
    match work {
        MachineTask::Check(machine) => check(machine, config, set).await,
        MachineTask::Clean(machine) => {
            if !config.cleanup_command.is_empty() {
                let (what, limit) = ("cleanup_command", config.cleanup_limit());
                limited(what, limit, command(machine, &config.cleanup_command, what, limit, set)).await?;
            }
            check(machine, config, set).await
        }
    }
}

/// Checks whether the machine is healthy.
pub(crate) async fn check(machine: &Machine, config: &Config, set: &ConnectorConfig) -> Result<(), String> {
    let limit = config.health_limit();
    match config.health {
        HealthCheck::None => Ok(()),
        HealthCheck::Tcp => limited("the connection", limit, connect(machine, set)).await,
        HealthCheck::Command => {
            let what = "health_command";
            limited(what, limit, command(machine, &config.health_command, what, limit, set)).await
        }
    }
}

async fn limited(what: &str, limit: Duration, work: impl Future<Output = Result<(), String>>) -> Result<(), String> {
    match tokio::time::timeout(limit, work).await {
        Ok(result) => result,
        Err(_) => Err(format!("{what} did not finish within {} s", limit.as_secs())),
    }
}

async fn connect(machine: &Machine, set: &ConnectorConfig) -> Result<(), String> {
    let address = target(machine, connect_info(machine, set).await?)?.host_and_port();
    TcpStream::connect(&address).await.map(drop).map_err(|error| format!("{address}: {error}"))
}

fn target(machine: &Machine, info: ConnectInfo) -> Result<Target, String> {
    let use_external_addr = info.internal_addr.is_empty();
    let options = DialOptions { use_external_addr, allow_unencrypted: machine.allow_unencrypted };
    connector::target(&InstanceId::new(machine.name.clone()), info, options).map_err(|error| error.to_string())
}

async fn command(
    machine: &Machine,
    line: &str,
    what: &str,
    limit: Duration,
    set: &ConnectorConfig,
) -> Result<(), String> {
    let mut info = connect_info(machine, set).await?;
    info.connector.timeout = limit;
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
        Exit::Code(code) => Err(format!("{what} failed with status {code}: {}", outcome.stderr.to_string().trim())),
        Exit::Signal(signal) => Err(format!("{what} was terminated by SIG{signal}")),
    }
}
