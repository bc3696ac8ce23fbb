//! How far an instance is that is kept for a later job.

use std::time::Duration;

use muster_fleeting::model::InstanceState;

use crate::time::Time;
use crate::types::TaskKey;

/// Who asks for an environment has it within this, or is told why not.
pub(in crate::engine) const RESUME_TIMEOUT: Duration = Duration::from_secs(300);
/// A list may be so old: for so long it may say of an instance that was resumed that it is suspended.
pub(in crate::engine) const MAX_LIST_AGE: Duration = Duration::from_secs(60);

/// An instance that is kept for a later job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::engine) struct Suspension {
    pub(in crate::engine) state: SuspendState,
    /// What the last list said of it; none: there was none since.
    pub(in crate::engine) last_listed: Option<InstanceState>,
    /// It was asked to suspend, and may yet do so.
    pub(in crate::engine) suspend_requested: bool,
    /// It is not asked again before.
    pub(in crate::engine) retry_at: Time,
    /// It ends then.
    pub(in crate::engine) until: Time,
    /// Who waits for it.
    pub(in crate::engine) waiter: Option<ResumeWaiter>,
}

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) enum SuspendState {
    /// It is to be suspended.
    Suspending,
    /// The list says that it is.
    Suspended,
    /// It is to run again.
    Resuming,
    /// It runs, and is made ready.
    Preparing,
}

impl SuspendState {
    /// As operators see it.
    pub(in crate::engine) fn name(self) -> &'static str {
        match self {
            Self::Suspending => "suspending",
            Self::Suspended => "suspended",
            Self::Resuming | Self::Preparing => "resuming",
        }
    }
}

/// A job that waits for an environment.
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

    /// Nobody waits for it any more. What is being made ready is first let finish: its answer would be taken for another's.
    pub(in crate::engine) fn suspend_again(&mut self, at: Time) {
        if self.state == SuspendState::Resuming {
            // What was seen of it is from before it was asked to run.
            self.last_listed = None;
        }
        if self.state != SuspendState::Preparing {
            self.state = SuspendState::Suspending;
            self.retry_at = at;
        }
    }

    /// Whether the next list may bring news of it.
    pub(in crate::engine) fn is_expected(&self) -> bool {
        matches!(self.state, SuspendState::Suspending | SuspendState::Resuming)
    }

    /// When something is to be done about it.
    pub(in crate::engine) fn due(&self) -> Time {
        let end = self.waiter.as_ref().map_or(self.until, |waker| waker.since + RESUME_TIMEOUT);
        let is_asked = matches!(
            (self.state, self.last_listed),
            (SuspendState::Suspending, Some(InstanceState::Running))
                | (SuspendState::Resuming, Some(InstanceState::Suspended))
        );
        if is_asked { end.min(self.retry_at) } else { end }
    }

    /// The phase that follows from what the list says, and from who waits.
    pub(in crate::engine) fn next(&self, now: Time, since: Time) -> SuspendState {
        let is_wanted = self.waiter.is_some();
        // Of what was asked to suspend it may be an old list that says that it runs.
        let runs_on =
            !self.suspend_requested && (self.state == SuspendState::Suspending || now >= since + MAX_LIST_AGE);
        match (self.state, self.last_listed) {
            (SuspendState::Suspending | SuspendState::Suspended, Some(InstanceState::Suspended)) if is_wanted => {
                SuspendState::Resuming
            }
            (SuspendState::Suspending, Some(InstanceState::Suspended)) => SuspendState::Suspended,
            (SuspendState::Suspending | SuspendState::Suspended, Some(InstanceState::Resuming))
                if is_wanted && runs_on =>
            {
                SuspendState::Resuming
            }
            (SuspendState::Suspending | SuspendState::Suspended, Some(InstanceState::Running))
                if is_wanted && runs_on =>
            {
                SuspendState::Preparing
            }
            (SuspendState::Suspended, Some(InstanceState::Running | InstanceState::Resuming)) => {
                SuspendState::Suspending
            }
            (SuspendState::Resuming, Some(InstanceState::Running)) => SuspendState::Preparing,
            (phase, _) => phase,
        }
    }
}
