//! Stop token with a cause, such as a cancel, a timeout or a lost environment.

use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use muster_job::TerminationCause;
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;

/// Token that stops work and tells it the cause of the stop. Clones share their state.
#[derive(Debug, Clone, Default)]
pub struct StopToken {
    token: CancellationToken,
    cause: Arc<OnceLock<TerminationCause>>,
    parent: Option<Box<StopToken>>,
}

impl StopToken {
    /// Returns a token that is not stopped.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a token that stops with this token. Stopping the child does not stop this token.
    #[must_use]
    pub fn child(&self) -> Self {
        Self { token: self.token.child_token(), cause: Arc::new(OnceLock::new()), parent: Some(Box::new(self.clone())) }
    }

    /// Stops the token and its children. The first cause remains, but the cause of a parent takes precedence.
    pub fn stop(&self, cause: TerminationCause) {
        // Set first, because a task that sees the stopped token must find the cause.
        let _ = self.cause.set(cause);
        self.token.cancel();
    }

    /// Returns the cause of the stop. `None` means that the token is not stopped.
    #[must_use]
    pub fn cause(&self) -> Option<TerminationCause> {
        self.parent.as_ref().and_then(|parent| parent.cause()).or_else(|| self.cause.get().copied())
    }

    /// Runs `work` to its end. If `event` completes first, stops the token with `cause` and continues to wait for
    /// `work`.
    pub async fn stop_on<T>(
        &self,
        event: impl Future<Output = ()>,
        cause: TerminationCause,
        work: impl Future<Output = T>,
    ) -> T {
        let mut work = pin!(work);
        tokio::select! {
            biased;
            result = &mut work => return result,
            () = event => self.stop(cause),
        }
        work.await
    }

    /// Waits until the token is stopped, and returns the cause. Cancel-safe.
    pub async fn stopped(&self) -> TerminationCause {
        self.token.cancelled().await;
        self.cause().unwrap_or(TerminationCause::CanceledByUser)
    }
}

/// Waits until `deadline`. `None` waits forever. Cancel-safe.
pub async fn wait_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn stop_reaches_children_but_not_parents() {
        let parent = StopToken::new();
        let first = parent.child();
        let second = parent.child();
        first.stop(TerminationCause::TimedOut);
        assert_eq!(first.stopped().await, TerminationCause::TimedOut);
        assert_eq!(parent.cause(), None);
        parent.stop(TerminationCause::CanceledByUser);
        parent.stop(TerminationCause::TimedOut);
        assert_eq!(second.stopped().await, TerminationCause::CanceledByUser);
    }
}
