//! Distinguishes an unreachable instance from an outage of the manager's own network.
//!
//! If several instances have jobs and none is reachable, the manager waits longer before jobs fail.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Maximum wait while all instances are unreachable.
const MAX_OUTAGE: Duration = Duration::from_secs(600);

/// Tracks which instances with jobs are reachable. Clones share the state.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReachabilityTracker(Arc<Mutex<HashMap<String, InstanceJobs>>>);

#[derive(Debug, Default)]
struct InstanceJobs {
    all: usize,
    connected: usize,
}

impl ReachabilityTracker {
    /// Counts a job on `instance` until the returned value is dropped.
    pub(super) fn track_job(&self, instance: &str) -> ConnectionHealth {
        self.0.lock().entry(instance.to_owned()).or_default().all += 1;
        ConnectionHealth {
            tracker: self.clone(),
            instance: instance.to_owned(),
            connected: false,
            outage: Outage::None,
        }
    }
}

/// Assumption about an instance that was unresponsive for its whole timeout.
#[derive(Debug, Clone, Copy)]
enum Outage {
    /// Only this instance is unreachable.
    None,
    /// All other instances were unreachable, too.
    Since(Instant),
    /// Other instances are reachable again, and this one got its timeout once more.
    Over,
}

/// Health of one job's connection to its instance.
#[derive(Debug)]
pub(super) struct ConnectionHealth {
    tracker: ReachabilityTracker,
    instance: String,
    connected: bool,
    outage: Outage,
}

impl ConnectionHealth {
    pub(super) fn set_connected(&mut self, connected: bool) {
        let mut jobs = self.tracker.0.lock();
        match jobs.get_mut(&self.instance) {
            Some(jobs) if connected && !self.connected => jobs.connected += 1,
            Some(jobs) if !connected && self.connected => jobs.connected -= 1,
            _ => {}
        }
        self.connected = connected;
        if connected {
            self.outage = Outage::None;
        }
    }

    /// Returns whether the instance gets its timeout once more.
    pub(super) fn extend_deadline(&mut self) -> bool {
        let (mut others, mut reachable) = (0, 0);
        for (instance, jobs) in self.tracker.0.lock().iter().filter(|(instance, _)| **instance != self.instance) {
            tracing::trace!(instance, ?jobs, "other instance with jobs");
            others += 1;
            reachable += usize::from(jobs.connected > 0);
        }
        self.outage = match self.outage {
            Outage::None if others == 0 || reachable > 0 => return false,
            Outage::None => {
                tracing::warn!(
                    instance = self.instance,
                    max_wait_s = MAX_OUTAGE.as_secs(),
                    "no instance is reachable, assuming that this manager's own network is down and waiting for it"
                );
                Outage::Since(Instant::now())
            }
            Outage::Since(since) if since.elapsed() >= MAX_OUTAGE => return false,
            Outage::Since(_) if reachable > 0 => Outage::Over,
            Outage::Since(since) => Outage::Since(since),
            Outage::Over => return false,
        };
        true
    }
}

impl Drop for ConnectionHealth {
    fn drop(&mut self) {
        self.set_connected(false);
        let mut jobs = self.tracker.0.lock();
        if let Some(instance_jobs) = jobs.get_mut(&self.instance) {
            instance_jobs.all -= 1;
            if instance_jobs.all == 0 {
                jobs.remove(&self.instance);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_unreachable_instance_gets_no_more_time() {
        let tracker = ReachabilityTracker::default();
        let mut unreachable = [tracker.track_job("i-1"), tracker.track_job("i-1")];
        assert!(
            unreachable.iter_mut().all(|health| !health.extend_deadline()),
            "another job of the same instance does not show an outage of the network"
        );
        let mut other = tracker.track_job("i-2");
        other.set_connected(true);
        assert!(unreachable.iter_mut().all(|health| !health.extend_deadline()));
    }

    #[tokio::test(start_paused = true)]
    async fn outage_of_all_instances_extends_their_deadlines() {
        let tracker = ReachabilityTracker::default();
        let (mut one, mut two, mut three) =
            (tracker.track_job("i-1"), tracker.track_job("i-2"), tracker.track_job("i-3"));
        for health in [&mut one, &mut two, &mut three] {
            health.set_connected(true);
            health.set_connected(false);
        }
        assert!(one.extend_deadline() && two.extend_deadline() && three.extend_deadline());
        tokio::time::advance(MAX_OUTAGE / 2).await;
        assert!(one.extend_deadline());
        two.set_connected(true);
        assert!(one.extend_deadline());
        assert!(!one.extend_deadline(), "another instance is reachable again, so this one gets only one more timeout");
        tokio::time::advance(MAX_OUTAGE / 2).await;
        drop(two);
        assert!(!three.extend_deadline(), "no instance gets more time after `MAX_OUTAGE`");
    }
}
