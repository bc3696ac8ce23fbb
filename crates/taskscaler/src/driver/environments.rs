//! What is asked about environments that jobs leave for later ones.

use tokio::sync::oneshot;

use super::lease::Lease;
use super::task::Task;
use crate::engine::AcquireError;
use crate::event::Event;
use crate::sleep::{NotResumed, NotSuspended};
use crate::time::Now;
use crate::words::{GroupId, Key};

/// Who leaves one is told when that is in the books.
pub(super) type Parking = oneshot::Sender<Result<(), NotSuspended>>;

/// What the task is asked.
#[derive(Debug)]
pub(super) enum Asked {
    /// A job waits for the environment of this name.
    Resume { key: Key, name: String, owner: String, reply: oneshot::Sender<Result<Lease, AcquireError>> },
    /// Whether the job of a lease could leave its own.
    MaySuspend { key: Key, reply: Parking },
    /// The job of a lease leaves its own.
    Suspend { key: Key, owner: String, reply: Parking },
    /// Whether there is one of this name.
    Has { name: String, reply: oneshot::Sender<bool> },
}

impl Task {
    pub(super) fn environment(&mut self, now: Now, asked: Asked) {
        for group in (0..self.engine.config().groups.len()).map(GroupId) {
            if let Some(can) = self.shared.host(group).and_then(|host| host.can_suspend()) {
                self.engine.handle(now, Event::CanSuspend { group, can });
            }
        }
        match asked {
            Asked::Resume { key, name, owner, reply } => {
                self.promises.remove(&key);
                match self.engine.resume(now, key.clone(), &name, &owner) {
                    Ok(()) => {
                        self.waiting.insert(key, reply);
                    }
                    Err(error) => {
                        let _ = reply.send(Err(error.into()));
                    }
                }
            }
            Asked::MaySuspend { key, reply } => {
                let _ = reply.send(self.engine.may_suspend(&key));
            }
            Asked::Suspend { key, owner, reply } => match self.engine.suspend(now, &key, &owner) {
                Ok(()) => {
                    self.losses.remove(&key);
                    self.parking.insert(key, reply);
                }
                Err(error) => {
                    let _ = reply.send(Err(error));
                }
            },
            Asked::Has { name, reply } => {
                let _ = reply.send(self.engine.has_environment(&name));
            }
        }
    }

    /// It is in the books.
    pub(super) fn parked(&mut self, key: &Key) {
        if let Some(reply) = self.parking.remove(key) {
            let _ = reply.send(Ok(()));
        }
    }

    pub(super) fn not_resumed(&mut self, key: &Key, why: NotResumed) {
        if let Some(reply) = self.waiting.remove(key) {
            let _ = reply.send(Err(why.into()));
        }
    }
}
