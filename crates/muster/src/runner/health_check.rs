//! `health-check`: waits until a service accepts connections.

use std::process::ExitCode;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Between two attempts at one port; TCP has no way to be told.
const INTERVAL: Duration = Duration::from_millis(250);
/// A host that drops what it is sent answers no sooner at the end than at the start.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// Arguments of `health-check`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A port of localhost; may be given again, and then all of them must accept. Without it, one of the ports in the
    /// variables *_TCP_PORT, at the address in *_TCP_ADDR, is enough.
    #[arg(short, long = "port", value_name = "PORT")]
    ports: Vec<u16>,
    /// Seconds after which the wait is given up.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    timeout: u64,
}

#[derive(Debug, thiserror::Error)]
enum HealthError {
    #[error("no host or port found: give --port, or set a variable that ends in _TCP_ADDR and one in _TCP_PORT")]
    Nothing,
    #[error("no connection to {targets} within {seconds} s; is the service listening on that port?")]
    Timeout { targets: String, seconds: u64 },
}

/// What is waited for.
struct Targets {
    addresses: Vec<String>,
    all: bool,
}

/// Runs the command.
pub(super) fn run(args: &Args) -> ExitCode {
    let variables = std::env::vars_os();
    let variables = variables.filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)));
    let targets = targets(&args.ports, variables);
    crate::runtime::block_on_one_thread(async { super::error::ended(wait(targets, args.timeout).await) })
}

fn targets(ports: &[u16], variables: impl Iterator<Item = (String, String)>) -> Targets {
    if !ports.is_empty() {
        return Targets { addresses: ports.iter().map(|port| format!("localhost:{port}")).collect(), all: true };
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
    Targets { addresses: addresses.unwrap_or_default(), all: false }
}

async fn wait(targets: Targets, seconds: u64) -> Result<(), HealthError> {
    if targets.addresses.is_empty() {
        return Err(HealthError::Nothing);
    }
    let text = targets.addresses.join(", ");
    anstream::println!("waiting for TCP connection to {text}...");
    let mut waiting: JoinSet<()> = targets.addresses.into_iter().map(connect).collect();
    let done = async {
        while waiting.join_next().await.is_some() {
            if !targets.all {
                return;
            }
        }
    };
    timeout(Duration::from_secs(seconds), done).await.map_err(|_| HealthError::Timeout { targets: text, seconds })
}

async fn connect(address: String) {
    loop {
        if let Ok(Ok(_)) = timeout(CONNECT_LIMIT, TcpStream::connect(&address)).await {
            anstream::println!("dial succeeded on {address}");
            return;
        }
        sleep(INTERVAL).await;
    }
}
