//! Decisions of the engine with their inputs.

use std::fmt;
use std::time::Duration;

use muster_fleeting::model::{InstanceId, InstanceState};

use crate::formula::Inputs;
use crate::operator::{OperatorAction, OperatorOutcome};
use crate::resources::JobUsage;
use crate::suspend::SuspendEvent;
use crate::types::{GroupId, LossReason, RemovalReason, TaskKey};

/// A decision and when it was made.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// Seconds since 1970.
    pub unix: i64,
    /// The decision.
    pub kind: DecisionKind,
}

/// Decision or observation of the engine.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "`group` and `id` name the group and the instance that a decision is about")]
pub enum DecisionKind {
    /// Another policy is active.
    Policy {
        /// Index in the configuration. `None` means that no policy is active.
        index: Option<usize>,
        idle_count: u32,
    },
    /// Instances are requested from the provider.
    ScaleUp {
        group: GroupId,
        count: u32,
        /// Number of needed instances that are neither available nor expected.
        missing: u64,
        inputs: Inputs,
        /// Earlier groups in the selection order, and why they were skipped.
        skipped: Vec<(GroupId, ScaleUpBlock)>,
    },
    /// More instances are needed, but no group can create them now.
    ScaleUpBlocked {
        /// Number of needed instances that could not be requested.
        missing: u64,
        /// Reason for each group, in selection order.
        reasons: Vec<(GroupId, ScaleUpBlock)>,
        inputs: Inputs,
    },
    /// The provider accepted a request for instances.
    ScaleUpAccepted {
        group: GroupId,
        requested: u32,
        /// Number of instances that the provider creates.
        accepted: u32,
    },
    /// A request for instances failed, or an instance did not become ready.
    CreationFailed {
        group: GroupId,
        error: String,
        /// Consecutive failures.
        failures: u32,
        /// Time until the next attempt.
        pause: Duration,
    },
    /// An instance appeared in the provider's list.
    Discovered {
        group: GroupId,
        id: InstanceId,
        origin: InstanceOrigin,
        /// Time since it was requested. Zero if it was not requested.
        after: Duration,
    },
    /// The provider reports that an instance is running.
    Running {
        group: GroupId,
        id: InstanceId,
        /// Time since it was requested.
        after: Duration,
    },
    /// An instance appeared that this manager did not create. It is ignored.
    Unmanaged {
        group: GroupId,
        id: InstanceId,
        state: InstanceState,
    },
    /// An instance can run jobs.
    Ready {
        group: GroupId,
        id: InstanceId,
        /// Time since it started to run.
        after: Duration,
        /// Time from the request until ready. `None` means that the instance was ready before, or was not requested by
        /// this manager.
        created: Option<Duration>,
    },
    /// Slots were assigned to a job.
    Leased {
        key: TaskKey,
        group: GroupId,
        id: InstanceId,
        slot: u32,
        slots: u32,
        /// Number of jobs on the instance, including this one.
        jobs: u32,
        /// Whether the instance has the requested sticky context: files that earlier jobs of the project left. `None`
        /// means that none was requested.
        sticky: Option<bool>,
        /// Time in the queue.
        waited: Duration,
    },
    /// A job reported its resource usage.
    JobUsage {
        key: TaskKey,
        usage: JobUsage,
        /// Average number of other jobs on the instance.
        neighbors: f64,
        /// Run time divided by the usual run time without neighbors. `None` means too little data.
        slowdown: Option<f64>,
    },
    /// An instance is held for a job that needs more slots than any instance has free.
    Held {
        key: TaskKey,
        group: GroupId,
        id: InstanceId,
        slots: u32,
    },
    /// A job released its slots.
    Released {
        key: TaskKey,
    },
    /// A saved environment changed its state.
    Environment {
        group: GroupId,
        id: InstanceId,
        /// Key of the job that saved the environment.
        name: TaskKey,
        event: SuspendEvent,
    },
    /// An instance gets no new jobs and is deleted after its last job.
    Drain {
        group: GroupId,
        id: InstanceId,
        reason: RemovalReason,
        jobs: u32,
    },
    /// The deletion of an instance starts.
    Delete {
        group: GroupId,
        id: InstanceId,
        reason: RemovalReason,
        inputs: Inputs,
    },
    /// An instance still exists after several delete calls.
    DeletionStuck {
        group: GroupId,
        id: InstanceId,
        /// Number of delete calls so far.
        attempts: u32,
    },
    /// An instance was deleted.
    Deleted {
        group: GroupId,
        id: InstanceId,
        /// Time since it was first seen.
        lifetime: Duration,
        /// Time since the first delete call. `None` means that it disappeared without one.
        deletion: Option<Duration>,
    },
    /// An instance was lost with its jobs.
    Lost {
        group: GroupId,
        id: InstanceId,
        reason: LossReason,
        jobs: Vec<TaskKey>,
    },
    /// An operator changed an instance or a group.
    Operator {
        group: GroupId,
        /// `None` means the whole group.
        id: Option<InstanceId>,
        action: OperatorAction,
        /// Operator and reason.
        by: String,
        outcome: OperatorOutcome,
    },
    MissingFromList {
        group: GroupId,
        id: InstanceId,
    },
    /// Listing the instances failed.
    ListFailed {
        group: GroupId,
        error: String,
        /// Consecutive failures.
        failures: u32,
    },
}

