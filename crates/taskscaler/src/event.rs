//! Inputs and outputs of the engine: events and actions.

use muster_fleeting::model::{InstanceId, InstanceState};

use crate::operator::{OperatorAction, OperatorError, OperatorOutcome};
use crate::policy::Policies;
use crate::resources::JobUsage;
use crate::suspend::ResumeError;
use crate::types::{GroupId, LossReason, SlotAssignment, TaskKey};

/// An event that the engine handles.
#[derive(Debug, Clone)]
pub enum Event {
    /// Time passed.
    Tick,
    /// The plugin of a group is running.
    PluginUp {
        /// The group.
        group: GroupId,
        /// Maximum number of instances that the plugin supports. 0 means unknown.
        max_size: u32,
    },
    /// The plugin of a group is not running.
    PluginDown {
        /// The group.
        group: GroupId,
        /// Reason why the plugin is not running.
        cause: String,
    },
    /// The plugin reports whether it can suspend and resume instances.
    CanSuspend {
        /// The group.
        group: GroupId,
        /// Whether the plugin can suspend and resume instances.
        can: bool,
    },
    /// Result of [`Action::List`].
    Listed {
        /// The group.
        group: GroupId,
        /// Number of the call.
        call: u64,
        /// All instances of the group with their states.
        result: Result<Vec<(InstanceId, InstanceState)>, String>,
    },
    /// Result of [`Action::Increase`].
    Increased {
        /// The group.
        group: GroupId,
        /// Number of the call.
        call: u64,
        /// Number of instances whose creation the provider accepted.
        result: Result<u32, String>,
    },
    /// Result of [`Action::Decrease`].
    Decreased {
        /// The group.
        group: GroupId,
        /// Instances of the call.
        ids: Vec<InstanceId>,
        /// Instances whose deletion the provider accepted.
        result: Result<Vec<InstanceId>, String>,
    },
    /// Result of [`Action::Suspend`].
    Suspended {
        /// The group.
        group: GroupId,
        /// Instances of the call.
        ids: Vec<InstanceId>,
        /// Instances whose suspension the provider accepted.
        result: Result<Vec<InstanceId>, String>,
    },
    /// Result of [`Action::Resume`].
    Resumed {
        /// The group.
        group: GroupId,
        /// Instances of the call.
        ids: Vec<InstanceId>,
        /// Instances whose resumption the provider accepted.
        result: Result<Vec<InstanceId>, String>,
    },
    /// Result of [`Action::Prepare`].
    Prepared {
        /// The group.
        group: GroupId,
        /// The instance.
        id: InstanceId,
        /// Whether the instance is ready for jobs.
        result: Result<(), String>,
    },
    /// Health of an instance: the result of [`Action::Heartbeat`], or what a job observed.
    Health {
        /// The group.
        group: GroupId,
        /// The instance.
        id: InstanceId,
        /// `Ok` if the instance is healthy.
        result: Result<(), String>,
    },
    /// [`Action::Heartbeat`] failed because of the plugin.
    HealthUnknown {
        /// The group.
        group: GroupId,
        /// The instance.
        id: InstanceId,
    },
    /// A job lost the connection to its instance, which must be checked immediately.
    ConnectionLost {
        /// Key of the job's task.
        key: TaskKey,
    },
    /// A reservation is no longer needed.
    Unreserve {
        /// Key of the reservation.
        key: TaskKey,
    },
    /// The coordinator answered a job request that had a reservation.
    JobRequestAnswered {
        /// Whether the coordinator returned a job within [`crate::time::HELD_AFTER`].
        is_immediate_job: bool,
    },
    /// A queued request is canceled. Its reservation remains until [`Event::Unreserve`].
    Cancel {
        /// Key of the request.
        key: TaskKey,
    },
    /// A job reports its resource usage, before its lease ends.
    JobUsage {
        /// Key of the job's task.
        key: TaskKey,
        /// Resources that the job used.
        usage: JobUsage,
    },
    /// A lease ends.
    Release {
        /// Key of the lease.
        key: TaskKey,
    },
    /// Slots were assigned to a request whose caller no longer waits.
    ///
    /// Ends the lease. A resumed environment is suspended again, because no job has used it.
    AssignmentAbandoned {
        /// Key of the request.
        key: TaskKey,
    },
    /// No more leases from before a restart will be claimed.
    ClaimsComplete,
    /// The configuration has new policies.
    Policies(Policies),
    /// An operator changes an instance or a group. [`Action::OperatorReply`] returns the outcome.
    Operator {
        /// Number of the request, for [`Action::OperatorReply`].
        request: u64,
        /// The group.
        group: GroupId,
        /// The instance. `None` means the whole group.
        id: Option<InstanceId>,
        /// The change.
        action: OperatorAction,
        /// Operator and reason.
        by: String,
    },
    /// An instance must get no more jobs, because it will be interrupted or does not respond.
    Retire {
        /// The group.
        group: GroupId,
        /// The instance.
        id: InstanceId,
        /// Message of the plugin or the job.
        reason: String,
    },
    /// The price of a group's instances changed.
    PriceChanged {
        /// The group.
        group: GroupId,
        /// Price of an instance per hour, in the unit of `price_per_hour`.
        per_hour: f64,
    },
    /// A group's stock of instances changed.
    StockChanged {
        /// The group.
        group: GroupId,
        /// Whether the provider has instances in stock.
        available: bool,
    },
    /// The runner requests no more jobs. No idle capacity is kept, whatever the policies are.
    Drain,
    /// All instances are deleted on shutdown, whatever [`crate::config::Config::delete_on_shutdown`] is. Instances that
    /// appear from now on without a request of this scaler are left alone.
    DeleteAllOnStop,
    /// The scaler shuts down: it creates no more instances and assigns no more slots.
    Stop,
}

