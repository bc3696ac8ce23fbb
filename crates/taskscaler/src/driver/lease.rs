//! Handles that release a reservation or slots when they are dropped.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use muster_fleeting::model::{ConnectInfo, InstanceId};
use tokio::sync::{mpsc, oneshot, watch};

use super::command::Command;
use super::context::DriverContext;
use super::environments::EnvironmentCommand;
use super::ports::ConnectInfoError;
use crate::engine::{EnqueueError, WaitReason};
use crate::event::Event;
use crate::resources::JobUsage;
use crate::suspend::SuspendError;
use crate::types::{self, GroupId, LossReason, SlotRequest, TaskKey};

/// Error of a request for slots.
#[derive(Debug, thiserror::Error)]
pub enum AcquireError {
    /// No slot became available within the timeout.
    #[error("unable to acquire instance within the configured timeout of {}: {reason}", go_duration(.timeout))]
    Timeout {
        /// The timeout.
        timeout: Duration,
        /// What the request was waiting for.
        reason: String,
    },
    /// The engine refused the request.
    #[error(transparent)]
    Refused(#[from] EnqueueError),
    /// The scaler has shut down.
    #[error("the scaler has shut down")]
    ScalerStopped,
}

/// Error of the plugin's preparation of an instance for a job.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PrepareJobError {
    /// The plugin reported an error.
    #[error("{0}")]
    Plugin(String),
    /// The plugin did not answer within this time.
    #[error("no answer within {} s", .0.as_secs())]
    Timeout(Duration),
}

/// Longer than the engine's own timeout, because the reply also waits for the ledger.
const RESUME_TIMEOUT: Duration = Duration::from_secs(600);

