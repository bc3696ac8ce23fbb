//! Stops the tasks and processes of a run.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::super::error::CiError;
use super::super::ui;
use super::descendants;
use super::supervisor::end_descendants;

#[derive(Default)]
pub(super) struct Tasks {
    pub(super) stop_manager: CancellationToken,
    pub(super) server: Option<JoinHandle<()>>,
    pub(super) manager: Option<JoinHandle<Result<(), CiError>>>,
    /// Receives the exit status of a manager that was restarted. `None` after the first report, or without a manager.
    pub(super) restarts: Option<mpsc::Receiver<String>>,
}

impl Tasks {
    /// Waits until the manager was restarted, and returns the exit status of the previous process.
    ///
    /// Reports only the first restart. Waits forever without a manager. Fails if the manager is no longer restarted.
    /// Cancel-safe.
    pub(super) async fn manager_restarted(&mut self) -> Result<String, CiError> {
        let Some(manager) = &mut self.manager else { return std::future::pending().await };
        let restarts = &mut self.restarts;
        let restarted = async move {
            match restarts {
                Some(restarts) => restarts.recv().await,
                None => std::future::pending().await,
            }
        };
        let result = tokio::select! {
            Some(exit_status) = restarted => {
                self.restarts = None;
                return Ok(exit_status);
            }
            result = manager => result,
        };
        self.manager = None;
        Err(match result {
            Ok(Ok(())) => {
                CiError::Failed("the manager exited unexpectedly; this is a bug in Muster, please report it".to_owned())
            }
            Ok(Err(error)) => error,
            Err(error) => CiError::Failed(format!("failed to supervise the manager: {error}")),
        })
    }

    pub(super) async fn kill(&mut self) {
        // Without this, the manager would be restarted.
        self.stop_manager.cancel();
        descendants::running_descendants().into_iter().for_each(descendants::kill);
        self.stop().await;
        end_descendants(Duration::ZERO).await;
    }

    /// Stops the manager, then the server, which answers the manager's last requests.
    pub(super) async fn stop(&mut self) {
        self.stop_manager.cancel();
        if let Some(manager) = self.manager.take() {
            match manager.await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => ui::report(&error),
                Err(error) => tracing::warn!(%error, "the manager's task failed"),
            }
        }
        if let Some(server) = self.server.take() {
            server.abort();
            let _ = server.await;
        }
    }
}
