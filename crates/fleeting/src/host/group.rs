//! The handle of a running plugin.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::call::{CallError, Caller, Snapshot};
use super::supervisor::Supervisor;
use super::{PluginSpec, StartError};
use crate::model::Features;
use crate::model::{ConnectInfo, GroupInfo, InstanceId};
use crate::protocol::SUSPEND_RESUME;

/// Calls that may hang because of an instance, although the plugin works.
const INSTANCE_CALLS: [&str; 6] = ["ConnectInfo", "Heartbeat", "HostKeys", "Prepare", "Cleanup", "GetResourceUsage"];
/// Number of unanswered [`INSTANCE_CALLS`] after which the plugin counts as hung.
/// Any response resets the count.
const MAX_UNANSWERED_CALLS: u32 = 3;

/// Whether a plugin can be called.
#[derive(Debug, Clone)]
pub enum PluginStatus {
    /// The plugin is running.
    Up {
        /// Process ID of the plugin.
        pid: u32,
    },
    /// The plugin is not running. It is restarted automatically.
    Down {
        /// Reason why the process ended, or why its last start failed.
        cause: String,
        /// Number of exits and failed starts since a process last ran for at least a minute.
        failures: u32,
    },
    /// The plugin was stopped.
    Stopped,
}

/// An instance group: a plugin that is restarted when it fails.
/// Dropping it without [`Self::stop`] kills the process.
#[derive(Debug)]
pub struct Group {
    name: String,
    info: GroupInfo,
    process: watch::Receiver<Option<Arc<LiveProcess>>>,
    status: watch::Receiver<PluginStatus>,
    stop: CancellationToken,
    supervisor: Mutex<Option<JoinHandle<()>>>,
}

impl Group {
    /// Starts the plugin and calls `Init`. If this first start fails, it is not repeated. A later restart that
    /// fails is repeated.
    ///
    /// Must be called within a Tokio runtime, on a thread that lives as long as this process: the plugin is killed when
    /// the thread ends.
    ///
    /// # Errors
    /// [`StartError`]. No process is left running.
    pub async fn start(spec: PluginSpec) -> Result<Self, StartError> {
        let name = spec.name();
        spec.connector.check().map_err(|source| StartError::Settings { path: spec.executable.clone(), source })?;
        let stop = CancellationToken::new();
        let (supervisor, info) = Supervisor::start(spec, stop.clone()).await?;
        let (process, status) = (supervisor.process(), supervisor.status());
        tracing::info!(
            plugin = name,
            group = info.id,
            version = info.version,
            max_size = info.max_size,
            "plugin started"
        );
        Ok(Self { name, info, process, status, stop, supervisor: Mutex::new(Some(tokio::spawn(supervisor.run()))) })
    }

    /// Returns the plugin's name for messages.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns what the plugin reported about itself at its first start.
    #[must_use]
    pub fn info(&self) -> &GroupInfo {
        &self.info
    }

