//! Status of the engine.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::group::{GroupState, Plugin};
use super::instance::{Instance, InstancePhase};
use super::inventory::Inventory;
use super::queue::Queue;
use crate::decision::ScaleUpBlock;
use crate::time::{Now, milliseconds};
use crate::types::{GroupId, TaskKey};

/// Number of slots by state, as in the metric `fleeting_taskscaler_tasks`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SlotCounts {
    /// Free slots that can be assigned now.
    pub idle: u64,
    /// Queued requests.
    pub pending: u64,
    /// Assigned slots.
    pub acquired: u64,
    /// Reservations, including those of queued requests.
    pub reserved: u64,
    /// Slots that are free but can no longer be assigned.
    pub unavailable: u64,
}

/// Totals for metrics.
#[derive(Debug, Clone, PartialEq)]
pub struct Totals {
    /// Instances by the states of `fleeting_provisioner_instances`.
    pub by_state: Vec<(&'static str, u64)>,
    /// Instances by the states of `gitlab_runner_autoscaling_machine_states`.
    pub machines: Vec<(&'static str, u64)>,
    /// Maximum number of instances of all groups together. `None` means no limit.
    pub max: Option<u64>,
    /// Number of instances to create (positive) or to delete (negative).
    pub desired_change: i64,
    /// Cost per hour of all instances that exist or may appear. Unknown prices count as 0.
    pub cost_per_hour: f64,
    /// Number of unmanaged instances.
    pub unmanaged: u64,
}

/// Status of a scaler.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScalerStatus {
    /// Slots by state.
    pub slots: SlotCounts,
    /// Number of instances to create (positive) or to delete (negative).
    pub desired_change: i64,
    /// Target number of idle slots.
    pub idle_target: u64,
    /// Number of the active policy, counted from 1. `None` means that no policy is active.
    pub policy: Option<usize>,
    /// Cost per hour of all instances that exist or may appear. Unknown prices count as 0.
    pub cost_per_hour: f64,
    /// Reasons why groups cannot create needed instances.
    pub scale_up_blocked: Vec<String>,
    /// Queued requests, the oldest first.
    #[serde(default)]
    pub waiting: Vec<WaitingStatus>,
    /// Number of instances that boot, are being prepared, or were requested.
    #[serde(default)]
    pub booting: u64,
    /// Estimated time until the next instance is ready, in milliseconds. `None` means unknown.
    #[serde(default)]
    pub next_ready_in_ms: Option<u64>,
    /// Instance groups, in the order of the configuration.
    pub groups: Vec<GroupStatus>,
    /// Instances, the oldest first.
    pub instances: Vec<InstanceStatus>,
}

/// A queued request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingStatus {
    /// Task key of the job.
    pub key: String,
    /// Time in the queue, in milliseconds.
    pub waiting_ms: u64,
    /// Number of older requests in the queue.
    pub requests_ahead: usize,
}

/// Status of an instance group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GroupStatus {
    /// Name of the group.
    pub name: String,
    /// Reason why the group's plugin is not running. `None` if it is running.
    pub unavailable_reason: Option<String>,
    /// Maximum number of instances. `None` means no limit.
    pub max: Option<u32>,
    /// Number of instances in any state, without unmanaged ones.
    pub instances: u32,
    /// Number of requested instances that have not appeared yet.
    pub requested: u32,
    /// Number of [`Self::requested`] instances that are overdue, or whose request failed.
    ///
    /// In a report from the ledger: instances whose request failed or was not answered.
    pub unconfirmed: u32,
    /// Consecutive creations that failed or whose instance did not become ready.
    pub failures: u32,
    /// Error of the last of these failures.
    pub error: Option<String>,
    /// Consecutive failed lists. If not 0, the status of the instances may be outdated.
    #[serde(default)]
    pub list_failures: u32,
    /// Error of the last failed list.
    #[serde(default)]
    pub list_error: Option<String>,
    /// IDs of unmanaged instances.
    pub unmanaged: Vec<String>,
    /// Operator and reason, if the group is drained.
    #[serde(default)]
    pub drained: Option<String>,
}

