//! Commands from handles and calls to the scaler task.

use std::time::Duration;

use muster_fleeting::model::InstanceId;
use tokio::sync::oneshot;

use super::environments::EnvironmentQuery;
use super::lease::{LeaseHandle, Reservation};
use crate::engine::{EnqueueError, InstanceStatus, NoCapacity, ScalerStatus, WaitReason};
use crate::event::Event;
use crate::operator::{OperatorAction, OperatorError, OperatorOutcome};
use crate::types::{GroupId, SlotRequest, TaskKey};

/// Result of an operator action.
pub(super) type OperatorResult = Result<OperatorOutcome, OperatorError>;

/// Command to the scaler task.
#[derive(Debug)]
pub(super) enum Command {
    Reserve {
        key: TaskKey,
        reply: oneshot::Sender<Result<Reservation, NoCapacity>>,
    },
    Admit {
        key: TaskKey,
    },
    Rename {
        from: TaskKey,
        to: TaskKey,
    },
    Acquire {
        key: TaskKey,
        request: SlotRequest,
        reply: oneshot::Sender<Result<LeaseHandle, EnqueueError>>,
    },
    Environment(EnvironmentQuery),
    TimedOut {
        key: TaskKey,
        reply: oneshot::Sender<Option<WaitReason>>,
    },
    GiveUp {
        key: TaskKey,
    },
    Claim {
        key: TaskKey,
        reply: oneshot::Sender<Option<LeaseHandle>>,
    },
    Event(Event),
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
    ExplainWaiting {
        key: TaskKey,
        reply: oneshot::Sender<Option<WaitReason>>,
    },
    Shutdown {
        limit: Duration,
        reply: oneshot::Sender<Vec<InstanceStatus>>,
    },
}
