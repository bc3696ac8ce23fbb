//! A connection to an engine's machine, which a test can cut.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use muster_test_prerequisites::DockerEngine;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Number of refused connections after which the other side has noticed the cut.
const ATTEMPTS: usize = 3;

/// Port on this machine that leads to an address in the network of an engine.
pub(super) struct Link {
    pub(super) address: SocketAddr,
    is_cut: watch::Sender<bool>,
    refused: Arc<AtomicUsize>,
    _accepting: JoinSet<()>,
}

impl Link {
    pub(super) async fn open(engine: &'static DockerEngine, target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (is_cut, watched) = watch::channel(false);
        let (refused, mut accepting) = (Arc::<AtomicUsize>::default(), JoinSet::new());
        accepting.spawn(accept(listener, engine, target, watched, Arc::clone(&refused)));
        Self { address, is_cut, refused, _accepting: accepting }
    }

    /// Ends all connections, and refuses new ones until [`Self::restore`]. Returns after [`ATTEMPTS`] refusals.
    pub(super) async fn cut(&self) {
        self.refused.store(0, Ordering::Relaxed);
        self.is_cut.send_replace(true);
        crate::process::until(async || match self.refused.load(Ordering::Relaxed) {
            ATTEMPTS.. => Ok(()),
            count => Err(format!("only {count} attempts to connect again")),
        })
        .await;
    }

    pub(super) fn restore(&self) {
        self.is_cut.send_replace(false);
    }
}

async fn accept(
    listener: TcpListener,
    engine: &'static DockerEngine,
    target: SocketAddr,
    is_cut: watch::Receiver<bool>,
    refused: Arc<AtomicUsize>,
) {
    let mut connections = JoinSet::new();
    loop {
        let (mut near, _) = listener.accept().await.unwrap();
        if *is_cut.borrow() {
            refused.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        let far = engine.connect(target).unwrap();
        far.set_nonblocking(true).unwrap();
        let (mut far, mut is_cut) = (TcpStream::from_std(far).unwrap(), is_cut.clone());
        connections.spawn(async move {
            tokio::select! {
                // An error ends the connection, too.
                _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                _ = is_cut.wait_for(|is_cut| *is_cut) => {}
            }
        });
    }
}
