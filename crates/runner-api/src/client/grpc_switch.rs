//! Decides whether job requests use gRPC, which a coordinator announces in HTTP responses to job requests.
//!
//! A failure pauses gRPC, because a proxy may forward only HTTP/1.1. Each further failure doubles the pause.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

const FIRST_PAUSE: Duration = Duration::from_secs(30);
const MAX_PAUSE: Duration = Duration::from_secs(3600);

#[derive(Debug, Default)]
pub(super) struct GrpcSwitch(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    is_announced: bool,
    /// Failures since the last gRPC response.
    failures: u32,
    paused_until: Option<Instant>,
}

impl State {
    fn is_paused(&self, now: Instant) -> bool {
        self.paused_until.is_some_and(|end| now < end)
    }
}

impl GrpcSwitch {
    pub(super) fn is_on(&self, now: Instant) -> bool {
        let state = self.0.lock();
        state.is_announced && !state.is_paused(now)
    }

    /// Records whether an HTTP response announced gRPC. Returns whether this is a new announcement.
    pub(super) fn set_announced(&self, is_announced: bool) -> bool {
        let was_announced = std::mem::replace(&mut self.0.lock().is_announced, is_announced);
        is_announced && !was_announced
    }

    pub(super) fn record_response(&self) {
        let mut state = self.0.lock();
        (state.failures, state.paused_until) = (0, None);
    }

    /// Records a failure and returns the pause.
    ///
    /// If gRPC is already paused, returns `None` and does not count the failure, because calls on one connection fail
    /// together.
    pub(super) fn record_failure(&self, now: Instant) -> Option<Duration> {
        let mut state = self.0.lock();
        if state.is_paused(now) {
            return None;
        }
        let pause = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(state.failures)).min(MAX_PAUSE);
        state.failures = state.failures.saturating_add(1);
        state.paused_until = Some(now + pause);
        Some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_is_used_when_announced_and_pauses_after_failures() {
        let (switch, mut now) = (GrpcSwitch::default(), Instant::now());
        assert!(!switch.is_on(now));
        assert!(switch.set_announced(true) && !switch.set_announced(true));
        assert!(switch.is_on(now));
        for pause in [30, 60, 120, 240, 480, 960, 1920, 3600, 3600] {
            assert_eq!(switch.record_failure(now), Some(Duration::from_secs(pause)));
            assert_eq!(switch.record_failure(now), None, "a failure during a pause must not count");
            assert!(!switch.is_on(now + Duration::from_secs(pause - 1)));
            now += Duration::from_secs(pause);
            assert!(switch.is_on(now));
        }
        switch.record_response();
        assert_eq!(switch.record_failure(now), Some(FIRST_PAUSE), "a response must reset the pause");
        switch.set_announced(false);
        assert!(!switch.is_on(now + MAX_PAUSE), "gRPC must not be used after the announcement was withdrawn");
    }
}