/// Origin of an instance that was added to the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstanceOrigin {
    /// This manager requested it.
    Requested,
    /// This manager requested it, but wrote off the request before the instance appeared.
    RequestedLate,
    /// Unmanaged; used because `unmanaged_instances = "adopt"`.
    Adopted,
    /// Unmanaged; deleted because `unmanaged_instances = "delete"`.
    Unmanaged,
}

impl fmt::Display for InstanceOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Requested => "requested",
            Self::RequestedLate => "requested, late",
            Self::Adopted => "adopted",
            Self::Unmanaged => "unmanaged",
        })
    }
}

/// Reason why a group cannot create instances now.
#[derive(Debug, Clone, PartialEq)]
pub enum ScaleUpBlock {
    /// The group's plugin is not running.
    PluginDown {
        /// Reason why it is not running.
        cause: String,
    },
    /// An operator drained the group.
    Drained {
        /// Operator and reason.
        by: String,
    },
    /// The group's instances have not been listed since the start.
    NotListedYet {
        /// Error of the last attempt. `None` means that no attempt has failed.
        error: Option<String>,
    },
    /// The group has its maximum number of instances.
    AtMax {
        /// The maximum.
        max: u32,
        /// Instances that may still appear after a failed or overdue creation. They count towards the maximum.
        unconfirmed: u32,
        /// Number of instances that are being deleted.
        deleting: u32,
        /// Deletions that take too long.
        stuck: StuckDeletions,
    },
    /// The last creations failed, and the next attempt must wait.
    BackOff {
        /// Error message of the provider.
        error: String,
        /// Consecutive failures.
        failures: u32,
        /// Time until the next attempt.
        pause: Duration,
    },
    /// After failures, one attempt is in progress. Others must wait for it.
    Probing {
        /// Error message of the last failure.
        error: String,
    },
    /// The provider has just accepted fewer instances than requested.
    PartiallyAccepted,
    /// The plugin reports that the provider is out of stock.
    OutOfStock,
    /// `scale_throttle` is exhausted.
    Throttled,
    /// `max_cost_per_hour` is set, but the price of an instance is unknown.
    PriceUnknown,
    /// One more instance would exceed `max_cost_per_hour`.
    CostLimit {
        /// The maximum cost per hour.
        max_per_hour: f64,
    },
    /// The scaler is shutting down.
    Stopping,
}

/// Instances whose deletion takes too long.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StuckDeletions {
    /// Number of these instances.
    pub count: u32,
    /// The instance with the longest deletion.
    pub first: Option<InstanceId>,
}

impl fmt::Display for ScaleUpBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PluginDown { cause } => write!(f, "its plugin is not running: {cause}"),
            Self::Drained { by } => write!(f, "it was drained by {by}"),
            Self::NotListedYet { error: None } => f.write_str("its instances have not been listed yet"),
            Self::NotListedYet { error: Some(error) } => write!(f, "failed to list its instances: {error}"),
            Self::AtMax { max, unconfirmed, deleting, stuck } => {
                write!(f, "instance limit of {max} reached")?;
                if *unconfirmed > 0 {
                    write!(f, " ({unconfirmed} may still appear after a failed or overdue creation)")?;
                }
                if *deleting > 0 {
                    write!(f, " ({deleting} being deleted)")?;
                }
                match &stuck.first {
                    Some(id) => write!(
                        f,
                        "; {} {} too long, the longest is {id}; check the provider's console",
                        stuck.count,
                        if stuck.count == 1 { "deletion takes" } else { "deletions take" }
                    ),
                    None => Ok(()),
                }
            }
            Self::BackOff { error, failures, pause } => {
                let s = if *failures == 1 { "" } else { "s" };
                write!(f, "{failures} consecutive failure{s}, next attempt in {} s: {error}", pause.as_secs())
            }
            Self::Probing { error } => write!(f, "an attempt is in progress after this failure: {error}"),
            Self::PartiallyAccepted => f.write_str("the provider accepted fewer instances than requested"),
            Self::OutOfStock => f.write_str("the provider is out of stock"),
            Self::Throttled => f.write_str("scale_throttle is exhausted"),
            Self::PriceUnknown => f.write_str(
                "max_cost_per_hour is set, but its price is unknown; set price_per_hour, or use a plugin that reports prices",
            ),
            Self::CostLimit { max_per_hour } => {
                write!(f, "one more instance would exceed max_cost_per_hour ({max_per_hour})")
            }
            Self::Stopping => f.write_str("the scaler is shutting down"),
        }
    }
}

