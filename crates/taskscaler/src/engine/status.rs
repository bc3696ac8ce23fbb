//! Status of the engine, for `muster fleet status`, metrics, and the reason for which a job waits.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::group::Plugin;
use super::instance::{Instance, InstancePhase};
use super::{Engine, pool};
use crate::decision::ScaleUpBlock;
use crate::formula;
use crate::time::Now;
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
    /// Reserved slots.
    pub reserved: u64,
    /// Slots that are free but can no longer be assigned.
    pub unavailable: u64,
}

/// Totals for metrics. Maintained incrementally.
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
    /// Cost of all instances per hour, as far as prices are known.
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
    /// Number of the active policy, counted from 1. `None` means the default.
    pub policy: Option<usize>,
    /// Cost of all instances per hour, as far as prices are known.
    pub cost_per_hour: f64,
    /// Reasons for which missing instances cannot be created, for each group.
    pub scale_up_blocked: Vec<String>,
    /// Queued requests, the oldest first.
    #[serde(default)]
    pub waiting: Vec<WaitingStatus>,
    /// Number of instances that boot or are being prepared.
    #[serde(default)]
    pub booting: u64,
    /// Estimated time until the next of them is ready, in milliseconds.
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
    /// Number of requests before it in the queue.
    pub queue_position: usize,
}

/// Status of an instance group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GroupStatus {
    /// Name of the group.
    pub name: String,
    /// Reason for which its plugin is not running. `None` if it is running.
    pub unavailable_reason: Option<String>,
    /// Maximum number of instances. `None` means no limit.
    pub max: Option<u32>,
    /// Number of instances in any state.
    pub instances: u32,
    /// Number of requested instances that have not appeared yet.
    pub requested: u32,
    /// How many of them belong to requests that failed or are unanswered.
    pub unconfirmed: u32,
    /// Consecutive failed creations.
    pub failures: u32,
    /// Error of the last failed creation.
    pub error: Option<String>,
    /// Consecutive failed lists. If not 0, the status of its instances may be outdated.
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
    /// Returns a message if its instances cannot be listed.
    #[must_use]
    pub fn unlisted(&self) -> Option<String> {
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
    /// `booting`, `preparing`, `ready`, `suspending`, `suspended` or `resuming` (with an environment for a later job),
    /// `cordoned` (by an operator), `draining` (deleted after its last job), or `deleting`.
    pub state: String,
    /// Reason for the deletion, the operator who cordoned it, or the suspended environment.
    pub reason: Option<String>,
    /// Time in this state, in milliseconds.
    pub state_age_ms: u64,
    /// Time since it was first seen, in milliseconds.
    pub age_ms: u64,
    /// Number of jobs that it has had.
    pub job_count: u32,
    /// Consecutive failed health checks.
    pub failures: u32,
    /// Assigned slots.
    pub slots: Vec<SlotStatus>,
}

/// An assigned slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotStatus {
    /// Number of the slot, counted from 0.
    pub slot: u32,
    /// Task key of the job.
    pub key: String,
}

/// Reason for which a request waits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WaitReason {
    /// Time in the queue, in milliseconds.
    pub waiting_ms: u64,
    /// Number of requests before it in the queue.
    pub queue_position: usize,
    /// Number of instances that boot or are being prepared.
    pub booting: u64,
    /// Estimated time until the next of them is ready, in milliseconds.
    pub next_ready_in_ms: Option<u64>,
    /// Reasons for which no more instances can be created, for each group.
    pub scale_up_blocked: Vec<String>,
}

impl Engine {
    /// Returns the number of slots by state, in constant time.
    #[must_use]
    pub fn slot_counts(&self) -> SlotCounts {
        let sums: pool::PoolTotals = self.pool.sums();
        SlotCounts {
            idle: sums.free,
            pending: self.queue.len() as u64,
            acquired: sums.held,
            reserved: self.reservations.len() as u64,
            unavailable: sums.unavailable,
        }
    }

    /// Returns the totals for metrics.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let open =
            |which: fn(&super::GroupState) -> u32| self.groups.iter().map(|group| u64::from(which(group))).sum::<u64>();
        let mut by_state: Vec<(&'static str, u64)> = self.pool.by_state().collect();
        // Muster sends requests immediately, so none is ever in the state `requested`.
        let requested = open(super::GroupState::may_appear);
        by_state.extend([("requested", 0), ("pending", requested)]);
        Totals {
            by_state,
            machines: self.pool.machines(requested),
            max: self.groups.iter().map(|group| group.max_instances().map(u64::from)).sum(),
            desired_change: self.desired_change,
            cost_per_hour: self.cost_per_hour(),
            unmanaged: self.groups.iter().map(|group| group.unmanaged.len() as u64).sum(),
        }
    }

    /// Returns the full status. Takes time in proportion to the number of instances.
    #[must_use]
    pub fn status(&self, now: Now) -> ScalerStatus {
        let inputs = self.inputs(now);
        let mut instances: Vec<&Instance> = self.pool.iter().map(|(_, instance)| instance).collect();
        instances.sort_by_key(|instance| instance.sequence);
        ScalerStatus {
            slots: self.slot_counts(),
            desired_change: formula::required(&inputs),
            idle_target: formula::idle_target(&inputs),
            policy: self.policy.map(|index| index + 1),
            cost_per_hour: self.cost_per_hour(),
            scale_up_blocked: self.block_messages(now),
            waiting: self.waiting(now),
            booting: self.booting(),
            next_ready_in_ms: self.ready_in_ms(now),
            groups: (0..self.groups.len()).filter_map(|index| self.group_status(GroupId(index))).collect(),
            instances: instances.into_iter().map(|instance| self.instance_status(now, instance)).collect(),
        }
    }

