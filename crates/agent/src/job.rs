//! A job of the agent, and the state that all jobs share.

use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use muster_agent_api::result::JobResult;
use muster_builtins::AgentResources;
use muster_steps::engine::{Debugger, JobCancellation};
use muster_steps::process::ProcessManager;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::gate::StartGate;
use crate::spool::{Entry, Journal, LogFile, Spool};

/// State of the agent that all its jobs share.
#[derive(Debug)]
pub(crate) struct AgentContext {
    pub(crate) spool: Spool,
    /// Boot ID of the system.
    pub(crate) boot_id: String,
    pub(crate) process_manager: Arc<ProcessManager>,
    pub(crate) resources: Arc<AgentResources>,
}

/// A job, from `Run` to `Close`.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) id: String,
    pub(crate) entry: Entry,
    pub(crate) journal: Arc<Journal>,
    pub(crate) log: Arc<LogFile>,
    pub(crate) cancellation: JobCancellation,
    pub(crate) gate: StartGate,
    /// Debugger of the job. `None` means that the job's request did not include a debugger, so no client can pause the job.
    pub(crate) debugger: Option<Arc<Debugger>>,
    pub(crate) started: SystemTime,
    /// Result of the job. `None` means that the job has not ended.
    pub(crate) result: watch::Sender<Option<Arc<Finished>>>,
    /// Whether the entry was deleted. An entry that exists later with the same ID may belong to another attempt.
    removed: Mutex<bool>,
}

/// Result of a job, and the time when it ended.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) result: JobResult,
    pub(crate) ended: SystemTime,
}

impl Job {
    pub(crate) fn new(entry: Entry, journal: Journal, log: LogFile, finished: Option<Finished>) -> Self {
        let started = SystemTime::now();
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
            removed: Mutex::new(false),
        }
    }

    /// Returns the job with a debugger.
    pub(crate) fn with_debugger(self, debugger: Option<Debugger>) -> Self {
        Self { debugger: debugger.map(Arc::new), ..self }
    }

    /// Deletes the entry of the job, once. Blocks.
    pub(crate) fn remove(&self) -> io::Result<()> {
        let mut removed = self.removed.lock();
        if !*removed {
            self.entry.remove()?;
            *removed = true;
        }
        Ok(())
    }

    pub(crate) fn finished(&self) -> Option<Arc<Finished>> {
        self.result.borrow().clone()
    }

    /// Waits until the job has a result.
    pub(crate) async fn wait(&self) -> Option<Arc<Finished>> {
        let mut result = self.result.subscribe();
        result.wait_for(Option::is_some).await.ok().and_then(|finished| finished.clone())
    }
}
