//! Limits on running jobs: `concurrent`, and each runner's `limit` (J4).
//!
//! If a limit is reduced while a request is in flight, the job of that request waits here.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use muster_config::settings::RunnerKey;

#[derive(Debug)]
pub(crate) struct ConcurrencyLimits {
    state: Mutex<State>,
    changed: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct State {
    concurrent: usize,
    limits: HashMap<RunnerKey, usize>,
    running: HashMap<RunnerKey, usize>,
    /// Jobs by ticket, the oldest first.
    waiting: BTreeMap<u64, RunnerKey>,
    tickets: u64,
}

impl State {
    fn is_below_limit(&self, runner: &RunnerKey) -> bool {
        let running = self.running.get(runner).copied().unwrap_or_default();
        self.limits.get(runner).is_none_or(|limit| running < *limit)
    }

    /// The next job is the oldest waiting job whose runner is below its limit.
    fn is_next(&self, ticket: u64) -> bool {
        let next = self.waiting.iter().find(|(_, runner)| self.is_below_limit(runner));
        self.running.values().sum::<usize>() < self.concurrent && next.is_some_and(|(next, _)| *next == ticket)
    }
}

/// Permission for a job to run. Dropping it lets another job run.
#[derive(Debug)]
pub(crate) struct RunPermit {
    limits: Arc<ConcurrencyLimits>,
    runner: RunnerKey,
}

impl ConcurrencyLimits {
    /// Permits no job until the limits are configured.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), changed: watch::Sender::default() })
    }

    /// Sets the limits. Running jobs that exceed them continue.
    pub(crate) fn configure(&self, concurrent: usize, limits: HashMap<RunnerKey, usize>) {
        let mut state = self.state.lock();
        (state.concurrent, state.limits) = (concurrent, limits);
        drop(state);
        self.changed.send_replace(());
    }

    pub(crate) fn waiting(&self) -> usize {
        self.state.lock().waiting.len()
    }

    /// Returns a permit for a job that already has a slot, even beyond the limits.
    pub(crate) fn resume(self: &Arc<Self>, runner: &RunnerKey) -> RunPermit {
        self.permit(&mut self.state.lock(), runner)
    }

    /// Calls `on_wait` if the job must wait. Dropping the future gives up its turn.
    pub(crate) async fn acquire(self: &Arc<Self>, runner: &RunnerKey, on_wait: impl FnOnce()) -> RunPermit {
        let mut changed = self.changed.subscribe();
        let waiter = Waiter::new(self, runner);
        let mut on_wait = Some(on_wait);
        loop {
            {
                let mut state = self.state.lock();
                if state.is_next(waiter.ticket) {
                    return self.permit(&mut state, runner);
                }
            }
            if let Some(on_wait) = on_wait.take() {
                on_wait();
            }
            if changed.changed().await.is_err() {
                // The sender is in `self`, so it cannot be closed.
                std::future::pending::<()>().await;
            }
        }
    }

    fn permit(self: &Arc<Self>, state: &mut State, runner: &RunnerKey) -> RunPermit {
        *state.running.entry(runner.clone()).or_default() += 1;
        RunPermit { limits: Arc::clone(self), runner: runner.clone() }
    }
}

impl Drop for RunPermit {
    fn drop(&mut self) {
        let mut state = self.limits.state.lock();
        if let Some(running) = state.running.get_mut(&self.runner) {
            *running -= 1;
            if *running == 0 {
                state.running.remove(&self.runner);
            }
        }
        drop(state);
        self.limits.changed.send_replace(());
    }
}

struct Waiter<'a> {
    limits: &'a ConcurrencyLimits,
    ticket: u64,
}

impl<'a> Waiter<'a> {
    fn new(limits: &'a ConcurrencyLimits, runner: &RunnerKey) -> Self {
        let mut state = limits.state.lock();
        state.tickets += 1;
        let ticket = state.tickets;
        state.waiting.insert(ticket, runner.clone());
        drop(state);
        Self { limits, ticket }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.limits.state.lock().waiting.remove(&self.ticket);
        // Jobs behind this one may be next now.
        self.limits.changed.send_replace(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    fn key(name: &str) -> RunnerKey {
        RunnerKey::new(&format!("http://{name}.example").parse().unwrap(), 1, &muster_job::Secret::default())
    }

    #[tokio::test]
    async fn jobs_run_in_order_and_runner_at_limit_does_not_block_others() {
        let (limits, a, b) = (ConcurrencyLimits::new(), key("a"), key("b"));
        limits.configure(2, HashMap::from([(a.clone(), 1)]));
        let first = limits.acquire(&a, || panic!("the job had to wait")).await;
        let mut second = Box::pin(limits.acquire(&a, || {}));
        assert!(second.as_mut().now_or_never().is_none(), "no job may run beyond the limit of its runner");
        let third = limits.acquire(&b, || panic!("the job had to wait")).await;
        let mut fourth = Box::pin(limits.acquire(&b, || {}));
        assert!(fourth.as_mut().now_or_never().is_none(), "no job may run beyond `concurrent`");
        assert_eq!(limits.waiting(), 2);
        drop(first);
        assert!(fourth.as_mut().now_or_never().is_none(), "no job may overtake an older one");
        let second = second.await;
        drop(third);
        let fourth = fourth.await;
        assert_eq!(limits.waiting(), 0);
        drop((second, fourth));
    }

    #[tokio::test]
    async fn dropped_wait_loses_its_turn_and_higher_limit_lets_jobs_run() {
        let (limits, a) = (ConcurrencyLimits::new(), key("a"));
        let resumed = [limits.resume(&a), limits.resume(&a)];
        limits.configure(1, HashMap::new());
        let mut abandoned = Box::pin(limits.acquire(&a, || {}));
        let mut next = Box::pin(limits.acquire(&a, || {}));
        assert!(abandoned.as_mut().now_or_never().is_none() && next.as_mut().now_or_never().is_none());
        drop(abandoned);
        limits.configure(3, HashMap::new());
        let next = next.await;
        drop((resumed, next));
    }
}
