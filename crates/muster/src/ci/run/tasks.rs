//! The tasks and processes of a run, and their end.

use std::time::Duration;

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
}

impl Tasks {
    /// Waits until the manager is given up; never where there is none.
    pub(super) async fn manager_given_up(&mut self) -> CiError {
        let Some(manager) = &mut self.manager else { return std::future::pending().await };
        let result = manager.await;
        self.manager = None;
        match result {
            Ok(Ok(())) => CiError::Usage("the manager ended although it was not told to".to_owned()),
            Ok(Err(error)) => error,
            Err(error) => CiError::Usage(format!("the manager cannot be watched any more: {error}")),
        }
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