impl GroupStatus {
    fn new(group: &GroupState, instances: usize) -> Self {
        let (failure, list_failure) = (group.creation.failure(), group.list_calls.failure());
        let may_appear = group.requests.may_appear();
        Self {
            name: group.config.name.clone(),
            unavailable_reason: match &group.plugin {
                Plugin::Down { cause } => Some(cause.clone()),
                Plugin::Up { .. } => None,
            },
            max: group.max_instances(),
            instances: u32::try_from(instances).unwrap_or(u32::MAX),
            requested: may_appear,
            unconfirmed: group.requests.unconfirmed(),
            failures: failure.map_or(0, |(failures, _)| failures),
            error: failure.map(|(_, error)| error.to_owned()),
            list_failures: list_failure.map_or(0, |(failures, _)| failures),
            list_error: list_failure.map(|(_, error)| error.to_owned()),
            unmanaged: group.unmanaged.ids().map(ToString::to_string).collect(),
            drained: group.drained.clone(),
        }
    }

    /// Returns a message if the last list of the group failed.
    #[must_use]
    pub fn list_failure_message(&self) -> Option<String> {
        let error = self.list_error.as_ref()?;
        let times =
            if self.list_failures > 1 { format!(" {} times in a row", self.list_failures) } else { String::new() };
        Some(format!("failed to list its instances{times}: {error}"))
    }
}

/// Status of an instance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InstanceStatus {
    /// ID at the provider.
    pub id: String,
    /// Name of its group.
    pub group: String,
    /// `booting`, `preparing`, `ready`, `suspending`, `suspended`, `resuming`, `cordoned`, `draining` or `deleting`.
    pub state: String,
    /// Reason for the deletion, the operator who cordoned the instance, or the suspended environment.
    pub reason: Option<String>,
    /// Time in this state, in milliseconds. In a report from the ledger: [`Self::age_ms`].
    pub state_age_ms: u64,
    /// Time since the instance was first seen, in milliseconds.
    pub age_ms: u64,
    /// Number of jobs so far, including running ones.
    pub job_count: u32,
    /// Consecutive failed health checks.
    pub failures: u32,
    /// Assigned slots.
    pub slots: Vec<SlotStatus>,
}

impl InstanceStatus {
    fn new(now: Now, instance: &Instance, group: String) -> Self {
        let (state, reason) = match &instance.phase {
            InstancePhase::Booting => ("booting", None),
            InstancePhase::Preparing => ("preparing", None),
            InstancePhase::Ready => ("ready", None),
            InstancePhase::Suspended(suspension) => {
                (suspension.state.name(), Some(suspended_reason(instance, suspension.until.since(now.at))))
            }
            InstancePhase::Cordoned { by, .. } => ("cordoned", Some(by.clone())),
            InstancePhase::Draining(reason) => ("draining", Some(reason.to_string())),
            InstancePhase::Deleting(deleting) => ("deleting", Some(deleting.reason.to_string())),
        };
        let slots = (0..).zip(instance.slots());
        Self {
            id: instance.id.to_string(),
            group,
            state: state.to_owned(),
            reason,
            state_age_ms: milliseconds(now.at.since(instance.since)),
            age_ms: milliseconds(now.at.since(instance.first_seen)),
            job_count: instance.job_count,
            failures: instance.failures,
            slots: slots.filter_map(|(slot, key)| Some(SlotStatus { slot, key: key.as_ref()?.to_string() })).collect(),
        }
    }
}

/// An assigned slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotStatus {
    /// Number of the slot, counted from 0.
    pub slot: u32,
    /// Task key of the job.
    pub key: String,
}

/// Reason why a request waits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WaitReason {
    /// Time in the queue, in milliseconds.
    pub waiting_ms: u64,
    /// Number of older requests in the queue.
    pub requests_ahead: usize,
    /// Number of instances that boot, are being prepared, or were requested.
    pub booting: u64,
    /// Estimated time until the next instance is ready, in milliseconds. `None` means unknown.
    pub next_ready_in_ms: Option<u64>,
    /// Reasons why groups cannot create needed instances.
    pub scale_up_blocked: Vec<String>,
}

