//! Forwards connections in a container to the agent that created the container. That agent connects to an address of
//! its machine.

use std::path::Path;
use std::time::Duration;

use muster_agent_api::container::{RELAY_DIR, RELAY_SOCKET_NAME};
use tokio::net::{TcpListener, UnixStream};
use tokio::task::JoinSet;

const RETRY_DELAY: Duration = Duration::from_millis(100);

#[derive(Debug, thiserror::Error)]
#[error("failed to listen on {address} in the container for connections to the coordinator: {source}")]
pub(super) struct RelayError {
    address: String,
    source: std::io::Error,
}

/// Starts the relay, unless there is no address. Dropping the result ends the relay.
pub(super) async fn start(address: Option<&str>) -> Result<JoinSet<()>, RelayError> {
    let mut serving = JoinSet::new();
    if let Some(address) = address {
        let listener = TcpListener::bind(address).await;
        let listener = listener.map_err(|source| RelayError { address: address.to_owned(), source })?;
        serving.spawn(accept(listener));
    }
    Ok(serving)
}

async fn accept(listener: TcpListener) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((mut inside, _)) => {
                    connections.spawn(async move {
                        let copied = async {
                            let mut outside = UnixStream::connect(Path::new(RELAY_DIR).join(RELAY_SOCKET_NAME)).await?;
                            tokio::io::copy_bidirectional(&mut inside, &mut outside).await
                        };
                        if let Err(error) = copied.await {
                            tracing::debug!(%error, "connection to the coordinator failed");
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to accept a connection to the coordinator, retrying");
                    tokio::time::sleep(RETRY_DELAY).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}
