//! Commands for suspended environments, which jobs save for later jobs.

use tokio::sync::oneshot;

use super::lease::LeaseHandle;
use super::task::ScalerTask;
use crate::engine::EnqueueError;
use crate::event::Event;
use crate::suspend::{ResumeError, SuspendError};
use crate::time::Now;
use crate::types::{GroupId, TaskKey};

/// Channel for the reply to a suspend command. The reply is sent once the ledger contains the environment.
pub(super) type SuspendReply = oneshot::Sender<Result<(), SuspendError>>;

/// A command about a suspended environment.
#[derive(Debug)]
pub(super) enum EnvironmentQuery {
    /// Resume the environment with this name for a job.
    Resume { key: TaskKey, name: String, owner: String, reply: oneshot::Sender<Result<LeaseHandle, EnqueueError>> },
    /// Check whether the environment of a lease could be suspended.
    MaySuspend { key: TaskKey, reply: SuspendReply },
    /// Suspend the environment of a lease.
    Suspend { key: TaskKey, owner: String, reply: SuspendReply },
    /// Check whether an environment with this name exists.
    Has { name: String, reply: oneshot::Sender<bool> },
}

impl ScalerTask {
    pub(super) fn handle_environment_query(&mut self, now: Now, query: EnvironmentQuery) {
        for group in (0..self.engine.config().groups.len()).map(GroupId) {
            if let Some(can) = self.shared.host(group).and_then(|host| host.can_suspend()) {
                self.engine.handle(now, Event::CanSuspend { group, can });
            }
        }
        match query {
            EnvironmentQuery::Resume { key, name, owner, reply } => {
                self.reservations.remove(&key);
                match self.engine.resume(now, key.clone(), &name, &owner) {
                    Ok(()) => {
                        self.waiting.insert(key, reply);
                    }
                    Err(error) => {
                        let _ = reply.send(Err(error.into()));
                    }
                }
            }
            EnvironmentQuery::MaySuspend { key, reply } => {
                let _ = reply.send(self.engine.may_suspend(&key));
            }
            EnvironmentQuery::Suspend { key, owner, reply } => match self.engine.suspend(now, &key, &owner) {
                Ok(()) => {
                    self.losses.remove(&key);
                    self.suspending.insert(key, reply);
                }
                Err(error) => {
                    let _ = reply.send(Err(error));
                }
            },
            EnvironmentQuery::Has { name, reply } => {
                let _ = reply.send(self.engine.has_environment(&name));
            }
        }
    }

    /// Confirms a suspend command, because the ledger contains the environment now.
    pub(super) fn environment_saved(&mut self, key: &TaskKey) {
        if let Some(reply) = self.suspending.remove(key) {
            let _ = reply.send(Ok(()));
        }
    }

    pub(super) fn resume_failed(&mut self, key: &TaskKey, error: ResumeError) {
        if let Some(reply) = self.waiting.remove(key) {
            let _ = reply.send(Err(error.into()));
        }
    }
}
