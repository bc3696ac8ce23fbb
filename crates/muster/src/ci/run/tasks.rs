//! The tasks and processes of a run, and their end.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::super::error::CiError;
use super::super::ui;
use super::descendants;
use super::supervisor::end_descendants;

/// What has to be ended.
#[derive(Default)]
pub(super) struct Tasks {
    pub(super) stop_manager: CancellationToken,
    pub(super) serve: Option<JoinHandle<()>>,
    pub(super) manager: Option<JoinHandle<Result<(), CiError>>>,
    /// How the manager had ended when it was started again; none once that was told.
    pub(super) restarts: Option<mpsc::Receiver<String>>,
}

impl Tasks {
    /// Waits until the manager was started again, and says how it had ended, the first time only; an error if it is given
    /// up. Never where there is none. Safe to drop.
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
            Some(told) = restarted => {
                self.restarts = None;
                return Ok(told);
            }
            result = manager => result,
        };
        self.manager = None;
        Err(match result {
            Ok(Ok(())) => CiError::Usage("the manager ended although it was not told to".to_owned()),
            Ok(Err(error)) => error,
            Err(error) => CiError::Usage(format!("the manager cannot be watched any more: {error}")),
        })
    }

    /// Kills the manager, the agent and all jobs.
    pub(super) async fn kill(&mut self) {
        // First this, else the manager would be started again.
        self.stop_manager.cancel();
        descendants::all().into_iter().for_each(descendants::kill);
        self.end().await;
        end_descendants(Duration::ZERO).await;
    }

    /// Ends the manager while its calls are still answered, then the server.
    pub(super) async fn end(&mut self) {
        self.stop_manager.cancel();
        if let Some(manager) = self.manager.take() {
            match manager.await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => ui::report(&error),
                Err(error) => tracing::warn!(%error, "the manager's task failed"),
            }
        }
        if let Some(serve) = self.serve.take() {
            serve.abort();
            let _ = serve.await;
        }
    }
}
