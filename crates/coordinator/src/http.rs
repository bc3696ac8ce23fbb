//! The HTTP server: binds an address, and combines the routes of the coordinator.
//!
//! The address is bound before the coordinator exists, because the variables of jobs contain the server's URL.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::serve::ListenerExt;
use muster_runner_api::routes;
use muster_source::{GitServer, git_routes};
use tokio::net::TcpListener;

use crate::coordinator::Coordinator;

/// A repository that jobs fetch over HTTP.
#[derive(Debug, Clone)]
pub struct Repository {
    /// Path of the bare repository.
    pub path: PathBuf,
    /// Path of the project, `group/app`. The URL of the repository has this path, with or without `.git`.
    pub project_path: String,
}

/// A server whose address is bound, but that does not serve requests yet.
#[derive(Debug)]
pub struct HttpServer {
    listener: TcpListener,
    address: SocketAddr,
}

impl HttpServer {
    /// Binds an address. Port 0 selects any free port.
    ///
    /// # Errors
    /// Error of the system, for example if the address is in use.
    pub async fn open(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address })
    }

    /// Returns the base URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Serves requests until the future is dropped. Connections are then closed once their current request is answered.
    pub async fn serve(self, coordinator: Arc<Coordinator>, repository: Option<Repository>) {
        let listener = self.listener.tap_io(|stream| {
            // Send small answers immediately, because the start of a job waits for each of them.
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "failed to disable Nagle's algorithm");
            }
        });
        if let Err(error) = axum::serve(listener, routes_of(coordinator, repository)).await {
            tracing::error!(%error, "failed to serve the runner API");
        }
    }
}

fn routes_of(coordinator: Arc<Coordinator>, repository: Option<Repository>) -> Router {
    let checker = Arc::clone(&coordinator);
    let runner_api = routes::router(coordinator);
    let Some(Repository { path, project_path }) = repository else { return runner_api };
    runner_api.merge(git_routes(GitServer {
        repository: path,
        project_path,
        check_token: Arc::new(move |token| {
            let coordinator = Arc::clone(&checker);
            Box::pin(async move { coordinator.check_job_token(&token).await })
        }),
    }))
}