impl Totals {
    pub(super) fn new(inventory: &Inventory, desired_change: i64) -> Self {
        let groups = || inventory.groups.iter().map(|(_, group)| group);
        let requested = groups().map(|group| u64::from(group.requests.may_appear())).sum();
        let states = inventory.pool.states();
        let mut by_state: Vec<(&'static str, u64)> = states.provisioner().collect();
        // Muster sends requests immediately, so no instance is ever in the state `requested`.
        by_state.extend([("requested", 0), ("pending", requested)]);
        Self {
            by_state,
            machines: states.machines(requested),
            max: inventory.groups.max_instances(),
            desired_change,
            cost_per_hour: inventory.cost_per_hour(),
            unmanaged: groups().map(|group| group.unmanaged.len() as u64).sum(),
        }
    }
}

#[derive(Debug)]
pub(super) struct StatusView<'a> {
    pub(super) now: Now,
    pub(super) inventory: &'a Inventory,
    pub(super) queue: &'a Queue,
    pub(super) blocked_groups: &'a [(GroupId, ScaleUpBlock)],
}

impl StatusView<'_> {
    /// `None` if the key is not queued.
    pub(super) fn wait_reason(&self, key: &TaskKey) -> Option<WaitReason> {
        let request = self.queue.get(key)?;
        Some(WaitReason {
            waiting_ms: milliseconds(self.now.at.since(request.since)),
            requests_ahead: self.queue.requests_ahead(key),
            booting: self.inventory.booting(),
            next_ready_in_ms: self.next_ready_in_ms(),
            scale_up_blocked: self.block_messages(),
        })
    }

    pub(super) fn waiting(&self) -> Vec<WaitingStatus> {
        let requests = self.queue.iter().enumerate();
        requests
            .map(|(requests_ahead, request)| WaitingStatus {
                key: request.key.to_string(),
                waiting_ms: milliseconds(self.now.at.since(request.since)),
                requests_ahead,
            })
            .collect()
    }

    /// Estimated time until the next instance is ready, in milliseconds.
    ///
    /// `None` if no instance is expected, or if no boot or preparation was observed yet.
    pub(super) fn next_ready_in_ms(&self) -> Option<u64> {
        let preparation = |group: &GroupState| group.preparation.fastest.unwrap_or_default();
        let groups = self.inventory.groups.iter();
        let requested = groups.filter_map(|(_, group)| {
            let (oldest, _) = group.requests.pending_since()?;
            Some(oldest + group.boot.fastest? + preparation(group))
        });
        let starting = self.inventory.pool.iter().filter_map(|(_, instance)| {
            let group = self.inventory.groups.get(instance.group)?;
            match instance.phase {
                InstancePhase::Booting => Some(instance.requested_at + group.boot.fastest? + preparation(group)),
                InstancePhase::Preparing => Some(instance.since + group.preparation.fastest?),
                _ => None,
            }
        });
        requested.chain(starting).min().map(|at| milliseconds(at.since(self.now.at)))
    }

    pub(super) fn block_messages(&self) -> Vec<String> {
        let blocked = self.blocked_groups.iter().map(|(id, block)| {
            let mut block = block.clone();
            if let (ScaleUpBlock::BackOff { pause, .. }, Some(group)) = (&mut block, self.inventory.groups.get(*id)) {
                *pause = group.creation.remaining_pause(self.now.at);
            }
            (*id, block)
        });
        let blocked = self.inventory.groups.with_names(blocked);
        blocked.into_iter().map(|(group, block)| format!("group {group}: {block}")).collect()
    }

    pub(super) fn groups(&self) -> Vec<GroupStatus> {
        self.inventory.groups.iter().map(|(id, group)| GroupStatus::new(group, self.inventory.pool.count(id))).collect()
    }

    pub(super) fn instances(&self) -> Vec<InstanceStatus> {
        let mut instances: Vec<&Instance> = self.inventory.pool.iter().map(|(_, instance)| instance).collect();
        instances.sort_by_key(|instance| instance.sequence);
        let group = |instance: &Instance| self.inventory.groups.name(instance.group);
        instances.into_iter().map(|instance| InstanceStatus::new(self.now, instance, group(instance))).collect()
    }
}

fn suspended_reason(instance: &Instance, remaining: Duration) -> String {
    let name = instance.saved_environment.as_ref().map_or("", |environment| environment.name.as_str());
    format!("environment of {name}, expires in {} s", remaining.as_secs())
}
