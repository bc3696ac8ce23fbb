//! Cancellation as a value: a token with the reason why, so that "cancelled", "timed out" and "lost" reach the report.

use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use muster_job::TerminationCause;
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;

/// Asks work to end, and says why. Clones share one state.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    token: CancellationToken,
    cause: Arc<OnceLock<TerminationCause>>,
    parent: Option<Box<Stop>>,
}

impl Stop {
    /// A token that nothing has stopped.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A token that stops with this one, and may be stopped alone.
    #[must_use]
    pub fn child(&self) -> Self {
        Self { token: self.token.child_token(), cause: Arc::new(OnceLock::new()), parent: Some(Box::new(self.clone())) }
    }

    /// Asks for the end. The first cause stays.
    pub fn stop(&self, cause: TerminationCause) {
        // The cause first: whoever sees the token cancelled must find it.
        let _ = self.cause.set(cause);
        self.token.cancel();
    }

    /// Why the end was asked for; none while it was not.
    #[must_use]
    pub fn cause(&self) -> Option<TerminationCause> {
        self.parent.as_ref().and_then(|parent| parent.cause()).or_else(|| self.cause.get().copied())
    }

    /// Does the work. If `event` comes first, asks it to end for this cause. The work decides how long that takes.
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

    /// Waits until the end is asked for. Cancel-safe.
    pub async fn stopped(&self) -> TerminationCause {
        self.token.cancelled().await;
        self.cause().unwrap_or(TerminationCause::CanceledByUser)
    }
}

/// Waits until `limit`. `None` never comes. Cancel-safe.
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
