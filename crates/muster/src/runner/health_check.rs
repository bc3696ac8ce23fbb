//! `health-check`: waits until a service accepts connections.

use std::process::ExitCode;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

const RETRY_DELAY: Duration = Duration::from_millis(250);
/// Timeout of one attempt, for hosts that drop packets.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Arguments of `gitlab-runner health-check`.
#[derive(Debug, clap::Args)]
pub(crate) struct HealthCheckArgs {
    /// Port of localhost. Can be repeated; then all ports must accept connections. By default, one of the ports in the environment
    /// variables *_TCP_PORT must accept connections, at the address in *_TCP_ADDR.
    #[arg(short, long = "port", value_name = "PORT")]
    ports: Vec<u16>,
    /// Seconds after which the command fails.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    timeout: u64,
}

#[derive(Debug, thiserror::Error)]
enum HealthError {
    #[error("no host or port found; set --port, or set a variable that ends in _TCP_ADDR and one in _TCP_PORT")]
    NoTarget,
    #[error("failed to connect to {targets} within {seconds} s; check that the service listens on that port")]
    Timeout { targets: String, seconds: u64 },
}

struct Targets {
    addresses: Vec<String>,
    /// False if one address suffices.
    all_required: bool,
}

pub(super) fn run(args: &HealthCheckArgs) -> ExitCode {
    let variables = std::env::vars_os();
    let variables = variables.filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)));
    let targets = targets(&args.ports, variables);
    crate::runtime::block_on_one_thread(async {
        super::error::exit_code(wait_for_targets(targets, args.timeout).await)
    })
}

fn targets(ports: &[u16], variables: impl Iterator<Item = (String, String)>) -> Targets {
    if !ports.is_empty() {
        return Targets {
            addresses: ports.iter().map(|port| format!("localhost:{port}")).collect(),
            all_required: true,
        };
    }
    let (mut host, mut ports) = (None, Vec::new());
    for (key, value) in variables {
        if key.ends_with("_TCP_ADDR") {
            host = Some(value);
        } else if key.ends_with("_TCP_PORT") {
            ports.push(value);
        }
    }
    let host = host.filter(|host| !host.is_empty());
    let addresses = host.map(|host| ports.iter().map(|port| format!("{host}:{port}")).collect());
    Targets { addresses: addresses.unwrap_or_default(), all_required: false }
}

async fn wait_for_targets(targets: Targets, seconds: u64) -> Result<(), HealthError> {
    if targets.addresses.is_empty() {
        return Err(HealthError::NoTarget);
    }
    let text = targets.addresses.join(", ");
    anstream::println!("waiting for TCP connection to {text}...");
    let mut waiting: JoinSet<()> = targets.addresses.into_iter().map(wait_for_connection).collect();
    let connected = async {
        while waiting.join_next().await.is_some() {
            if !targets.all_required {
                return;
            }
        }
    };
    timeout(Duration::from_secs(seconds), connected).await.map_err(|_| HealthError::Timeout { targets: text, seconds })
}

async fn wait_for_connection(address: String) {
    loop {
        if let Ok(Ok(_)) = timeout(CONNECT_TIMEOUT, TcpStream::connect(&address)).await {
            anstream::println!("dial succeeded on {address}");
            return;
        }
        sleep(RETRY_DELAY).await;
    }
}