    /// Returns the reason for which a request waits, or `None` if the key is not queued.
    #[must_use]
    pub fn explain_waiting(&self, now: Now, key: &TaskKey) -> Option<WaitReason> {
        let waiter = self.queue.get(key)?;
        Some(WaitReason {
            waiting_ms: millis(now.at.since(waiter.since)),
            queue_position: self.queue.position(key),
            booting: self.booting(),
            next_ready_in_ms: self.ready_in_ms(now),
            scale_up_blocked: self.block_messages(now),
        })
    }

    fn waiting(&self, now: Now) -> Vec<WaitingStatus> {
        let all = self.queue.iter().enumerate();
        all.map(|(before, waiter)| WaitingStatus {
            key: waiter.key.to_string(),
            waiting_ms: millis(now.at.since(waiter.since)),
            queue_position: before,
        })
        .collect()
    }

    /// Number of instances that boot or are being prepared.
    fn booting(&self) -> u64 {
        self.expected() + (0..self.groups.len()).map(|group| u64::from(self.pool.starting(GroupId(group)))).sum::<u64>()
    }

    fn ready_in_ms(&self, now: Now) -> Option<u64> {
        let readying = |group: &super::GroupState| group.preparation.fast.unwrap_or_default();
        let asked = self
            .groups
            .iter()
            .filter_map(|group| Some(group.pending_request_times()?.0 + group.boot.fast? + readying(group)));
        let known = self.pool.iter().filter_map(|(_, instance)| {
            let group = self.group(instance.group)?;
            match instance.state {
                InstancePhase::Booting => Some(instance.requested_at + group.boot.fast? + readying(group)),
                InstancePhase::Preparing => Some(instance.since + group.preparation.fast?),
                _ => None,
            }
        });
        asked.chain(known).min().map(|at| millis(at.since(now.at)))
    }

    fn block_messages(&self, now: Now) -> Vec<String> {
        let mut held = self.blocked_groups.clone();
        for (id, hold) in &mut held {
            // Update the remaining pause.
            if let (ScaleUpBlock::BackOff { pause, .. }, Some(group)) = (hold, self.group(*id)) {
                let backoff = if group.creation.is_active(now.at) { &group.creation } else { &group.readiness };
                *pause = backoff.until.since(now.at);
            }
        }
        let held = self.with_group_names(held);
        held.into_iter().map(|(group, hold)| format!("group {group}: {hold}")).collect()
    }

    fn group_status(&self, id: GroupId) -> Option<GroupStatus> {
        let group = self.group(id)?;
        let failing = [&group.creation, &group.readiness].into_iter().find(|backoff| backoff.failures > 0);
        Some(GroupStatus {
            name: group.config.name.clone(),
            unavailable_reason: match &group.plugin {
                Plugin::Down { cause } => Some(cause.clone()),
                Plugin::Up { .. } => None,
            },
            max: group.max_instances(),
            instances: u32::try_from(self.pool.count(id)).unwrap_or(u32::MAX),
            requested: group.may_appear(),
            unconfirmed: group.may_appear() - group.expected(),
            failures: failing.map_or(0, |backoff| backoff.failures),
            error: failing.map(|backoff| backoff.error.clone()),
            list_failures: group.list_schedule.failure().map_or(0, |(failures, _)| failures),
            list_error: group.list_schedule.failure().map(|(_, error)| error.to_owned()),
            unmanaged: group.unmanaged.keys().map(ToString::to_string).collect(),
            drained: group.drained.clone(),
        })
    }

    fn instance_status(&self, now: Now, instance: &Instance) -> InstanceStatus {
        let (state, why) = match &instance.state {
            InstancePhase::Booting => ("booting", None),
            InstancePhase::Preparing => ("preparing", None),
            InstancePhase::Ready => ("ready", None),
            InstancePhase::Suspended(sleep) => {
                (sleep.state.name(), Some(suspended_reason(instance, sleep.until.since(now.at))))
            }
            InstancePhase::Cordoned { by, .. } => ("cordoned", Some(by.clone())),
            InstancePhase::Draining(why) => ("draining", Some(why.to_string())),
            InstancePhase::Deleting(deleting) => ("deleting", Some(deleting.reason.to_string())),
        };
        let slots = (0..).zip(&instance.slots);
        InstanceStatus {
            id: instance.id.to_string(),
            group: self.group(instance.group).map_or_else(String::new, |group| group.config.name.clone()),
            state: state.to_owned(),
            reason: why,
            state_age_ms: millis(now.at.since(instance.since)),
            age_ms: millis(now.at.since(instance.first_seen)),
            job_count: instance.job_count,
            failures: instance.failures,
            slots: slots.filter_map(|(slot, key)| Some(SlotStatus { slot, key: key.as_ref()?.to_string() })).collect(),
        }
    }
}

/// Returns the environment of a suspended instance and its remaining time.
fn suspended_reason(instance: &Instance, left: Duration) -> String {
    let name = instance.saved_environment.as_ref().map_or("", |environment| environment.name.as_str());
    format!("environment of {name}, expires in {} s", left.as_secs())
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
