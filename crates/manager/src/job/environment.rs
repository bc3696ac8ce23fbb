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
//! `unassign` also leads from `Leased` and `Lost` to `Unassigned`, and `abandon_restore` leads from `Restoring` to
//! `Unassigned`.
//!
//! In `Unassigned`, `Restoring` and `Lost`, an agent may still have the job. The clean-up finds that agent by the lease
//! record in the job's row.

use std::sync::Arc;
use std::time::Duration;

use muster_agent_api::client;
use muster_executor::{ExecutionEnvironment, Executor, ExecutorError, Lease, Replaceable};
use tokio_util::task::AbortOnDropHandle;

use super::CLOSE_TIMEOUT;
use super::early_release::ReleasedEnvironment;

/// Reason why an environment cannot be suspended if its executor does not support that.
pub(super) const NOT_SUSPENDABLE: &str = "the executor does not run jobs on instances";

/// The module documentation shows the transitions.
#[derive(Default)]
pub(super) enum JobEnvironment {
    /// The job waits for a lease, or needs none.
    #[default]
    Unassigned,
    Restoring(AbortOnDropHandle<Result<Lease, ExecutorError>>),
    Leased(Lease),
    /// The agent is no longer contacted.
    Unresponsive(Lease),
    /// Closed at the agent without suspension. `None` if the lease was lost before.
    Closed(Option<Lease>),
    /// Suspended for a later job. `None` if an earlier manager process held the lease.
    Suspended(Option<Lease>),
    /// The slot may belong to another job, but the agent keeps log and result.
    Released(ReleasedEnvironment),
    /// The environment cannot be used, for this reason.
    Lost(String),
}

impl JobEnvironment {
    pub(super) fn assign(&mut self, lease: Lease) {
        *self = Self::Leased(lease);
    }

    /// If the future is dropped, the caller must call [`Self::abandon_restore`].
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

    pub(super) fn abandon_restore(&mut self) {
        if matches!(self, Self::Restoring(_)) {
            *self = Self::Unassigned;
        }
    }

    pub(super) fn unassign(&mut self) {
        if let Some(lease) = std::mem::take(self).into_lease() {
            lease.release();
        }
    }

    pub(super) fn release_slot(&mut self, released: ReleasedEnvironment) {
        if let Some(lease) = std::mem::replace(self, Self::Released(released)).into_lease() {
            lease.release();
        }
    }

    /// Keeps other jobs away from an environment that does not respond.
    ///
    /// A remote agent is not contacted again. A local one may only be slow, and must still end the job.
    pub(super) fn retire(&mut self, reason: &str, is_remote: bool) {
        if let Some(environment) = self.lease().and_then(|lease| lease.environment.replaceable()) {
            environment.retire(reason);
        }
        *self = match std::mem::take(self) {
            Self::Leased(lease) if is_remote => Self::Unresponsive(lease),
            other => other,
        };
    }

    /// Closes the job at its agent, and suspends the environment for later jobs of `owner`.
    ///
    /// If that fails, asks the scaler whether an earlier manager process, which was killed, has already suspended the
    /// environment of the lease `task_key`. If so, returns `Ok`. The error is for the job's trace.
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

    /// Ends the use of the environment, and releases a lease that is still held.
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

    pub(super) fn lease(&self) -> Option<&Lease> {
        match self {
            Self::Leased(lease) | Self::Unresponsive(lease) => Some(lease),
            Self::Closed(lease) | Self::Suspended(lease) => lease.as_ref(),
            Self::Unassigned | Self::Restoring(_) | Self::Released(_) | Self::Lost(_) => None,
        }
    }

    pub(super) fn into_lease(self) -> Option<Lease> {
        match self {
            Self::Leased(lease) | Self::Unresponsive(lease) => Some(lease),
            Self::Closed(lease) | Self::Suspended(lease) => lease,
            Self::Unassigned | Self::Restoring(_) | Self::Released(_) | Self::Lost(_) => None,
        }
    }

    /// Returns the environment whose agent has the job, even without a slot there.
    pub(super) fn current(&self) -> Option<Arc<dyn ExecutionEnvironment>> {
        match self {
            Self::Released(released) => Some(released.environment()),
            _ => self.lease().map(|lease| Arc::clone(&lease.environment)),
        }
    }

    /// Returns whether the job may still have to be closed at its agent.
    pub(super) fn must_close(&self) -> bool {
        !matches!(self, Self::Unresponsive(_) | Self::Closed(_) | Self::Suspended(_))
    }

    /// Returns why the job has no lease, for its trace.
    pub(super) fn missing_reason(&self) -> String {
        match self {
            Self::Lost(reason) => reason.clone(),
            _ => "the slot of the job was lost".to_owned(),
        }
    }
}

pub(super) struct SuspendRequest<'a> {
    /// ID of the run. `None` means that no agent can know the job.
    pub(super) run_id: Option<String>,
    /// Owner whose later jobs may resume the environment.
    pub(super) owner: &'a str,
    /// Key of the lease in the scaler's ledger.
    pub(super) task_key: &'a str,
    pub(super) executor: &'a dyn Executor,
    pub(super) agent_reconnect_timeout: Duration,
}

/// Returns the environment's own limit for an unresponsive agent. `None` means that the manager's setting applies.
pub(super) fn unresponsive_timeout(environment: &dyn ExecutionEnvironment) -> Option<Duration> {
    environment.replaceable().map(Replaceable::unresponsive_timeout)
}
