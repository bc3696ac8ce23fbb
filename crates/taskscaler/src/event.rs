//! What happens to the engine, and what it wants done.

use muster_fleeting::model::{InstanceId, InstanceState};

use crate::need::Used;
use crate::operator::{Act, Done, Refused};
use crate::policy::Policies;
use crate::sleep::NotResumed;
use crate::words::{GroupId, Key, Lease, Loss};

/// What happened. Errors are the words of who failed.
#[derive(Debug, Clone)]
pub enum Event {
    /// Time passed.
    Tick,
    /// A group's plugin runs.
    GroupUp {
        /// Which.
        group: GroupId,
        /// The most instances it can have; 0: it does not say.
        max_size: u32,
    },
    /// A group's plugin does not run.
    GroupDown {
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
    Updated {
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
    Suspect {
        /// The lease.
        key: Key,
    },
    /// A reservation is not needed any more.
    Unreserve {
        /// Whose.
        key: Key,
    },
    /// The coordinator answered a job request that a reservation was made for.
    Answered {
        /// With a job, and sooner than a request is held that has no job to wait for.
        at_once: bool,
    },
    /// A waiting request is given up; its reservation stays until [`Event::Unreserve`] (S15).
    Cancel {
        /// Whose.
        key: Key,
    },
    /// What the job of a lease used; told before it ends.
    Used {
        /// Whose.
        key: Key,
        /// What.
        used: Used,
    },
    /// A lease ends.
    Release {
        /// Whose.
        key: Key,
    },
    /// A lease was granted, and nobody waits for it any more: as [`Event::Release`], but the environment that it was resumed
    /// with, which nobody has seen, is kept.
    Unused {
        /// Whose.
        key: Key,
    },
    /// After a restart, all leases that are still wanted have been claimed.
    Settled,
    /// Other policies.
    Policies(Policies),
    /// An operator does something to an instance, or to a whole group; [`Action::Answer`] says what came of it.
    Operator {
        /// The question's number, to be given back.
        question: u64,
        /// Which group.
        group: GroupId,
        /// Which instance; none: the group.
        id: Option<InstanceId>,
        /// What.
        act: Act,
        /// Who, and why.
        by: String,
    },
    /// A plugin says that an instance should not be used any more: the provider takes it back, or a job has spoilt it.
    Disowned {
        /// Which group.
        group: GroupId,
        /// Which instance.
        id: InstanceId,
        /// Why.
        why: String,
    },
    /// What an instance of a group costs from now on, in the place of [`crate::config::GroupConfig::price_per_hour`].
    Priced {
        /// Which group.
        group: GroupId,
        /// In the same unit.
        per_hour: f64,
    },
    /// Whether a group's provider has any instances to give.
    Stock {
        /// Which group.
        group: GroupId,
        /// It has.
        available: bool,
    },
    /// No more jobs are requested: nothing is kept idle any more, whatever the policies say.
    Drain,
    /// At the end all instances go, whatever [`crate::config::Config::delete_on_shutdown`] says.
    RemoveAtTheEnd,
    /// Nothing more is created or granted.
    Stop,
}

/// What is to be done. Nothing waits for anything that was asked for earlier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// List all instances of a group.
    Update {
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
    Grant(Lease),
    /// A lease ended, and what its job left is kept for a later one: that is in the books.
    Parked {
        /// Whose it was; the environment goes by it.
        key: Key,
    },
    /// Who waited for an environment does not get it.
    NotResumed {
        /// Who.
        key: Key,
        /// Why.
        why: NotResumed,
    },
    /// A lease ended, since its instance did.
    Lost {
        /// Whose.
        key: Key,
        /// How that was seen.
        cause: Loss,
    },
    /// A promise that no job has used is taken back: what stood behind it goes, or is not in sight any more.
    Withdraw {
        /// Whose.
        key: Key,
    },
    /// What came of [`Event::Operator`]; it is in the books.
    Answer {
        /// The question's number.
        question: u64,
        /// What is done, or why it cannot be.
        answer: Result<Done, Refused>,
    },
    /// An instance is gone: what is known of it can be forgotten.
    Forget {
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
            Self::Update { group, .. }
            | Self::Increase { group, .. }
            | Self::Decrease { group, .. }
            | Self::Suspend { group, .. }
            | Self::Resume { group, .. }
            | Self::Prepare { group, .. }
            | Self::Heartbeat { group, .. } => Some(*group),
            Self::Grant(_)
            | Self::Parked { .. }
            | Self::NotResumed { .. }
            | Self::Lost { .. }
            | Self::Withdraw { .. }
            | Self::Forget { .. }
            | Self::Answer { .. } => None,
        }
    }
}
