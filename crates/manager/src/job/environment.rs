//! The execution environment that a job holds, as a state machine.
//!
//! ```text
//!                            +------------- unassign (rescheduled) -----------+
//!                            v                                                |
//! row without a lease -> Unassigned --assign--> Leased --retire--> Unresponsive
//!                                                ^ |  |
//! row with a lease ---> Restoring --restored-----+ |  +--suspend--> Closed | Suspended
//!                           |                      |
//!                           +--failed--> Lost      +--release_slot--> Released
//!
//! row of a job whose slot was released before the restart --> Released | Lost
//! ```
//!
//! An interrupted restore returns to `Unassigned`. In `Unassigned`, `Restoring` and `Lost` the agent may still have the
//! job. The manager then finds the agent by the lease record in the job's row, and closes the job there.

use std::sync::Arc;
use std::time::Duration;

use muster_agent_api::client;
use muster_executor::{ExecutionEnvironment, Executor, ExecutorError, Lease, Replaceable};
use tokio_util::task::AbortOnDropHandle;

use super::CLOSE_TIMEOUT;
use super::early_release::ReleasedEnvironment;

/// Reason why an environment of an executor that cannot suspend any is not suspended.
pub(super) const NOT_SUSPENDABLE: &str = "the executor does not run jobs on instances";

/// The execution environment that a job holds. The module documentation shows the transitions.
#[derive(Default)]
pub(super) enum JobEnvironment {
    /// No lease is held: the job waits for one, or does not need one.
    #[default]
    Unassigned,
    /// The lease of an earlier manager process is being restored.
    Restoring(AbortOnDropHandle<Result<Lease, ExecutorError>>),
    /// The job holds a slot of the environment and uses its agent.
    Leased(Lease),
    /// The job holds the slot, but its agent stopped responding and is no longer contacted.
    Unresponsive(Lease),
    /// The job was closed at its agent, and its environment could not be suspended.
    /// `None` if the lease was lost before.
    Closed(Option<Lease>),
    /// The environment is suspended for a later job.
    /// Its scaler has ended the lease, so the lease is not released. `None` if an earlier manager process suspended the environment.
    Suspended(Option<Lease>),
    /// The slot was released and may belong to another job.
    /// The agent still keeps this job's log and result.
    Released(ReleasedEnvironment),
    /// The environment of an earlier manager process cannot be used, for this reason.
    Lost(String),
}

impl JobEnvironment {
    pub(super) fn assign(&mut self, lease: Lease) {
        *self = Self::Leased(lease);
    }

