//! In which state of its life the process is, for `/debug/process/state` and `/health/ready`.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// The states (runner-config 3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessState {
    /// Before the first request for jobs.
    Starting,
    /// Takes jobs.
    Running,
    /// Takes no more jobs and lets those that run end.
    GracefulShutdown,
    /// Winds its jobs down.
    ForcefulShutdown,
}

impl ProcessState {
    const ALL: [Self; 4] = [Self::Starting, Self::Running, Self::GracefulShutdown, Self::ForcefulShutdown];

    /// The state's name.
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

/// The state of this process, which only moves forward.
#[derive(Debug)]
pub struct Life {
    state: AtomicU8,
    ready: AtomicBool,
}

impl Default for Life {
    fn default() -> Self {
        Self { state: AtomicU8::new(0), ready: AtomicBool::new(true) }
    }
}

impl Life {
    /// The state now.
    #[must_use]
    pub fn state(&self) -> ProcessState {
        let index = usize::from(self.state.load(Ordering::Relaxed));
        ProcessState::ALL.get(index).copied().unwrap_or(ProcessState::ForcefulShutdown)
    }

    /// Moves on; a state that is behind the present one changes nothing.
    pub fn reach(&self, state: ProcessState) {
        self.state.fetch_max(state as u8, Ordering::Relaxed);
    }

    /// Whether the process is fit to be counted on.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    /// A verification at the start is under way, or done.
    pub fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Relaxed);
    }
}
