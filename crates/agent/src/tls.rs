//! Connections over TCP with mutual TLS.
//!
//! A connection counts as open after its handshake, so a client without a certificate cannot keep an idle agent from
//! exiting.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use muster_agent_api::tls::{TlsError, TlsFiles};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::task::AbortOnDropHandle;

use crate::refused::RefusedConnections;

/// Delay after an error of `accept`, which is usually a lack of file descriptors.
pub(crate) const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of handshakes at once. A further connection ends the oldest handshake of the network with the most
/// handshakes.
///
/// Thus, clients that never finish a handshake cannot block clients of other networks.
const MAX_HANDSHAKES: usize = 64;
/// One machine usually has all IPv6 addresses that start with the same bits.
const IPV6_NETWORK_BITS: u32 = 64;

/// TCP address on which an agent accepts clients with a certificate.
#[derive(Debug, Clone)]
pub struct TcpOptions {
    /// Host and port. Port 0 lets the system choose.
    pub address: String,
    /// Certificate and key of the agent, and the authorities of its clients' certificates.
    pub tls: TlsFiles,
}

/// Reason why an agent cannot listen on an address.
#[derive(Debug, thiserror::Error)]
pub enum TcpError {
    /// A file cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The address cannot be used.
    #[error("failed to listen on {address}; use the address of this machine and a free port, as HOST:PORT")]
    Address {
        /// The address.
        address: String,
        /// Cause.
        #[source]
        source: io::Error,
    },
}

pub(crate) struct TlsListener {
    listener: TcpListener,
    acceptor: TlsAcceptor,
    pub(crate) address: SocketAddr,
}

impl TlsListener {
    pub(crate) async fn bind(options: &TcpOptions) -> Result<Self, TcpError> {
        let acceptor = TlsAcceptor::from(Arc::new(options.tls.server()?));
        let failed = |source| TcpError::Address { address: options.address.clone(), source };
        let listener = TcpListener::bind(&options.address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, acceptor, address })
    }

    pub(crate) fn accept(self) -> impl Stream<Item = TlsStream<TcpStream>> {
        let (sender, receiver) = mpsc::channel(1);
        let accepting = AbortOnDropHandle::new(tokio::spawn(self.accept_loop(sender)));
        futures::stream::unfold((receiver, accepting), |(mut receiver, accepting)| async {
            let stream = receiver.recv().await?;
            Some((stream, (receiver, accepting)))
        })
    }

    async fn accept_loop(self, accepted: mpsc::Sender<TlsStream<TcpStream>>) {
        let (mut handshakes, refused) = (JoinSet::new(), Arc::<RefusedConnections>::default());
        let mut running: VecDeque<Handshake> = VecDeque::new();
        loop {
            let connection = tokio::select! {
                connection = self.listener.accept() => connection,
                Some(_) = handshakes.join_next() => continue,
            };
            match connection {
                Ok((stream, peer)) => {
                    let network = network(peer.ip());
                    running.retain(|handshake| !handshake.task.is_finished());
                    if running.len() >= MAX_HANDSHAKES
                        && let Some(ended) = index_to_end(running.iter().map(|handshake| handshake.network), network)
                        && let Some(ended) = running.remove(ended)
                    {
                        ended.task.abort();
                    }
                    let handshake = shake_hands(self.acceptor.clone(), stream, accepted.clone());
                    let refused = Arc::clone(&refused);
                    let handshake = async move { report(&refused, peer, handshake.await) };
                    running.push_back(Handshake { network, task: handshakes.spawn(handshake) });
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    tracing::warn!(%error, "failed to accept a TCP connection, retrying");
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                }
            }
        }
    }
}

struct Handshake {
    network: IpAddr,
    task: AbortHandle,
}

/// Returns the network of a client: its IPv4 address, or the first half of its IPv6 address.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> IPV6_NETWORK_BITS << IPV6_NETWORK_BITS).into(),
        address @ IpAddr::V4(_) => address,
    }
}

/// Returns the index of the handshake to end for a new connection from the network `new`.
///
/// `running` has the networks of all handshakes, oldest first. The result is the oldest handshake of the network with
/// the most handshakes, including the new one.
fn index_to_end(running: impl Iterator<Item = IpAddr> + Clone, new: IpAddr) -> Option<usize> {
    let mut counts: HashMap<IpAddr, usize> = HashMap::from([(new, 1)]);
    running.clone().for_each(|network| *counts.entry(network).or_default() += 1);
    let counts = |network: IpAddr| counts.get(&network).copied();
    let most = running.clone().map(counts).max()?;
    running.map(counts).position(|count| count == most)
}

/// Passes a connection on after its handshake. Returns the reason for a refused client.
async fn shake_hands(
    acceptor: TlsAcceptor,
    stream: TcpStream,
    accepted: mpsc::Sender<TlsStream<TcpStream>>,
) -> Result<(), String> {
    // Messages are small, and their senders wait for answers.
    let _ = stream.set_nodelay(true);
    let done = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await;
    let stream = done.map_err(|_| "no TLS handshake in time".to_owned())?.map_err(|error| error.to_string())?;
    // The send fails during a shutdown.
    drop(accepted.send(stream).await);
    Ok(())
}

/// Logs why a client was refused, with the number of unlogged refused clients.
fn report(refused: &RefusedConnections, peer: SocketAddr, done: Result<(), String>) {
    if let Err(error) = done
        && let Some(omitted) = refused.count_refusal()
    {
        tracing::warn!(%peer, omitted, error, "connection refused");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handshake_to_end<'a>(running: &[&'a str], new: &str) -> Option<(usize, &'a str)> {
        let parsed = |address: &str| network(address.parse().unwrap());
        let index = index_to_end(running.iter().map(|address| parsed(address)), parsed(new))?;
        Some((index, running[index]))
    }

    #[test]
    fn network_with_the_most_handshakes_loses_its_oldest() {
        assert_eq!(handshake_to_end(&["10.0.0.1", "10.0.0.2", "10.0.0.2"], "10.0.0.3"), Some((1, "10.0.0.2")));
        assert_eq!(handshake_to_end(&["10.0.0.1", "10.0.0.2", "10.0.0.2"], "10.0.0.2"), Some((1, "10.0.0.2")));
        assert_eq!(
            handshake_to_end(&["10.0.0.1", "10.0.0.2"], "10.0.0.2"),
            Some((1, "10.0.0.2")),
            "the new handshake must count"
        );
        assert_eq!(handshake_to_end(&["10.0.0.1", "10.0.0.2"], "10.0.0.3"), Some((0, "10.0.0.1")));
        assert_eq!(handshake_to_end(&[], "10.0.0.1"), None);
    }

    #[test]
    fn addresses_of_one_machine_count_together() {
        assert_eq!(handshake_to_end(&["2001:db8::1", "2001:db8:0:1::1", "2001:db8:0:1::2"], "::1").unwrap().0, 1);
        assert_eq!(handshake_to_end(&["10.0.0.1", "::ffff:10.0.0.2", "10.0.0.2"], "::1").unwrap().0, 1);
    }
}
