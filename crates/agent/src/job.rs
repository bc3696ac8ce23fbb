//! Job of the agent.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use muster_agent_api::result::JobResult;
use muster_builtins::AgentResources;
use muster_steps::engine::{Debugger, JobCancellation};
use muster_steps::process::ProcessManager;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::gate::StartGate;
use crate::spool::{Entry, Journal, LogFile, Spool};

#[derive(Debug)]
pub(crate) struct AgentContext {
    pub(crate) spool: Spool,
    pub(crate) boot_id: String,
    pub(crate) process_manager: Arc<ProcessManager>,
    pub(crate) resources: Arc<AgentResources>,
}

#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) id: String,
    pub(crate) entry: Entry,
    pub(crate) journal: Arc<Journal>,
    pub(crate) log: Arc<LogFile>,
    pub(crate) cancellation: JobCancellation,
    pub(crate) gate: StartGate,
    /// `None` means that no client can pause the job.
    pub(crate) debugger: Option<Arc<Debugger>>,
    pub(crate) started: SystemTime,
    /// `None` until the job ends.
    pub(crate) result: watch::Sender<Option<Arc<Finished>>>,
    /// Whether a manager has closed the job before its end.
    is_closing: AtomicBool,
    /// Whether the entry was deleted. A later entry with this ID may belong to another attempt.
    removed: Mutex<bool>,
}

#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) result: JobResult,
    pub(crate) ended: SystemTime,
}

impl Finished {
    /// Returns when the job started, according to its result.
    fn started(&self) -> SystemTime {
        let started = UNIX_EPOCH.checked_add(Duration::from_millis(self.result.tree.started_ms));
        started.unwrap_or(self.ended).min(self.ended)
    }
}

impl Job {
    pub(crate) fn new(entry: Entry, journal: Journal, log: LogFile, finished: Option<Finished>) -> Self {
        let started = finished.as_ref().map_or_else(SystemTime::now, Finished::started);
        Self {
            id: entry.id.clone(),
            entry,
            journal: Arc::new(journal),
            log: Arc::new(log),
            cancellation: JobCancellation::default(),
            gate: StartGate::default(),
            debugger: None,
            started,
            result: watch::Sender::new(finished.map(Arc::new)),
            is_closing: AtomicBool::new(false),
            removed: Mutex::new(false),
        }
    }

    pub(crate) fn with_debugger(self, debugger: Option<Debugger>) -> Self {
        Self { debugger: debugger.map(Arc::new), ..self }
    }

    /// Marks the job as closed before its end. Returns false if it was marked before.
    pub(crate) fn start_closing(&self) -> bool {
        !self.is_closing.swap(true, Ordering::Relaxed)
    }

    /// Deletes the entry. Returns false if it was deleted before. Blocks the thread.
    pub(crate) fn remove(&self) -> io::Result<bool> {
        let mut removed = self.removed.lock();
        if *removed {
            return Ok(false);
        }
        self.entry.remove()?;
        *removed = true;
        Ok(true)
    }

    pub(crate) fn finished(&self) -> Option<Arc<Finished>> {
        self.result.borrow().clone()
    }

    pub(crate) async fn wait(&self) -> Option<Arc<Finished>> {
        let mut result = self.result.subscribe();
        result.wait_for(Option::is_some).await.ok().and_then(|finished| finished.clone())
    }
}
