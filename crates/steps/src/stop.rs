//! Cancellation token with a cause, so that the report can tell a cancel from a timeout and from a lost environment.

use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use muster_job::TerminationCause;
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;

/// Cancellation token that also carries the cause. Clones share one state.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    token: CancellationToken,
    cause: Arc<OnceLock<TerminationCause>>,
    parent: Option<Box<Stop>>,
}

impl Stop {
    /// Returns a token that is not canceled.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a token that is canceled with this one. Canceling the child does not cancel this token.
    #[must_use]
    pub fn child(&self) -> Self {
        Self { token: self.token.child_token(), cause: Arc::new(OnceLock::new()), parent: Some(Box::new(self.clone())) }
    }

    /// Cancels the token and its children. If it was canceled before, the first cause is kept.
    pub fn stop(&self, cause: TerminationCause) {
        // The cause is set first: a task that sees the token canceled must find it.
        let _ = self.cause.set(cause);
        self.token.cancel();
    }

    /// Returns the cause of the cancellation. `None` means that the token is not canceled.
    #[must_use]
    pub fn cause(&self) -> Option<TerminationCause> {
        self.parent.as_ref().and_then(|parent| parent.cause()).or_else(|| self.cause.get().copied())
    }

    /// Runs `work` to its end and returns its result. If `event` completes first, the token is canceled with `cause`; the work
    /// decides how long it takes to end then.
    pub async fn ended_by<T>(
        &self,
        event: impl Future<Output = ()>,
        cause: TerminationCause,
        work: impl Future<Output = T>,
    ) -> T {
        let mut work = pin!(work);
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = event => self.stop(cause),
        }
        work.await
    }

    /// Waits until the token is canceled. Cancel-safe.
    pub async fn stopped(&self) -> TerminationCause {
        self.token.cancelled().await;
        self.cause().unwrap_or(TerminationCause::CanceledByUser)
    }
}

/// Waits until `limit`, or forever if it is `None`. Cancel-safe.
pub async fn reached(limit: Option<Instant>) {
    match limit {
        Some(limit) => sleep_until(limit.into()).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_child_stops_with_its_parent_but_not_the_other_way_round() {
        let parent = Stop::new();
        let alone = parent.child();
        let with = parent.child();
        alone.stop(TerminationCause::TimedOut);
        assert_eq!(alone.stopped().await, TerminationCause::TimedOut);
        assert_eq!(parent.cause(), None);
        parent.stop(TerminationCause::CanceledByUser);
        parent.stop(TerminationCause::TimedOut);
        assert_eq!(with.stopped().await, TerminationCause::CanceledByUser);
    }
}
