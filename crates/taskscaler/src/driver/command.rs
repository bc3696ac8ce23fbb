//! Commands that handles and plugin calls send to the scaler task.

use std::time::Duration;

use muster_fleeting::model::InstanceId;
use tokio::sync::oneshot;

use super::environments::EnvironmentCommand;
use super::lease::{LeaseHandle, Reservation};
use crate::engine::{EnqueueError, InstanceStatus, NoCapacity, ScalerStatus, WaitReason};
use crate::event::Event;
use crate::operator::{OperatorAction, OperatorError, OperatorOutcome};
use crate::types::{GroupId, SlotRequest, TaskKey};

pub(super) type OperatorResult = Result<OperatorOutcome, OperatorError>;

#[derive(Debug)]
pub(super) enum Command {
    /// Reserves a slot for a job request that is about to be sent.
    Reserve {
        key: TaskKey,
        reply: oneshot::Sender<Result<Reservation, NoCapacity>>,
    },
    /// Reserves a slot for a job that has already been received.
    Admit {
        key: TaskKey,
    },
    /// Gives a reservation the key of the job that was received.
    Rename {
        from: TaskKey,
        to: TaskKey,
    },
    /// Requests slots for the holder of a reservation.
    Acquire {
        key: TaskKey,
        request: SlotRequest,
        reply: oneshot::Sender<Result<LeaseHandle, EnqueueError>>,
    },
    Environment(EnvironmentCommand),
    /// Cancels a request that timed out. Returns why it waited.
    TimedOut {
        key: TaskKey,
        reply: oneshot::Sender<Option<WaitReason>>,
    },
    /// Cancels a request, or releases a reservation.
    Cancel {
        key: TaskKey,
    },
    /// Returns the lease that a job got from an earlier manager process.
    Claim {
        key: TaskKey,
        reply: oneshot::Sender<Option<LeaseHandle>>,
    },
    Event(Event),
    /// Applies an operator's action to an instance, or to the whole group if `id` is `None`.
    Operate {
        group: GroupId,
        id: Option<InstanceId>,
        action: OperatorAction,
        by: String,
        reply: oneshot::Sender<OperatorResult>,
    },
    Status {
        reply: oneshot::Sender<ScalerStatus>,
    },
    /// Returns the reason why a request waits.
    ExplainWaiting {
        key: TaskKey,
        reply: oneshot::Sender<Option<WaitReason>>,
    },
    /// Shuts down within `timeout`. Returns the remaining instances.
    Shutdown {
        timeout: Duration,
        reply: oneshot::Sender<Vec<InstanceStatus>>,
    },
}
