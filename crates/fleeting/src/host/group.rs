//! The handle of a running plugin.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::call::{CallError, Caller, Snapshot};
use super::supervisor::{Running, Supervisor};
use super::{PluginSpec, StartError};
use crate::model::Features;
use crate::model::{ConnectInfo, GroupInfo, InstanceId};
use crate::protocol::SUSPEND_RESUME;

/// Calls about one instance.
const ABOUT_ONE: [&str; 6] = ["ConnectInfo", "Heartbeat", "HostKeys", "Prepare", "Finish", "Resources"];
/// So many of those without an answer, and no other answer between them, are a plugin that hangs.
const LATE_MAX: u32 = 3;

/// Whether a plugin can be called.
#[derive(Debug, Clone)]
pub enum Status {
    /// It runs.
    Up {
        /// Its process.
        pid: u32,
    },
    /// It does not; it is started again by itself.
    Down {
        /// Why it went, or why its last start failed.
        cause: String,
        /// Failed starts in a row.
        failures: u32,
    },
    /// It was stopped.
    Stopped,
}

/// An instance group: a plugin that runs, and is kept running. Dropped without [`Self::stop`], the process is killed.
#[derive(Debug)]
pub struct Group {
    name: String,
    info: GroupInfo,
    running: watch::Receiver<Running>,
    status: watch::Receiver<Status>,
    stop: CancellationToken,
    supervisor: Mutex<Option<JoinHandle<()>>>,
}

impl Group {
    /// Starts the plugin and gives it its settings. Only here is a failure the caller's: settings that are refused are
    /// not tried again. Must be called within a runtime, on a thread that lives as long as the process.
    ///
    /// # Errors
    /// [`StartError`]; no process is left.
    pub async fn start(spec: PluginSpec) -> Result<Self, StartError> {
        let name = spec.name();
        spec.connector.check().map_err(|source| StartError::Settings { path: spec.executable.clone(), source })?;
        let stop = CancellationToken::new();
        let (supervisor, info) = Supervisor::start(spec, stop.clone()).await?;
        let (running, status) = (supervisor.running(), supervisor.status());
        tracing::info!(
            plugin = name,
            group = info.id,
            version = info.version,
            max_size = info.max_size,
            "plugin started"
        );
        Ok(Self { name, info, running, status, stop, supervisor: Mutex::new(Some(tokio::spawn(supervisor.run()))) })
    }

    /// The plugin's name for people.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the plugin said of itself at its first start.
    #[must_use]
    pub fn info(&self) -> &GroupInfo {
        &self.info
    }

