//! What happens to the engine, and what it wants done.

use muster_fleeting::model::{InstanceId, InstanceState};

use crate::operator::{OperatorAction, OperatorError, OperatorOutcome};
use crate::policy::Policies;
use crate::resources::JobUsage;
use crate::suspend::ResumeError;
use crate::types::{GroupId, LossReason, SlotAssignment, TaskKey};

/// What happened. Errors are the words of who failed.
#[derive(Debug, Clone)]
pub enum Event {
    /// Time passed.
    Tick,
    /// A group's plugin runs.
    PluginUp {
        /// Which.
        group: GroupId,
        /// The most instances it can have; 0: it does not say.
        max_size: u32,
    },
    /// A group's plugin does not run.
    PluginDown {
        /// Which.
        group: GroupId,
        /// Why.
        cause: String,
    },
    /// Whether a group's plugin can suspend and resume instances.
    CanSuspend {
        /// Which.
        group: GroupId,
        /// It can.
        can: bool,
    },
    /// The answer to [`Action::Update`].
    Listed {
        /// Which group.
        group: GroupId,
        /// The call.
        call: u64,
        /// All instances of the group.
        result: Result<Vec<(InstanceId, InstanceState)>, String>,
    },
    /// The answer to [`Action::Increase`].
    Increased {
        /// Which group.
        group: GroupId,
        /// The call.
        call: u64,
        /// How many are made.
        result: Result<u32, String>,
    },
    /// The answer to [`Action::Decrease`].
    Decreased {
        /// Which group.
        group: GroupId,
        /// Those that were to go.
        ids: Vec<InstanceId>,
        /// Those that go.
        result: Result<Vec<InstanceId>, String>,
    },
    /// The answer to [`Action::Suspend`].
    Suspended {
        /// Which group.
        group: GroupId,
        /// Those that were to be suspended.
        ids: Vec<InstanceId>,
        /// Those for which it was accepted.
        result: Result<Vec<InstanceId>, String>,
    },
    /// The answer to [`Action::Resume`].
    Resumed {
        /// Which group.
        group: GroupId,
        /// Those that were to be resumed.
        ids: Vec<InstanceId>,
        /// Those for which it was accepted.
        result: Result<Vec<InstanceId>, String>,
    },
    /// The answer to [`Action::Prepare`].
    Prepared {
        /// Which group.
        group: GroupId,
        /// Which instance.
        id: InstanceId,
        /// Whether jobs can have it.
        result: Result<(), String>,
    },
    /// An instance's health, asked for by [`Action::Heartbeat`] or seen by a job.
    Health {
        /// Which group.
        group: GroupId,
        /// Which instance.
        id: InstanceId,
        /// Whether it is well.
        result: Result<(), String>,
    },
    /// [`Action::Heartbeat`] has no answer because of the plugin, not of the instance.
    HealthUnknown {
        /// Which group.
        group: GroupId,
        /// Which instance.
        id: InstanceId,
    },
    /// A job lost its connection to its instance: look at once.
    ConnectionLost {
        /// The lease.
        key: TaskKey,
    },
    /// A reservation is not needed any more.
    Unreserve {
        /// Whose.
        key: TaskKey,
    },
    /// The coordinator answered a job request that a reservation was made for.
    Answered {
        /// With a job, and sooner than a request is held that has no job to wait for.
        at_once: bool,
    },
    /// A waiting request is given up; its reservation stays until [`Event::Unreserve`] (S15).
    Cancel {
        /// Whose.
        key: TaskKey,
    },
    /// What the job of a lease used; told before it ends.
    JobUsage {
        /// Whose.
        key: TaskKey,
        /// What.
        usage: JobUsage,
    },
    /// A lease ends.
    Release {
        /// Whose.
        key: TaskKey,
    },
    /// A lease was granted, and nobody waits for it any more: as [`Event::Release`], but the environment that it was resumed
    /// with, which nobody has seen, is kept.
    GrantAbandoned {
        /// Whose.
        key: TaskKey,
    },
    /// After a restart, all leases that are still wanted have been claimed.
    ClaimsComplete,
    /// Other policies.
    Policies(Policies),
    /// An operator does something to an instance, or to a whole group; [`Action::Answer`] says what came of it.
    Operator {
        /// The question's number, to be given back.
        request: u64,
        /// Which group.
        group: GroupId,
        /// Which instance; none: the group.
        id: Option<InstanceId>,
        /// What.
        action: OperatorAction,
        /// Who, and why.
        by: String,
    },
    /// A plugin says that an instance should not be used any more: the provider takes it back, or a job has spoilt it.
    Retire {
        /// Which group.
        group: GroupId,
        /// Which instance.
        id: InstanceId,
        /// Why.
        reason: String,
    },
    /// What an instance of a group costs from now on, in the place of [`crate::config::GroupConfig::price_per_hour`].
    PriceChanged {
        /// Which group.
        group: GroupId,
        /// In the same unit.
        per_hour: f64,
    },
    /// Whether a group's provider has any instances to give.
    StockChanged {
        /// Which group.
        group: GroupId,
        /// It has.
        available: bool,
    },
    /// No more jobs are requested: nothing is kept idle any more, whatever the policies say.
    Drain,
    /// At the end all instances go, whatever [`crate::config::Config::delete_on_shutdown`] says.
    DeleteAllOnStop,
    /// Nothing more is created or granted.
    Stop,
}