impl fmt::Display for DecisionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |duration: &Duration| format!("{:.3} s", duration.as_secs_f64());
        match self {
            Self::Policy { index: Some(index), idle_count } => {
                let s = if *idle_count == 1 { "" } else { "s" };
                write!(f, "policy {} is active: {idle_count} idle slot{s}", index + 1)
            }
            Self::Policy { index: None, .. } => f.write_str("no policy is active: no idle slots"),
            Self::ScaleUp { count, missing, inputs, .. } => write!(
                f,
                "requested {count} of {missing} needed instances; slots in use: {}, queued: {}, idle target: {}, \
                 instances: {}, slots of all instances: {}",
                inputs.acquired,
                inputs.waiting,
                crate::formula::idle_target(inputs),
                inputs.instances,
                inputs.capacity
            ),
            Self::ScaleUpBlocked { missing, reasons, .. } => {
                write!(f, "cannot scale up by {missing} instance{}", if *missing == 1 { "" } else { "s" })?;
                reasons.iter().try_for_each(|(group, block)| write!(f, "; group {}: {block}", group.0 + 1))
            }
            Self::ScaleUpAccepted { requested, accepted, .. } => {
                write!(f, "provider accepted {accepted} of {requested} requested instances")
            }
            Self::CreationFailed { error, failures, pause, .. } => {
                write!(
                    f,
                    "failed to create instances ({failures} in a row, next attempt in {}): {error}",
                    seconds(pause)
                )
            }
            Self::Discovered { id, origin, after, .. } => {
                write!(f, "instance {id} discovered ({origin}) after {}", seconds(after))
            }
            Self::Running { id, after, .. } => write!(f, "instance {id} running after {}", seconds(after)),
            Self::Unmanaged { id, state, .. } => write!(f, "instance {id} ({state}) is unmanaged and ignored"),
            Self::Ready { id, after, .. } => write!(f, "instance {id} ready after {}", seconds(after)),
            Self::Leased { key, id, slot, slots, sticky, waited, .. } => {
                write!(f, "{key} got slot {slot}")?;
                if *slots > 1 {
                    write!(f, " and {} more", slots - 1)?;
                }
                write!(f, " of {id} after {}", seconds(waited))?;
                match sticky {
                    Some(true) => f.write_str(", with its sticky context"),
                    Some(false) => f.write_str(", without its sticky context"),
                    None => Ok(()),
                }
            }
            Self::JobUsage { key, usage, neighbors, slowdown } => {
                write!(f, "{key} ran for {} next to {neighbors:.1} other jobs", seconds(&usage.wall))?;
                slowdown.map_or(Ok(()), |factor| write!(f, ", {factor:.2} times as long as alone"))
            }
            Self::Held { key, id, slots, .. } => write!(f, "instance {id} held until {slots} slots are free for {key}"),
            Self::Environment { id, name, event, .. } => write!(f, "environment of {name} on {id}: {event}"),
            Self::Released { key } => write!(f, "{key} released its slots"),
            Self::Drain { id, reason, jobs, .. } => {
                let s = if *jobs == 1 { "" } else { "s" };
                write!(f, "draining instance {id} ({jobs} running job{s}): {reason}")
            }
            Self::Delete { id, reason, .. } => write!(f, "deleting instance {id}: {reason}"),
            Self::DeletionStuck { id, attempts, .. } => {
                write!(f, "instance {id} still exists after {attempts} delete calls; check the provider's console")
            }
            Self::Deleted { id, lifetime, .. } => write!(f, "instance {id} deleted after {}", seconds(lifetime)),
            Self::Lost { id, reason, jobs, .. } => {
                let s = if jobs.len() == 1 { "" } else { "s" };
                write!(f, "instance {id} lost with {} job{s}: {reason}", jobs.len())
            }
            Self::Operator { id, action, by, outcome, .. } => {
                match id {
                    Some(id) => write!(f, "instance {id}")?,
                    None => f.write_str("group")?,
                }
                let action = match action {
                    OperatorAction::Cordon => "cordon",
                    OperatorAction::Uncordon => "uncordon",
                    OperatorAction::Drain => "drain",
                    OperatorAction::Delete { .. } => "delete",
                };
                write!(f, ": {action} by {by}: {outcome}")
            }
            Self::MissingFromList { id, .. } => write!(f, "instance {id} is missing from the provider's list"),
            Self::ListFailed { error, failures, .. } => {
                write!(f, "failed to list instances ({failures} in a row): {error}")
            }
        }
    }
}
