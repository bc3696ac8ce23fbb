//! State of the process, for `/debug/process/state`.

use std::sync::atomic::{AtomicU8, Ordering};

/// State of the process, with gitlab-runner's names (docs/spec/runner-config.md, section 3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessState {
    /// The manager has not requested jobs yet.
    Starting,
    /// The manager requests and runs jobs.
    Running,
    /// The manager requests no more jobs and waits for running ones.
    GracefulShutdown,
    /// The manager stops its jobs.
    ForcefulShutdown,
}

impl ProcessState {
    const ALL: [Self; 4] = [Self::Starting, Self::Running, Self::GracefulShutdown, Self::ForcefulShutdown];

    /// Returns the name of the state.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::GracefulShutdown => "graceful-shutdown",
            Self::ForcefulShutdown => "forceful-shutdown",
        }
    }
}

/// Current state of the process, which only advances.
#[derive(Debug, Default)]
pub struct Lifecycle {
    state: AtomicU8,
}

impl Lifecycle {
    /// Returns the current state.
    #[must_use]
    pub fn state(&self) -> ProcessState {
        let index = usize::from(self.state.load(Ordering::Relaxed));
        ProcessState::ALL.get(index).copied().unwrap_or(ProcessState::ForcefulShutdown)
    }

    /// Advances to a state. Does nothing if the process has passed it already.
    pub fn advance_to(&self, state: ProcessState) {
        self.state.fetch_max(state as u8, Ordering::Relaxed);
    }
}