    /// Whether it can be called, and each change of that.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.clone()
    }

    /// All instances of the group. An error half way gives nothing.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn update(&self) -> Result<Snapshot, CallError> {
        let caller = self.caller()?;
        self.heed(&caller, caller.caller.update().await)
    }

    /// Asks for `n` more; how many requests were accepted, at most `n`.
    ///
    /// # Errors
    /// [`CallError`]: unless it is [`CallError::NoCapability`], some may have been made nevertheless.
    pub async fn increase(&self, n: u32) -> Result<u32, CallError> {
        let caller = self.caller()?;
        self.heed(&caller, caller.caller.increase(n).await)
    }

    /// Asks to remove exactly these; those whose removal was accepted.
    ///
    /// # Errors
    /// [`CallError`]: some may be going nevertheless.
    pub async fn decrease(&self, ids: &[InstanceId]) -> Result<Vec<InstanceId>, CallError> {
        let caller = self.caller()?;
        self.heed(&caller, caller.caller.decrease(ids).await)
    }

    /// How to reach an instance. May be slow, and may put a key on the machine.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn connect_info(&self, id: &InstanceId) -> Result<ConnectInfo, CallError> {
        let caller = self.caller()?;
        self.heed(&caller, caller.caller.connect_info(id).await)
    }

    /// Whether the instance is well, as far as the provider can say.
    ///
    /// # Errors
    /// [`CallError::Refused`] where it is not.
    pub async fn heartbeat(&self, id: &InstanceId) -> Result<(), CallError> {
        let caller = self.caller()?;
        self.heed(&caller, caller.caller.heartbeat(id).await)
    }

    /// Puts instances to sleep; those for which that was accepted.
    ///
    /// # Errors
    /// [`CallError::NoCapability`] where the plugin cannot; else [`CallError`].
    pub async fn suspend(&self, ids: &[InstanceId]) -> Result<Vec<InstanceId>, CallError> {
        self.need_suspend()?;
        let caller = self.caller()?;
        self.heed(&caller, caller.caller.suspend(ids).await)
    }

    /// Wakes instances; those for which that was accepted.
    ///
    /// # Errors
    /// [`CallError::NoCapability`] where the plugin cannot; else [`CallError`].
    pub async fn resume(&self, ids: &[InstanceId]) -> Result<Vec<InstanceId>, CallError> {
        self.need_suspend()?;
        let caller = self.caller()?;
        self.heed(&caller, caller.caller.resume(ids).await)
    }

    /// Stops the plugin: it cleans up after itself, then its process ends, at the latest after the limits. No instance
    /// is removed by this. Calls that are under way meanwhile end as with a plugin that is down.
    pub async fn stop(&self) {
        self.stop.cancel();
        let supervisor = self.supervisor.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(supervisor) = supervisor {
            let _ = supervisor.await;
        }
    }

    /// Which parts of the extension the plugin has: those of its process, or where there is none, of the first one.
    #[must_use]
    pub fn features(&self) -> Features {
        match &*self.running.borrow() {
            Running::Up(callable) => callable.features,
            Running::Down => self.info.features,
        }
    }

    fn need_suspend(&self) -> Result<(), CallError> {
        if self.info.can_suspend {
            return Ok(());
        }
        Err(CallError::NoCapability { plugin: self.name.clone(), capability: SUSPEND_RESUME })
    }

    pub(super) fn caller(&self) -> Result<Arc<Callable>, CallError> {
        if let Running::Up(callable) = &*self.running.borrow() {
            return Ok(Arc::clone(callable));
        }
        let cause = match &*self.status.borrow() {
            Status::Down { cause, .. } => cause.clone(),
            Status::Up { .. } | Status::Stopped => "it was stopped".to_owned(),
        };
        Err(CallError::Down { plugin: self.name.clone(), cause })
    }

    /// A call about the whole group without an answer means a plugin that hangs: its process is replaced. A call about one
    /// instance may hang with that instance, and other calls are under way: [`LATE_MAX`] in a row say the same.
    #[expect(clippy::unused_self, reason = "reads as a sentence")]
    pub(super) fn heed<T>(&self, callable: &Callable, answer: Result<T, CallError>) -> Result<T, CallError> {
        let hangs = match &answer {
            Err(CallError::Broken { .. }) => true,
            Err(CallError::Deadline { call, .. }) if ABOUT_ONE.contains(call) => {
                callable.late.fetch_add(1, Ordering::Relaxed) + 1 >= LATE_MAX
            }
            Err(CallError::Deadline { .. }) => true,
            _ => {
                callable.late.store(0, Ordering::Relaxed);
                false
            }
        };
        if hangs {
            callable.hung.cancel();
        }
        answer
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let supervisor = self.supervisor.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(supervisor) = supervisor {
            // The process is killed with the child that the task holds.
            supervisor.abort();
        }
    }
}

/// A process that can be called.
#[derive(Debug)]
pub(super) struct Callable {
    pub(super) caller: Caller,
    /// It hangs: its process is to be replaced.
    pub(super) hung: CancellationToken,
    /// Calls about one instance that had no answer, since the last answer.
    pub(super) late: AtomicU32,
    /// What this process offers beside the protocol: another one may be of another version.
    pub(super) features: Features,
}