/// What is to be done. Nothing waits for anything that was asked for earlier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// List all instances of a group.
    List {
        /// Which.
        group: GroupId,
        /// The call's number, to be given back.
        call: u64,
    },
    /// Ask for more instances.
    Increase {
        /// Of which group.
        group: GroupId,
        /// The call's number, to be given back.
        call: u64,
        /// How many.
        n: u32,
    },
    /// Remove instances.
    Decrease {
        /// Of which group.
        group: GroupId,
        /// Which.
        ids: Vec<InstanceId>,
    },
    /// Suspend instances.
    Suspend {
        /// Of which group.
        group: GroupId,
        /// Which.
        ids: Vec<InstanceId>,
    },
    /// Let suspended instances run again.
    Resume {
        /// Of which group.
        group: GroupId,
        /// Which.
        ids: Vec<InstanceId>,
    },
    /// Learn how to reach an instance, and make it ready.
    Prepare {
        /// Of which group.
        group: GroupId,
        /// Which.
        id: InstanceId,
        /// It was ready before: jobs may run on it.
        again: bool,
    },
    /// Ask for an instance's health.
    Heartbeat {
        /// Of which group.
        group: GroupId,
        /// Which.
        id: InstanceId,
    },
    /// A waiting request has its slot.
    Grant(SlotAssignment),
    /// A lease ended, and what its job left is kept for a later one: that is in the books.
    EnvironmentSaved {
        /// Whose it was; the environment goes by it.
        key: TaskKey,
    },
    /// Who waited for an environment does not get it.
    ResumeFailed {
        /// Who.
        key: TaskKey,
        /// Why.
        error: ResumeError,
    },
    /// A lease ended, since its instance did.
    Lost {
        /// Whose.
        key: TaskKey,
        /// How that was seen.
        reason: LossReason,
    },
    /// A promise that no job has used is taken back: what stood behind it goes, or is not in sight any more.
    RevokeReservation {
        /// Whose.
        key: TaskKey,
    },
    /// What came of [`Event::Operator`]; it is in the books.
    OperatorReply {
        /// The question's number.
        request: u64,
        /// What is done, or why it cannot be.
        result: Result<OperatorOutcome, OperatorError>,
    },
    /// An instance is gone: what is known of it can be forgotten.
    ForgetInstance {
        /// Of which group.
        group: GroupId,
        /// Which.
        id: InstanceId,
    },
}

impl Action {
    /// The group whose plugin is called, if one is.
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
            Self::Grant(_)
            | Self::EnvironmentSaved { .. }
            | Self::ResumeFailed { .. }
            | Self::Lost { .. }
            | Self::RevokeReservation { .. }
            | Self::ForgetInstance { .. }
            | Self::OperatorReply { .. } => None,
        }
    }
}
