//! How far an instance is that is kept for a later job.

use std::time::Duration;

use muster_fleeting::model::InstanceState;

use crate::time::Time;
use crate::words::Key;

/// Who asks for an environment has it within this, or is told why not.
pub(in crate::engine) const RESUMED_WITHIN: Duration = Duration::from_secs(300);
/// A list may be so old: for so long it may say of an instance that was resumed that it is suspended.
pub(in crate::engine) const OLD_LIST: Duration = Duration::from_secs(60);

/// An instance that is kept for a later job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::engine) struct Sleep {
    pub(in crate::engine) phase: Phase,
    /// What the last list said of it; none: there was none since.
    pub(in crate::engine) seen: Option<InstanceState>,
    /// It was asked to suspend, and may yet do so.
    pub(in crate::engine) asked: bool,
    /// It is not asked again before.
    pub(in crate::engine) again: Time,
    /// It ends then.
    pub(in crate::engine) until: Time,
    /// Who waits for it.
    pub(in crate::engine) waker: Option<Waker>,
}

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) enum Phase {
    /// It is to be suspended.
    Falling,
    /// The list says that it is.
    Asleep,
    /// It is to run again.
    Waking,
    /// It runs, and is made ready.
    Rousing,
}

impl Phase {
    /// As operators see it.
    pub(in crate::engine) fn name(self) -> &'static str {
        match self {
            Self::Falling => "suspending",
            Self::Asleep => "suspended",
            Self::Waking | Self::Rousing => "resuming",
        }
    }
}

/// A job that waits for an environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::engine) struct Waker {
    pub(in crate::engine) key: Key,
    pub(in crate::engine) since: Time,
}

impl Sleep {
    pub(in crate::engine) fn new(at: Time, until: Time) -> Self {
        Self { phase: Phase::Falling, seen: None, asked: false, again: at, until, waker: None }
    }

    /// Nobody waits for it any more. What is being made ready is first let finish: its answer would be taken for another's.
    pub(in crate::engine) fn fall_again(&mut self, at: Time) {
        if self.phase == Phase::Waking {
            // What was seen of it is from before it was asked to run.
            self.seen = None;
        }
        if self.phase != Phase::Rousing {
            self.phase = Phase::Falling;
            self.again = at;
        }
    }

    /// Whether the next list may bring news of it.
    pub(in crate::engine) fn is_expected(&self) -> bool {
        matches!(self.phase, Phase::Falling | Phase::Waking)
    }

    /// When something is to be done about it.
    pub(in crate::engine) fn due(&self) -> Time {
        let end = self.waker.as_ref().map_or(self.until, |waker| waker.since + RESUMED_WITHIN);
        let is_asked = matches!(
            (self.phase, self.seen),
            (Phase::Falling, Some(InstanceState::Running)) | (Phase::Waking, Some(InstanceState::Suspended))
        );
        if is_asked { end.min(self.again) } else { end }
    }

    /// The phase that follows from what the list says, and from who waits.
    pub(in crate::engine) fn next(&self, now: Time, since: Time) -> Phase {
        let is_wanted = self.waker.is_some();
        // Of what was asked to suspend it may be an old list that says that it runs.
        let runs_on = !self.asked && (self.phase == Phase::Falling || now >= since + OLD_LIST);
        match (self.phase, self.seen) {
            (Phase::Falling | Phase::Asleep, Some(InstanceState::Suspended)) if is_wanted => Phase::Waking,
            (Phase::Falling, Some(InstanceState::Suspended)) => Phase::Asleep,
            (Phase::Falling | Phase::Asleep, Some(InstanceState::Resuming)) if is_wanted && runs_on => Phase::Waking,
            (Phase::Falling | Phase::Asleep, Some(InstanceState::Running)) if is_wanted && runs_on => Phase::Rousing,
            (Phase::Asleep, Some(InstanceState::Running | InstanceState::Resuming)) => Phase::Falling,
            (Phase::Waking, Some(InstanceState::Running)) => Phase::Rousing,
            (phase, _) => phase,
        }
    }
}