/// Formats a duration as gitlab-runner does in its messages.
fn go_duration(duration: &Duration) -> String {
    let (hours, minutes, seconds) = (duration.as_secs() / 3600, duration.as_secs() / 60 % 60, duration.as_secs() % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, minutes) => format!("{minutes}m{seconds}s"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

/// Describes why a request waited. `None` means that the engine has no details.
fn wait_message(wait: Option<WaitReason>) -> String {
    let Some(wait) = wait else { return "no instance was ready".to_owned() };
    let mut parts = vec![format!(
        "{} {} booting, {} {} ahead in the queue",
        wait.booting,
        if wait.booting == 1 { "instance is" } else { "instances are" },
        wait.requests_ahead,
        if wait.requests_ahead == 1 { "request is" } else { "requests are" }
    )];
    parts.extend(wait.scale_up_blocked);
    parts.join("; ")
}

/// A slot that is reserved for a job. Dropping the handle releases the reservation.
#[derive(Debug)]
pub struct Reservation {
    pub(super) key: TaskKey,
    pub(super) commands: mpsc::UnboundedSender<Command>,
    pub(super) revoked: Arc<AtomicBool>,
    /// Whether dropping the handle must still cancel the reservation.
    pub(super) needs_cancel: bool,
}

impl Reservation {
    /// Returns the task key.
    #[must_use]
    pub fn key(&self) -> &TaskKey {
        &self.key
    }

    /// Returns true if the scaler no longer expects capacity for this reservation.
    ///
    /// [`Self::acquire`] still works, for a job that was already received.
    #[must_use]
    pub fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Relaxed)
    }

    /// Gives the reservation the key of the job that was received.
    #[must_use]
    pub fn with_key(mut self, key: TaskKey) -> Self {
        let from = std::mem::replace(&mut self.key, key.clone());
        let _ = self.commands.send(Command::Rename { from, to: key });
        self
    }

    /// Waits for the environment that another job saved under this name. Dropping the future cancels the request.
    ///
    /// # Errors
    /// Returns [`AcquireError`] if the environment cannot be resumed, after ten minutes at the latest.
    pub async fn resume(mut self, name: String, owner: String) -> Result<LeaseHandle, AcquireError> {
        let (reply, answer) = oneshot::channel();
        let _ = self.commands.send(Command::Environment(EnvironmentCommand::Resume {
            key: self.key.clone(),
            name,
            owner,
            reply,
        }));
        self.await_lease(answer, RESUME_TIMEOUT).await
    }

    /// Waits at most `timeout` (`instance_acquire_timeout`) for the slots of `request`.
    ///
    /// Dropping the future cancels the request and releases the reservation.
    ///
    /// # Errors
    /// Returns [`AcquireError`] if the request times out or is refused, or if the scaler has shut down.
    pub async fn acquire(mut self, request: SlotRequest, timeout: Duration) -> Result<LeaseHandle, AcquireError> {
        let (reply, answer) = oneshot::channel();
        let _ = self.commands.send(Command::Acquire { key: self.key.clone(), request, reply });
        self.await_lease(answer, timeout).await
    }

    async fn await_lease(
        &mut self,
        answer: oneshot::Receiver<Result<LeaseHandle, EnqueueError>>,
        timeout: Duration,
    ) -> Result<LeaseHandle, AcquireError> {
        match tokio::time::timeout(timeout, answer).await {
            Ok(Ok(Ok(lease))) => {
                self.needs_cancel = false;
                Ok(lease)
            }
            Ok(Ok(Err(error))) => Err(error.into()),
            Ok(Err(_)) => Err(AcquireError::ScalerStopped),
            Err(_) => {
                let (reply, answer) = oneshot::channel();
                // `TimedOut` also cancels the reservation.
                self.needs_cancel = false;
                let _ = self.commands.send(Command::TimedOut { key: self.key.clone(), reply });
                Err(AcquireError::Timeout { timeout, reason: wait_message(answer.await.ok().flatten()) })
            }
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.needs_cancel {
            let _ = self.commands.send(Command::Cancel { key: self.key.clone() });
        }
    }
}

/// Slots of an instance that are assigned to a job. Dropping the handle releases the slots.
#[derive(Debug)]
pub struct LeaseHandle {
    pub(super) assignment: types::SlotAssignment,
    pub(super) group_name: String,
    pub(super) shared: Arc<DriverContext>,
    pub(super) lost: watch::Receiver<Option<LossReason>>,
    pub(super) is_detached: bool,
}

impl LeaseHandle {
    /// Returns the task key.
    #[must_use]
    pub fn key(&self) -> &TaskKey {
        &self.assignment.key
    }

    /// Returns the name of the instance's group.
    #[must_use]
    pub fn group(&self) -> &str {
        &self.group_name
    }

    /// Returns the ID of the instance.
    #[must_use]
    pub fn instance(&self) -> &InstanceId {
        &self.assignment.instance
    }

    /// Returns the lowest assigned slot, counted from 0.
    #[must_use]
    pub fn slot(&self) -> u32 {
        self.assignment.slot
    }

    /// Returns the number of assigned slots.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.assignment.slots
    }

    /// Returns the number of jobs that the instance has had, including this job.
    #[must_use]
    pub fn use_number(&self) -> u32 {
        self.assignment.use_number
    }

    /// Returns the connection details of the instance. Waits for the plugin while it is down.
    ///
    /// # Errors
    /// Returns [`ConnectInfoError`] if the plugin fails, or if the plugin or the scaler was stopped.
    pub async fn connect_info(&self) -> Result<ConnectInfo, ConnectInfoError> {
        self.shared.connect_info(self.assignment.group, &self.assignment.instance).await
    }

    /// Lets the plugin prepare the instance for the job. Does nothing if the plugin has no hooks.
    ///
    /// # Errors
    /// Returns [`PrepareJobError`] if the instance cannot run the job. This counts as a failed health check.
    pub async fn prepare_job(&self, timeout: Duration) -> Result<(), PrepareJobError> {
        let Some(plugin) = self.shared.plugin(self.assignment.group).filter(|plugin| plugin.has_hooks()) else {
            return Ok(());
        };
        let call = plugin.prepare_job(&self.assignment.instance, self.assignment.key.as_str());
        let result = match tokio::time::timeout(timeout, call).await {
            Ok(result) => result.map_err(PrepareJobError::Plugin),
            Err(_) => Err(PrepareJobError::Timeout(timeout)),
        };
        if let Err(error) = &result {
            self.report_health(Err(format!("failed to prepare for a job: {error}")));
        }
        result
    }

    /// Lets the plugin clean up after the job, in the background, and then releases the slots.
    ///
    /// Must be called after every job. An error of the plugin counts as a failed health check.
    pub fn finish_job(self) {
        let Some(plugin) = self.shared.plugin(self.assignment.group).filter(|plugin| plugin.has_hooks()) else {
            return;
        };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        // The plugin call has its own timeout.
        runtime.spawn(async move {
            if let Err(error) = plugin.finish_job(&self.assignment.instance, self.assignment.key.as_str()).await {
                tracing::warn!(instance = %self.assignment.instance, job = self.assignment.key.as_str(), error, "plugin failed to clean up after a job");
                self.report_health(Err(format!("the plugin failed to clean up after a job: {error}")));
            }
        });
    }

    /// Waits until the instance is lost. Never returns if the lease was released or the scaler has ended.
    pub fn lost(&self) -> impl Future<Output = LossReason> + Send + use<> {
        let mut lost = self.lost.clone();
        async move {
            let reason = lost.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
            match reason {
                Some(reason) => reason,
                None => std::future::pending().await,
            }
        }
    }

    /// Reports a broken connection. The scaler then checks the instance immediately.
    pub fn report_connection_lost(&self) {
        self.shared.send_event(Event::ConnectionLost { key: self.assignment.key.clone() });
    }

    /// Reports the health of the instance.
    ///
    /// The instance is replaced after `failure_threshold` consecutive failures.
    pub fn report_health(&self, result: Result<(), String>) {
        let (group, id): (GroupId, InstanceId) = (self.assignment.group, self.assignment.instance.clone());
        self.shared.send_event(Event::Health { group, id, result });
    }

    /// Retires an instance that does not respond: it gets no more jobs and is deleted after its last job.
    pub fn retire_instance(&self, reason: String) {
        let (group, id) = (self.assignment.group, self.assignment.instance.clone());
        self.shared.send_event(Event::Retire { group, id, reason });
    }

    /// Reports the job's resource usage.
    pub fn report_usage(&self, usage: JobUsage) {
        self.shared.send_event(Event::JobUsage { key: self.assignment.key.clone(), usage });
    }

    /// Checks whether the instance can be suspended after the job. `None` means that the scaler has shut down.
    pub async fn can_suspend(&self) -> Option<Result<(), SuspendError>> {
        let (reply, answer) = oneshot::channel();
        self.shared
            .send(Command::Environment(EnvironmentCommand::MaySuspend { key: self.assignment.key.clone(), reply }));
        answer.await.ok()
    }

    /// Ends the lease, and suspends the instance for a later job of `owner`.
    ///
    /// The later job resumes the instance by this lease's key. Returns once the ledger contains the change. `None`
    /// means that the scaler has shut down.
    pub async fn suspend(&self, owner: String) -> Option<Result<(), SuspendError>> {
        let (reply, answer) = oneshot::channel();
        self.shared.send(Command::Environment(EnvironmentCommand::Suspend {
            key: self.assignment.key.clone(),
            owner,
            reply,
        }));
        answer.await.ok()
    }

    /// Drops the handle without releasing the slots. The next start of the manager can claim the lease.
    pub fn leave_to_next_start(mut self) {
        self.is_detached = true;
    }
}

impl Drop for LeaseHandle {
    fn drop(&mut self) {
        if !self.is_detached {
            self.shared.send_event(Event::Release { key: self.assignment.key.clone() });
        }
    }
}
