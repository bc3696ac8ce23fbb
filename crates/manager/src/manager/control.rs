//! Commands for a running manager.

use std::time::Duration;

use muster_config::settings::Settings;
use tokio::sync::{mpsc, oneshot};

use crate::admission::RunnerFigures;

/// Maximum number of commands in the queue. The manager takes them at once, so more are never needed.
const ORDERS_MAX: usize = 16;

/// Maximum time that a caller, such as a signal handler, waits for the manager's statistics.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// A command for a running manager.
#[derive(Debug)]
pub enum Order {
    /// Use these settings from now on. Jobs keep the settings with which they were received.
    Reload(Box<Settings>),
    /// Request no more jobs, let running jobs end, and exit.
    Drain,
    /// Request no more jobs, cancel running jobs, report them, and exit.
    Abort,
    /// Request no more jobs and exit without waiting: running jobs continue at their agents, and the next start restores them.
    Leave,
    /// Send the current statistics.
    Tell(oneshot::Sender<Figures>),
}

/// Statistics of a running manager.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Figures {
    /// Value of `concurrent`.
    pub concurrent: usize,
    /// Jobs in progress, including those of runners that were removed from the configuration.
    pub jobs: usize,
    /// Jobs among them that wait because `concurrent` or `limit` is reached.
    pub waiting: usize,
    /// Statistics of the runners, in the order of the configuration.
    pub runners: Vec<RunnerFigures>,
}

/// Sends commands to a manager. Clones control the same manager. If all are dropped, the manager continues to run.
#[derive(Debug, Clone)]
pub struct Control(mpsc::Sender<Order>);

impl Control {
    /// Returns a control, and the receiver that [`super::Manager::run`] needs.
    #[must_use]
    pub fn new() -> (Self, mpsc::Receiver<Order>) {
        let (sender, receiver) = mpsc::channel(ORDERS_MAX);
        (Self(sender), receiver)
    }

    /// Returns the current statistics. `None` if the manager has ended, or does not answer because it is deleting its instances.
    pub async fn figures(&self) -> Option<Figures> {
        // Half of the queue is reserved for commands: requests for statistics that are not answered must not block them.
        if self.0.capacity() <= ORDERS_MAX / 2 {
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        let answer = async {
            self.give(Order::Tell(sender)).await;
            receiver.await.ok()
        };
        tokio::time::timeout(ANSWERS_WITHIN, answer).await.ok().flatten()
    }

    /// Sends a command. Does nothing if the manager has ended.
    pub async fn give(&self, order: Order) {
        let _ = self.0.send(order).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_manager_that_hears_nothing_holds_nobody_up() {
        let (control, _unheard) = Control::new();
        for _ in 0..3 * ORDERS_MAX {
            assert_eq!(control.figures().await, None);
        }
        let ordered = tokio::time::timeout(ANSWERS_WITHIN, control.give(Order::Abort)).await;
        assert!(ordered.is_ok(), "an order finds room behind questions");
    }
}
