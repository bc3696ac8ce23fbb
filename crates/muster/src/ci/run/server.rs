//! The coordinator's address: the runner API, and the repository for runners that clone it.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use muster_runner_api::service::RunnerService;
use muster_source::{GitServer, git_routes};
use tokio::net::TcpListener;

use super::super::error::CiError;

/// An address that is taken, and not served yet.
pub(super) struct Door {
    listener: TcpListener,
    address: SocketAddr,
}

impl Door {
    /// Takes an address; port 0 is any free one.
    ///
    /// # Errors
    /// [`CiError::System`] if it is taken or not of this machine.
    pub(super) async fn open(address: SocketAddr) -> Result<Self, CiError> {
        let listener = TcpListener::bind(address).await;
        let listener = listener.map_err(CiError::system(format!("cannot listen on `{address}`")))?;
        let address = listener.local_addr().map_err(CiError::system("cannot tell the address of the socket"))?;
        Ok(Self { listener, address })
    }

    /// The base URL.
    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Serves until the future is dropped. Calls that are held then are cut: their callers have ended before.
    pub(super) async fn serve(self, service: Arc<dyn RunnerService>, git: GitServer) {
        let routes: Router = muster_runner_api::routes::router(service).merge(git_routes(git));
        let listener = axum::serve::ListenerExt::tap_io(self.listener, |stream| {
            // Small answers at once: a job's start waits for each of them.
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "cannot switch off Nagle's algorithm");
            }
        });
        if let Err(error) = axum::serve(listener, routes).await {
            tracing::error!(%error, "the runner API is no longer served");
        }
    }
}