/// An action that the engine requests. Actions can run concurrently.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// List all instances of a group.
    List {
        /// The group.
        group: GroupId,
        /// Number of the call, for [`Event::Listed`].
        call: u64,
    },
    /// Create instances.
    Increase {
        /// The group.
        group: GroupId,
        /// Number of the call, for [`Event::Increased`].
        call: u64,
        /// Number of instances.
        count: u32,
    },
    /// Delete instances.
    Decrease {
        /// The group.
        group: GroupId,
        /// The instances.
        ids: Vec<InstanceId>,
    },
    /// Suspend instances.
    Suspend {
        /// The group.
        group: GroupId,
        /// The instances.
        ids: Vec<InstanceId>,
    },
    /// Resume suspended instances.
    Resume {
        /// The group.
        group: GroupId,
        /// The instances.
        ids: Vec<InstanceId>,
    },
    /// Get the connection details of an instance and prepare it for jobs.
    Prepare {
        /// The group.
        group: GroupId,
        /// The instance.
        id: InstanceId,
        /// Whether the instance was ready before, so that jobs may be running on it.
        was_ready: bool,
    },
    /// Check the health of an instance.
    Heartbeat {
        /// The group.
        group: GroupId,
        /// The instance.
        id: InstanceId,
    },
    /// A queued request got its slots.
    Assign(SlotAssignment),
    /// The ledger contains the environment that a job saved. Its lease has ended.
    EnvironmentSaved {
        /// Key of the lease, which is the name of the environment.
        key: TaskKey,
    },
    /// A request to resume an environment failed.
    ResumeFailed {
        /// Key of the request.
        key: TaskKey,
        /// Cause of the failure.
        error: ResumeError,
    },
    /// A lease ended because its instance was lost.
    Lost {
        /// Key of the lease.
        key: TaskKey,
        /// Reason for the loss.
        reason: LossReason,
    },
    /// A reservation that no job has used is revoked.
    ///
    /// There are three possible reasons: no slot is expected for it anymore, it kept an instance beyond the idle time,
    /// or too many slots are reserved beyond the free ones.
    RevokeReservation {
        /// Key of the reservation.
        key: TaskKey,
    },
    /// Outcome of [`Event::Operator`]. The ledger already contains the change.
    OperatorReply {
        /// Number of the request.
        request: u64,
        /// Outcome, or the reason for the refusal.
        result: Result<OperatorOutcome, OperatorError>,
    },
    /// An instance was deleted, so cached data about it can be dropped.
    ForgetInstance {
        /// The group.
        group: GroupId,
        /// The instance.
        id: InstanceId,
    },
}

impl Action {
    /// Returns the group whose plugin the action calls. `None` means that it calls no plugin.
    #[must_use]
    pub fn group(&self) -> Option<GroupId> {
        match self {
            Self::List { group, .. }
            | Self::Increase { group, .. }
            | Self::Decrease { group, .. }
            | Self::Suspend { group, .. }
            | Self::Resume { group, .. }
            | Self::Prepare { group, .. }
            | Self::Heartbeat { group, .. } => Some(*group),
            Self::Assign(_)
            | Self::EnvironmentSaved { .. }
            | Self::ResumeFailed { .. }
            | Self::Lost { .. }
            | Self::RevokeReservation { .. }
            | Self::ForgetInstance { .. }
            | Self::OperatorReply { .. } => None,
        }
    }
}
