//! Commands about suspended environments.

use tokio::sync::oneshot;

use super::lease::LeaseHandle;
use super::task::ScalerTask;
use crate::engine::EnqueueError;
use crate::event::Event;
use crate::suspend::{ResumeError, SuspendError};
use crate::time::Now;
use crate::types::{GroupId, TaskKey};

/// A successful suspend is confirmed only after the ledger contains the environment.
pub(super) type SuspendReply = oneshot::Sender<Result<(), SuspendError>>;

#[derive(Debug)]
pub(super) enum EnvironmentCommand {
    /// Resumes an environment for the job `key`.
    Resume {
        key: TaskKey,
        name: String,
        owner: String,
        reply: oneshot::Sender<Result<LeaseHandle, EnqueueError>>,
    },
    /// Checks whether the environment of a lease can be suspended.
    MaySuspend {
        key: TaskKey,
        reply: SuspendReply,
    },
    Suspend {
        key: TaskKey,
        owner: String,
        reply: SuspendReply,
    },
    Exists {
        name: String,
        reply: oneshot::Sender<bool>,
    },
}

impl ScalerTask {
    pub(super) fn handle_environment_command(&mut self, now: Now, command: EnvironmentCommand) {
        for group in (0..self.engine.config().groups.len()).map(GroupId) {
            if let Some(can) = self.shared.plugin(group).and_then(|plugin| plugin.can_suspend()) {
                self.engine.handle(now, Event::CanSuspend { group, can });
            }
        }
        match command {
            EnvironmentCommand::Resume { key, name, owner, reply } => {
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
            EnvironmentCommand::MaySuspend { key, reply } => {
                let _ = reply.send(self.engine.may_suspend(&key));
            }
            EnvironmentCommand::Suspend { key, owner, reply } => match self.engine.suspend(now, &key, &owner) {
                Ok(()) => {
                    self.losses.remove(&key);
                    self.suspending.insert(key, reply);
                }
                Err(error) => {
                    let _ = reply.send(Err(error));
                }
            },
            EnvironmentCommand::Exists { name, reply } => {
                let _ = reply.send(self.engine.has_environment(&name));
            }
        }
    }

    pub(super) fn confirm_suspend(&mut self, key: &TaskKey) {
        if let Some(reply) = self.suspending.remove(key) {
            let _ = reply.send(Ok(()));
        }
    }

    pub(super) fn reject_resume(&mut self, key: &TaskKey, error: ResumeError) {
        if let Some(reply) = self.waiting.remove(key) {
            let _ = reply.send(Err(error.into()));
        }
    }
}
