//! What a manager can be told while it works.

use std::time::Duration;

use muster_config::settings::Settings;
use tokio::sync::{mpsc, oneshot};

use crate::admission::RunnerFigures;

/// Orders that wait to be obeyed; the manager takes them at once, so that more are never needed.
const ORDERS_MAX: usize = 16;

/// Who asks, a signal for one, waits no longer than this.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// One order.
#[derive(Debug)]
pub enum Order {
    /// Work by these settings from now on. Jobs keep the ones that they were taken with.
    Reload(Box<Settings>),
    /// Take no more jobs; let those that run end, and end.
    Drain,
    /// Take no more jobs, wind down those that run, report them, and end.
    Abort,
    /// Take no more jobs, and end without those that run: they go on at their agents, and the next start takes them up.
    Leave,
    /// Tell what is going on.
    Tell(oneshot::Sender<Figures>),
}

/// What is going on in a manager.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Figures {
    /// `concurrent`.
    pub concurrent: usize,
    /// Jobs under way, also those of runners that have left the file.
    pub jobs: usize,
    /// Of these, the jobs that wait because as many run as `concurrent` or `limit` allows.
    pub waiting: usize,
    /// The runners, in the order of the file.
    pub runners: Vec<RunnerFigures>,
}

/// Gives orders to a manager. Clones give them to the same one; without any, the manager works on.
#[derive(Debug, Clone)]
pub struct Control(mpsc::Sender<Order>);

impl Control {
    /// A control, and what its manager is run with.
    #[must_use]
    pub fn new() -> (Self, mpsc::Receiver<Order>) {
        let (sender, receiver) = mpsc::channel(ORDERS_MAX);
        (Self(sender), receiver)
    }

    /// What is going on; none where the manager has ended, or hears nothing since it ends its fleets.
    pub async fn figures(&self) -> Option<Figures> {
        // Orders always find room behind questions that nobody hears.
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

    /// Gives an order; one to a manager that has ended is without effect.
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
