//! Reservations and leases, as their holders see them.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use muster_fleeting::model::{ConnectInfo, InstanceId};
use tokio::sync::{mpsc, oneshot, watch};

use super::command::Command;
use super::context::DriverContext;
use super::environments::EnvironmentQuery;
use crate::engine::{EnqueueError, WaitReason};
use crate::event::Event;
use crate::resources::JobUsage;
use crate::suspend::SuspendError;
use crate::types::{self, GroupId, LossReason, SlotRequest, TaskKey};

/// Why there is no lease.
#[derive(Debug, thiserror::Error)]
pub enum AcquireError {
    /// None in time.
    #[error("unable to acquire instance within the configured timeout of {}: {why}", go_duration(.limit))]
    Timeout {
        /// The time it had.
        limit: Duration,
        /// What it waited for.
        why: String,
    },
    /// The engine refuses.
    #[error(transparent)]
    Refused(#[from] EnqueueError),
    /// The scaler ended.
    #[error("the taskscaler has ended")]
    Ended,
}

/// For an environment to be resumed. The engine has a shorter one, but what it grants waits for the books.
const RESUME_TIMEOUT: Duration = Duration::from_secs(600);

/// As gitlab-runner writes durations.
fn go_duration(duration: &Duration) -> String {
    let (hours, minutes, seconds) = (duration.as_secs() / 3600, duration.as_secs() / 60 % 60, duration.as_secs() % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, minutes) => format!("{minutes}m{seconds}s"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

/// What a request waits for, in words.
fn reason(wait: Option<WaitReason>) -> String {
    let Some(wait) = wait else { return "no instance was ready".to_owned() };
    let mut parts =
        vec![format!("{} instances boot, {} requests are before this one", wait.booting, wait.queue_position)];
    parts.extend(wait.scale_up_blocked);
    parts.join("; ")
}

/// The promise of a slot. Dropped, it is given back.
#[derive(Debug)]
pub struct Reservation {
    pub(super) key: TaskKey,
    pub(super) commands: mpsc::UnboundedSender<Command>,
    pub(super) revoked: Arc<AtomicBool>,
    pub(super) used: bool,
}

impl Reservation {
    /// Its key.
    #[must_use]
    pub fn key(&self) -> &TaskKey {
        &self.key
    }

    /// Nothing stands behind it any more: it is to be dropped, and no job requested for it. One that a job has come for is
    /// good nevertheless. [`super::Scaler::room`] changes when promises are withdrawn.
    #[must_use]
    pub fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Relaxed)
    }

    /// The same promise under another key: the one of the job that it turned out to be for.
    #[must_use]
    pub fn with_key(mut self, key: TaskKey) -> Self {
        let from = std::mem::replace(&mut self.key, key.clone());
        let _ = self.commands.send(Command::Rename { from, to: key });
        self
    }

    /// Waits for the environment of this name, which another job left; the promise is given back. Dropped, it waits no longer.
    ///
    /// # Errors
    /// [`AcquireFailure`]; within about five minutes, or ten where the books cannot be written.
    pub async fn resume(mut self, name: String, owner: String) -> Result<LeaseHandle, AcquireError> {
        let (reply, answer) = oneshot::channel();
        let _ = self.commands.send(Command::Environment(EnvironmentQuery::Resume {
            key: self.key.clone(),
            name,
            owner,
            reply,
        }));
        self.answered(answer, RESUME_TIMEOUT).await
    }

    /// Waits for what a job asks for, at most for `limit` (`instance_acquire_timeout`). Dropped, it waits no longer, and the
    /// reservation is given back.
    ///
    /// # Errors
    /// [`AcquireFailure`].
    pub async fn acquire(mut self, request: SlotRequest, limit: Duration) -> Result<LeaseHandle, AcquireError> {
        let (reply, answer) = oneshot::channel();
        let _ = self.commands.send(Command::Acquire { key: self.key.clone(), request, reply });
        self.answered(answer, limit).await
    }

    async fn answered(
        &mut self,
        answer: oneshot::Receiver<Result<LeaseHandle, EnqueueError>>,
        limit: Duration,
    ) -> Result<LeaseHandle, AcquireError> {
        match tokio::time::timeout(limit, answer).await {
            Ok(Ok(Ok(lease))) => {
                self.used = true;
                Ok(lease)
            }
            Ok(Ok(Err(error))) => Err(error.into()),
            Ok(Err(_)) => Err(AcquireError::Ended),
            Err(_) => {
                let (reply, answer) = oneshot::channel();
                let _ = self.commands.send(Command::TimedOut { key: self.key.clone(), reply });
                Err(AcquireError::Timeout { limit, why: reason(answer.await.ok().flatten()) })
            }
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if !self.used {
            let _ = self.commands.send(Command::GiveUp { key: self.key.clone() });
        }
    }
}

/// A job's right to one slot of one instance. Dropped, the slot is free.
#[derive(Debug)]
pub struct LeaseHandle {
    pub(super) inner: types::SlotAssignment,
    pub(super) group_name: String,
    pub(super) shared: Arc<DriverContext>,
    pub(super) lost: watch::Receiver<Option<LossReason>>,
    pub(super) is_left: bool,
}

impl LeaseHandle {
    /// Its key, by which a later start of the manager claims it.
    #[must_use]
    pub fn key(&self) -> &TaskKey {
        &self.inner.key
    }

    /// The instance's group, by its name.
    #[must_use]
    pub fn group(&self) -> &str {
        &self.group_name
    }

    /// The instance.
    #[must_use]
    pub fn instance(&self) -> &InstanceId {
        &self.inner.instance
    }

    /// The slot, from 0.
    #[must_use]
    pub fn slot(&self) -> u32 {
        self.inner.slot
    }

    /// How many slots it holds, that one included.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.inner.slots
    }

    /// How many jobs the instance has had, with this one.
    #[must_use]
    pub fn use_number(&self) -> u32 {
        self.inner.use_number
    }

    /// How to reach the instance; asked for again where the details end within ten seconds. While the plugin is down, it waits
    /// for it: a job that runs there does not need the plugin.
    ///
    /// # Errors
    /// The plugin's words; or it ended at each of some times, or for good.
    pub async fn connect_info(&self) -> Result<ConnectInfo, String> {
        self.shared.connect_info(self.inner.group, &self.inner.instance).await
    }

    /// Before its job runs: what the plugin does then, where it does anything.
    ///
    /// # Errors
    /// The plugin's words, or that it did not answer within `limit`: the job cannot run there.
    pub async fn prepare_job(&self, limit: Duration) -> Result<(), String> {
        let Some(host) = self.shared.host(self.inner.group).filter(|host| host.has_hooks()) else { return Ok(()) };
        let prepared = host.prepare_job(&self.inner.instance, self.inner.key.as_str());
        let prepared = tokio::time::timeout(limit, prepared).await;
        let result = prepared.unwrap_or_else(|_| Err(format!("no answer within {} s", limit.as_secs())));
        if let Err(error) = &result {
            self.health(Err(format!("it could not be prepared for a job: {error}")));
        }
        result
    }

    /// Its job is over, however it ended: what the plugin does then, where it does anything, and then the slot is free. An error
    /// of the plugin counts against the instance's health.
    pub fn finish_job(self) {
        let Some(host) = self.shared.host(self.inner.group).filter(|host| host.has_hooks()) else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        // Bounded by the limit of the call; the slot is held meanwhile.
        runtime.spawn(async move {
            if let Err(error) = host.finish_job(&self.inner.instance, self.inner.key.as_str()).await {
                tracing::warn!(instance = %self.inner.instance, job = self.inner.key.as_str(), error, "the plugin could not finish after a job");
                self.health(Err(format!("the plugin could not finish after a job: {error}")));
            }
        });
    }

    /// Ends when the instance is lost, with how that was seen. A lease that is released or whose scaler ended never is.
    pub fn lost(&self) -> impl Future<Output = LossReason> + Send + use<> {
        let mut lost = self.lost.clone();
        async move {
            let loss = lost.wait_for(Option::is_some).await.ok().and_then(|loss| loss.clone());
            match loss {
                Some(loss) => loss,
                None => std::future::pending().await,
            }
        }
    }

    /// The connection to the instance broke: the provider and the instance are asked about it at once.
    pub fn connection_lost(&self) {
        self.shared.send_event(Event::ConnectionLost { key: self.inner.key.clone() });
    }

    /// A job found the instance well, or not; after `failure_threshold` failures in a row it is replaced.
    pub fn health(&self, result: Result<(), String>) {
        let (group, id): (GroupId, InstanceId) = (self.inner.group, self.inner.instance.clone());
        self.shared.send_event(Event::Health { group, id, result });
    }

    /// The instance answers nothing: it gets no more jobs, and goes when those that it has are over.
    pub fn retire_instance(&self, why: String) {
        let (group, id) = (self.inner.group, self.inner.instance.clone());
        self.shared.send_event(Event::Retire { group, id, reason: why });
    }

    /// What the job used: later jobs of its kind are placed by that.
    pub fn report_usage(&self, used: JobUsage) {
        self.shared.send_event(Event::JobUsage { key: self.inner.key.clone(), usage: used });
    }

    /// Whether the instance could be suspended when the job has ended; none where the scaler has ended.
    pub async fn can_suspend(&self) -> Option<Result<(), SuspendError>> {
        let (reply, answer) = oneshot::channel();
        self.shared.send(Command::Environment(EnvironmentQuery::MaySuspend { key: self.inner.key.clone(), reply }));
        answer.await.ok()
    }

    /// The job has ended, and what it left is kept for a later job of `owner`, by the name of the lease's key: the lease has
    /// ended, and that is in the books. None where the scaler has ended.
    pub async fn suspend(&self, owner: String) -> Option<Result<(), SuspendError>> {
        let (reply, answer) = oneshot::channel();
        self.shared.send(Command::Environment(EnvironmentQuery::Suspend { key: self.inner.key.clone(), owner, reply }));
        answer.await.ok()
    }

    /// Leaves the lease to the next start of the manager: the slot stays held, in the books too.
    pub fn leave_to_next_start(mut self) {
        self.is_left = true;
    }
}

impl Drop for LeaseHandle {
    fn drop(&mut self) {
        if !self.is_left {
            self.shared.send_event(Event::Release { key: self.inner.key.clone() });
        }
    }
}
