//! The HTTP front: an address, and the one place that puts the routes of the coordinator together.
//!
//! An address is taken before anything else is started, because pipelines name it, and served once there is a coordinator.

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
    /// The bare repository.
    pub path: PathBuf,
    /// The path of the project, `group/app`; served with and without `.git`.
    pub project_path: String,
}

/// An address that is taken, and not served yet.
#[derive(Debug)]
pub struct HttpFront {
    listener: TcpListener,
    address: SocketAddr,
}

impl HttpFront {
    /// Takes an address; port 0 is any free one.
    ///
    /// # Errors
    /// Those of the system if the address is taken, or not of this machine.
    pub async fn open(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address })
    }

    /// The base URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Serves until the future is dropped. Calls that are held then are cut off.
    pub async fn serve(self, coordinator: Arc<Coordinator>, repository: Option<Repository>) {
        let listener = self.listener.tap_io(|stream| {
            // Small answers at once: a job's start waits for each of them.
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "failed to switch off Nagle's algorithm");
            }
        });
        if let Err(error) = axum::serve(listener, routes_of(coordinator, repository)).await {
            tracing::error!(%error, "the runner API is no longer served");
        }
    }
}

/// The routes: the runner API, and the repository for runners that clone it.
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