    /// Returns a receiver of the plugin's status and its changes.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<PluginStatus> {
        self.status.clone()
    }

    /// Lists all instances of the group. An incomplete list is an error.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn update(&self) -> Result<Snapshot, CallError> {
        let process = self.live_process()?;
        process.record_outcome(process.caller.update().await)
    }

    /// Requests `n` more instances and returns the number that the plugin accepted, at most `n`.
    ///
    /// # Errors
    /// [`CallError`]. Unless it is [`CallError::Down`], some instances may have been created anyway.
    pub async fn increase(&self, n: u32) -> Result<u32, CallError> {
        let process = self.live_process()?;
        process.record_outcome(process.caller.increase(n).await)
    }

    /// Requests the deletion of these instances and returns the accepted ones.
    ///
    /// # Errors
    /// [`CallError`]. Some instances may be deleted anyway.
    pub async fn decrease(&self, ids: &[InstanceId]) -> Result<Vec<InstanceId>, CallError> {
        let process = self.live_process()?;
        process.record_outcome(process.caller.decrease(ids).await)
    }

    /// Returns the connection details of an instance. The call may be slow, and may install a key on the machine.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn connect_info(&self, id: &InstanceId) -> Result<ConnectInfo, CallError> {
        let process = self.live_process()?;
        process.record_outcome(process.caller.connect_info(id).await)
    }

    /// Checks whether the instance is healthy, as far as the provider knows.
    ///
    /// # Errors
    /// [`CallError::Refused`] if the instance is not healthy, or another [`CallError`].
    pub async fn heartbeat(&self, id: &InstanceId) -> Result<(), CallError> {
        let process = self.live_process()?;
        process.record_outcome(process.caller.heartbeat(id).await)
    }

    /// Requests the suspension of instances and returns the accepted ones.
    ///
    /// # Errors
    /// [`CallError::NoCapability`] if the plugin cannot suspend instances, or another [`CallError`].
    pub async fn suspend(&self, ids: &[InstanceId]) -> Result<Vec<InstanceId>, CallError> {
        self.require_suspend()?;
        let process = self.live_process()?;
        process.record_outcome(process.caller.suspend(ids).await)
    }

    /// Requests that instances are resumed and returns the accepted ones.
    ///
    /// # Errors
    /// [`CallError::NoCapability`] if the plugin cannot resume instances, or another [`CallError`].
    pub async fn resume(&self, ids: &[InstanceId]) -> Result<Vec<InstanceId>, CallError> {
        self.require_suspend()?;
        let process = self.live_process()?;
        process.record_outcome(process.caller.resume(ids).await)
    }

    /// Stops the plugin: it cleans up and exits, or is killed after the timeouts.
    /// Instances are not deleted. Calls that are in progress when the process ends fail with [`CallError::Disconnected`].
    pub async fn stop(&self) {
        self.stop.cancel();
        let supervisor = self.supervisor.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(supervisor) = supervisor {
            let _ = supervisor.await;
        }
    }

    /// Returns the parts of the protocol extension that the running process has.
    /// If no process is running, returns the parts that the first process had.
    #[must_use]
    pub fn features(&self) -> Features {
        self.process.borrow().as_ref().map_or(self.info.features, |process| process.features)
    }

    fn require_suspend(&self) -> Result<(), CallError> {
        if self.info.can_suspend {
            return Ok(());
        }
        Err(CallError::NoCapability { plugin: self.name.clone(), capability: SUSPEND_RESUME })
    }

    pub(super) fn live_process(&self) -> Result<Arc<LiveProcess>, CallError> {
        if let Some(process) = &*self.process.borrow() {
            return Ok(Arc::clone(process));
        }
        let cause = match &*self.status.borrow() {
            PluginStatus::Down { cause, .. } => cause.clone(),
            PluginStatus::Up { .. } | PluginStatus::Stopped => "it was stopped".to_owned(),
        };
        Err(CallError::Down { plugin: self.name.clone(), cause })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let supervisor = self.supervisor.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(supervisor) = supervisor {
            // Aborting the task drops the child process, which kills it.
            supervisor.abort();
        }
    }
}

#[derive(Debug)]
pub(super) struct LiveProcess {
    pub(super) caller: Caller,
    /// Canceled when the process must be replaced, because it hangs or its connection broke.
    pub(super) unusable: CancellationToken,
    /// Number of unanswered [`INSTANCE_CALLS`] since the last response.
    pub(super) unanswered: AtomicU32,
    /// Parts of the extension that this process has. Another process may run another version of the plugin.
    pub(super) features: Features,
}

impl LiveProcess {
    /// Marks the process as unusable if a call shows that the process hangs or that its connection broke.
    /// One of the [`INSTANCE_CALLS`] may hang because of an instance, so [`MAX_UNANSWERED_CALLS`] of them in a row must
    /// be unanswered.
    pub(super) fn record_outcome<T>(&self, answer: Result<T, CallError>) -> Result<T, CallError> {
        let is_unusable = match &answer {
            Err(CallError::Disconnected { .. }) => true,
            Err(CallError::Timeout { call, .. }) if INSTANCE_CALLS.contains(call) => {
                self.unanswered.fetch_add(1, Ordering::Relaxed) + 1 >= MAX_UNANSWERED_CALLS
            }
            Err(CallError::Timeout { .. }) => true,
            _ => {
                self.unanswered.store(0, Ordering::Relaxed);
                false
            }
        };
        if is_unusable {
            self.unusable.cancel();
        }
        answer
    }
}
