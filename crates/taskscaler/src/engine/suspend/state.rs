//! State of an instance that is suspended for a later job.

use std::time::Duration;

use muster_fleeting::model::InstanceState;

use crate::time::Time;
use crate::types::TaskKey;

/// Time after which a waiting job gets an error.
pub(in crate::engine) const RESUME_TIMEOUT: Duration = Duration::from_secs(300);
/// For this long after a suspension or a resumption, a list may report the previous state.
pub(in crate::engine) const MAX_LIST_AGE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::engine) struct Suspension {
    pub(in crate::engine) state: SuspendState,
    /// State in the last list since the suspension began. `None` before the first list.
    pub(in crate::engine) last_listed: Option<InstanceState>,
    pub(in crate::engine) suspend_requested: bool,
    pub(in crate::engine) retry_at: Time,
    /// When the environment expires.
    pub(in crate::engine) until: Time,
    pub(in crate::engine) waiter: Option<ResumeWaiter>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) enum SuspendState {
    /// The instance should be suspended.
    Suspending,
    /// The provider lists the instance as suspended.
    Suspended,
    /// The instance should run again.
    Resuming,
    /// The instance runs and is being prepared.
    Preparing,
}

impl SuspendState {
    pub(in crate::engine) fn name(self) -> &'static str {
        match self {
            Self::Suspending => "suspending",
            Self::Suspended => "suspended",
            Self::Resuming | Self::Preparing => "resuming",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::engine) struct ResumeWaiter {
    pub(in crate::engine) key: TaskKey,
    pub(in crate::engine) since: Time,
}

impl Suspension {
    pub(in crate::engine) fn new(at: Time, until: Time) -> Self {
        Self {
            state: SuspendState::Suspending,
            last_listed: None,
            suspend_requested: false,
            retry_at: at,
            until,
            waiter: None,
        }
    }

    /// Lets the instance be suspended again, but does not interrupt a preparation, because the result of an interrupted
    /// preparation would be mistaken for that of a later one.
    pub(in crate::engine) fn suspend_again(&mut self, at: Time) {
        if self.state == SuspendState::Resuming {
            // The last list may be from before the resume call.
            self.last_listed = None;
        }
        if self.state != SuspendState::Preparing {
            self.state = SuspendState::Suspending;
            self.retry_at = at;
        }
    }

    pub(in crate::engine) fn expects_change(&self) -> bool {
        matches!(self.state, SuspendState::Suspending | SuspendState::Resuming)
    }

    pub(in crate::engine) fn due(&self) -> Time {
        let end = self.waiter.as_ref().map_or(self.until, |waiter| waiter.since + RESUME_TIMEOUT);
        let awaits_effect = matches!(
            (self.state, self.last_listed),
            (SuspendState::Suspending, Some(InstanceState::Running))
                | (SuspendState::Resuming, Some(InstanceState::Suspended))
        );
        if awaits_effect { end.min(self.retry_at) } else { end }
    }

    /// Returns the state that follows from the last list and the waiter. `since` is when the current state began.
    pub(in crate::engine) fn next(&self, now: Time, since: Time) -> SuspendState {
        let has_waiter = self.waiter.is_some();
        // After a suspend call, and for [`MAX_LIST_AGE`] after a list reported the suspension, a list with a running
        // instance may be outdated.
        let trusts_list =
            !self.suspend_requested && (self.state == SuspendState::Suspending || now >= since + MAX_LIST_AGE);
        match (self.state, self.last_listed) {
            (SuspendState::Suspending | SuspendState::Suspended, Some(InstanceState::Suspended)) if has_waiter => {
                SuspendState::Resuming
            }
            (SuspendState::Suspending, Some(InstanceState::Suspended)) => SuspendState::Suspended,
            (SuspendState::Suspending | SuspendState::Suspended, Some(InstanceState::Resuming))
                if has_waiter && trusts_list =>
            {
                SuspendState::Resuming
            }
            (SuspendState::Suspending | SuspendState::Suspended, Some(InstanceState::Running))
                if has_waiter && trusts_list =>
            {
                SuspendState::Preparing
            }
            (SuspendState::Suspended, Some(InstanceState::Running | InstanceState::Resuming)) => {
                SuspendState::Suspending
            }
            (SuspendState::Resuming, Some(InstanceState::Running)) => SuspendState::Preparing,
            (state, _) => state,
        }
    }
}