    /// Waits until the lease of an earlier manager process is restored, or until the restore fails.
    ///
    /// The future may be dropped at any time. The caller must then call [`Self::abandon_restore`].
    pub(super) async fn wait_restored(&mut self, timeout: Duration) {
        let Self::Restoring(task) = self else { return };
        let error = match tokio::time::timeout(timeout, task).await {
            Ok(Ok(Ok(lease))) => {
                *self = Self::Leased(lease);
                return;
            }
            Ok(Ok(Err(error))) => error.to_string(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("the environment of the job was not restored within {} s", timeout.as_secs()),
        };
        tracing::warn!(error, "failed to restore the lease, the job continues without a counted slot");
        *self = Self::Lost(error);
    }

    /// Ends a restore that is still running.
    pub(super) fn abandon_restore(&mut self) {
        if matches!(self, Self::Restoring(_)) {
            *self = Self::Unassigned;
        }
    }

    /// Releases the slot, so that the job can get another one.
    pub(super) fn unassign(&mut self) {
        if let Some(lease) = std::mem::take(self).into_lease() {
            lease.release();
        }
    }

    /// Releases the slot for other jobs, after the job has ended in the environment `released`.
    pub(super) fn release_slot(&mut self, released: ReleasedEnvironment) {
        if let Some(lease) = std::mem::replace(self, Self::Released(released)).into_lease() {
            lease.release();
        }
    }

    /// Keeps other jobs away from an environment that does not respond.
    ///
    /// If `is_remote` is true, the agent is not contacted again. An agent of this host may only be slow, and must still end the job.
    pub(super) fn retire(&mut self, reason: &str, is_remote: bool) {
        if let Some(environment) = self.lease().and_then(|lease| lease.environment.replaceable()) {
            environment.retire(reason);
        }
        *self = match std::mem::take(self) {
            Self::Leased(lease) if is_remote => Self::Unresponsive(lease),
            other => other,
        };
    }

    /// Closes the job at its agent and suspends the environment for later jobs of `owner`.
    ///
    /// A manager that was killed may have suspended the environment already. The scaler then knows the environment by `task_key`.
    ///
    /// # Errors
    /// The reason why the environment is not suspended, for the job's trace.
    pub(super) async fn suspend(&mut self, request: SuspendRequest<'_>) -> Result<(), String> {
        let mut suspended = Err("the instance was lost".to_owned());
        if let (Some(lease), Some(id)) = (self.lease(), request.run_id) {
            let closed = client::close(lease.environment.as_ref(), &id, request.agent_reconnect_timeout);
            if !matches!(tokio::time::timeout(CLOSE_TIMEOUT, closed).await, Ok(Ok(()))) {
                tracing::warn!("failed to close the job at its agent, the agent removes it after its retention");
            }
            suspended = match lease.environment.suspendable() {
                Some(environment) => tokio::time::timeout(CLOSE_TIMEOUT, environment.suspend(request.owner))
                    .await
                    .unwrap_or_else(|_| Err(format!("the scaler did not answer within {} s", CLOSE_TIMEOUT.as_secs()))),
                None => Err(NOT_SUSPENDABLE.to_owned()),
            };
        }
        let lease = std::mem::take(self).into_lease();
        if suspended.is_err()
            && let Some(executor) = request.executor.elastic()
        {
            let has_suspended = executor.has_suspended_environment(request.task_key);
            if tokio::time::timeout(CLOSE_TIMEOUT, has_suspended).await.unwrap_or_default() {
                suspended = Ok(());
            }
        }
        *self = if suspended.is_ok() { Self::Suspended(lease) } else { Self::Closed(lease) };
        suspended
    }

    /// Ends the job's use of the environment: a lease that is still held is released.
    pub(super) fn finish(&mut self) {
        match std::mem::take(self) {
            Self::Suspended(lease) => drop(lease),
            other => {
                if let Some(lease) = other.into_lease() {
                    lease.release();
                }
            }
        }
    }

    /// Returns the lease that the job holds.
    pub(super) fn lease(&self) -> Option<&Lease> {
        match self {
            Self::Leased(lease) | Self::Unresponsive(lease) => Some(lease),
            Self::Closed(lease) | Self::Suspended(lease) => lease.as_ref(),
            Self::Unassigned | Self::Restoring(_) | Self::Released(_) | Self::Lost(_) => None,
        }
    }

    /// Returns the lease that the job holds, and drops everything else.
    pub(super) fn into_lease(self) -> Option<Lease> {
        match self {
            Self::Leased(lease) | Self::Unresponsive(lease) => Some(lease),
            Self::Closed(lease) | Self::Suspended(lease) => lease,
            Self::Unassigned | Self::Restoring(_) | Self::Released(_) | Self::Lost(_) => None,
        }
    }

    /// Returns the environment that has the job, whether the job still holds a slot of it or not.
    pub(super) fn current(&self) -> Option<Arc<dyn ExecutionEnvironment>> {
        match self {
            Self::Released(released) => Some(released.environment()),
            _ => self.lease().map(|lease| Arc::clone(&lease.environment)),
        }
    }

    /// Returns whether the agent still has to close the job.
    pub(super) fn must_close(&self) -> bool {
        !matches!(self, Self::Unresponsive(_) | Self::Closed(_) | Self::Suspended(_))
    }

    /// Returns why the job has no lease, for the job's trace.
    pub(super) fn missing_reason(&self) -> String {
        match self {
            Self::Lost(reason) => reason.clone(),
            _ => "the slot of the job was lost".to_owned(),
        }
    }
}

pub(super) struct SuspendRequest<'a> {
    /// ID of the job's run at the agent. `None` means that no agent can know the job.
    pub(super) run_id: Option<String>,
    /// Owner whose later jobs may resume the environment.
    pub(super) owner: &'a str,
    /// Key of the job's lease in the scaler's ledger.
    pub(super) task_key: &'a str,
    pub(super) executor: &'a dyn Executor,
    pub(super) agent_reconnect_timeout: Duration,
}

/// Returns how long the environment may stay unresponsive.
/// `None` means as long as the manager's settings allow.
pub(super) fn unresponsive_timeout(environment: &dyn ExecutionEnvironment) -> Option<Duration> {
    environment.replaceable().map(Replaceable::unresponsive_timeout)
}
