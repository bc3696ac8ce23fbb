use std::time::Duration;

use muster_config::settings::Settings;
use tokio::sync::{mpsc, oneshot};

use crate::admission::RunnerStats;

const MAX_COMMANDS: usize = 16;

/// Maximum time that a caller waits for statistics.
const STATS_TIMEOUT: Duration = Duration::from_secs(2);

/// A command for a running manager.
#[derive(Debug)]
pub enum ControlCommand {
    /// Use these settings from now on. Jobs keep the settings with which they were received.
    Reload(Box<Settings>),
    /// Request no more jobs, let running jobs end, and exit.
    Drain,
    /// Request no more jobs, cancel running jobs, report them, and exit.
    Abort,
    /// Request no more jobs and exit. Running jobs continue at their agents, and the next start restores them.
    Leave,
    /// Send the current statistics.
    DumpState(oneshot::Sender<ManagerStats>),
}

/// Statistics of a running manager.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManagerStats {
    /// Value of `concurrent`.
    pub concurrent: usize,
    /// Number of jobs in progress, including jobs of removed runners.
    pub jobs: usize,
    /// Number of jobs in progress that wait because `concurrent` or `limit` is reached.
    pub waiting: usize,
    /// Statistics of the runners, in the order of the configuration.
    pub runners: Vec<RunnerStats>,
}

/// Sends commands to a manager. If all clones are dropped, the manager continues to run.
#[derive(Debug, Clone)]
pub struct Control(mpsc::Sender<ControlCommand>);

impl Control {
    /// Returns a control, and the receiver that [`super::Manager::run`] needs.
    #[must_use]
    pub fn new() -> (Self, mpsc::Receiver<ControlCommand>) {
        let (sender, receiver) = mpsc::channel(MAX_COMMANDS);
        (Self(sender), receiver)
    }

    /// Returns the current statistics. `None` if the manager has ended or does not answer in time.
    pub async fn stats(&self) -> Option<ManagerStats> {
        // Half of the queue is for other commands, so that unanswered requests for statistics do not block them.
        if self.0.capacity() <= MAX_COMMANDS / 2 {
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        let answer = async {
            self.send(ControlCommand::DumpState(sender)).await;
            receiver.await.ok()
        };
        tokio::time::timeout(STATS_TIMEOUT, answer).await.ok().flatten()
    }

    /// Sends a command. Does nothing if the manager has ended.
    pub async fn send(&self, command: ControlCommand) {
        let _ = self.0.send(command).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn unresponsive_manager_blocks_no_caller() {
        let (control, _receiver) = Control::new();
        for _ in 0..3 * MAX_COMMANDS {
            assert_eq!(control.stats().await, None);
        }
        let sent = tokio::time::timeout(STATS_TIMEOUT, control.send(ControlCommand::Abort)).await;
        assert!(sent.is_ok(), "requests for statistics must not fill the queue");
    }
}
