//! What there is, and why: for `muster fleet status`, metrics, and "why is this job waiting".

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::group::Plugin;
use super::instance::{Instance, State};
use super::{Engine, pool};
use crate::decision::Hold;
use crate::formula;
use crate::time::Now;
use crate::words::{GroupId, Key};

/// Slots, by what they are (the states of `fleeting_taskscaler_tasks`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Tasks {
    /// Free, and could be given now.
    pub idle: u64,
    /// Requests that wait.
    pub pending: u64,
    /// Held.
    pub acquired: u64,
    /// Promised.
    pub reserved: u64,
    /// Neither held nor to be given any more.
    pub unavailable: u64,
}

/// Sums for metrics; taking them takes no time.
#[derive(Debug, Clone, PartialEq)]
pub struct Counts {
    /// Instances by the states of `fleeting_provisioner_instances`.
    pub by_state: Vec<(&'static str, u64)>,
    /// Instances by the states of `gitlab_runner_autoscaling_machine_states`.
    pub machines: Vec<(&'static str, u64)>,
    /// The most instances of all groups together; none: no limit.
    pub max: Option<u64>,
    /// Instances to create (positive) or to remove (negative).
    pub missing: i64,
    /// Cost per hour, where prices are known.
    pub spend_per_hour: f64,
    /// Instances that nobody here asked for.
    pub foreign: u64,
}

/// Everything at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Slots.
    pub tasks: Tasks,
    /// Instances to create (positive) or to remove (negative).
    pub missing: i64,
    /// Idle slots that are wanted.
    pub idle_wanted: u64,
    /// The policy that holds, from 1; none: the default.
    pub policy: Option<usize>,
    /// Cost per hour, where prices are known.
    pub spend_per_hour: f64,
    /// Why what is missing cannot be asked for, for each group.
    pub held: Vec<String>,
    /// The requests that wait, the oldest first.
    #[serde(default)]
    pub waiting: Vec<WaitingStatus>,
    /// Instances that boot or are made ready.
    #[serde(default)]
    pub booting: u64,
    /// Until the next of them is ready, by what was learned, in milliseconds.
    #[serde(default)]
    pub ready_in_ms: Option<u64>,
    /// The groups.
    pub groups: Vec<GroupStatus>,
    /// The instances, the oldest first.
    pub instances: Vec<InstanceStatus>,
}

/// One request that waits for a slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingStatus {
    /// Whose.
    pub key: String,
    /// For so long, in milliseconds.
    pub for_ms: u64,
    /// Requests before it.
    pub before: usize,
}

/// One group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GroupStatus {
    /// Its name.
    pub name: String,
    /// Why its plugin does not run.
    pub down: Option<String>,
    /// The most instances; none: no limit.
    pub max: Option<u32>,
    /// Instances in any state.
    pub instances: u32,
    /// Instances that were asked for and have not appeared.
    pub coming: u32,
    /// Of those, the ones of requests that failed or were not answered.
    pub doubtful: u32,
    /// Failed creations in a row.
    pub failures: u32,
    /// The last failure, in the provider's words.
    pub error: Option<String>,
    /// Lists of its instances that failed in a row: what is told of them may be old.
    #[serde(default)]
    pub list_failures: u32,
    /// The last such failure, in the provider's words.
    #[serde(default)]
    pub list_error: Option<String>,
    /// Instances that nobody here asked for.
    pub foreign: Vec<String>,
    /// Who drained it, and why; none: it is not drained.
    #[serde(default)]
    pub drained: Option<String>,
}

impl GroupStatus {
    /// That its instances cannot be listed, and why; none where they can.
    #[must_use]
    pub fn unlisted(&self) -> Option<String> {
        let error = self.list_error.as_ref()?;
        let times =
            if self.list_failures > 1 { format!(" {} times in a row", self.list_failures) } else { String::new() };
        Some(format!("its instances could not be listed{times}: {error}"))
    }
}

/// One instance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InstanceStatus {
    /// Its name at the provider.
    pub id: String,
    /// Its group's name.
    pub group: String,
    /// `booting`, `preparing`, `ready`, `suspending`, `suspended`, `resuming` (a job left
    /// its environment for a later one), `drained` (an operator keeps it), `draining` (it goes after its jobs), `deleting`.
    pub state: String,
    /// Why it goes, where it does, or who keeps it.
    pub why: Option<String>,
    /// Since when it is in this state, in milliseconds.
    pub for_ms: u64,
    /// Since it was seen first, in milliseconds.
    pub age_ms: u64,
    /// Jobs so far.
    pub used: u32,
    /// Failures of health in a row.
    pub failures: u32,
    /// Its slots with jobs.
    pub slots: Vec<SlotStatus>,
}

/// One held slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotStatus {
    /// Its number.
    pub slot: u32,
    /// Who has it.
    pub key: String,
}

/// Why a request waits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Wait {
    /// For so long, in milliseconds.
    pub for_ms: u64,
    /// Requests before it.
    pub before: usize,
    /// Instances that boot or are made ready.
    pub booting: u64,
    /// Until the next of them is ready, by what was learned, in milliseconds.
    pub ready_in_ms: Option<u64>,
    /// Why no more can be asked for, for each group.
    pub held: Vec<String>,
}

impl Engine {
    /// Slots by what they are; takes no time.
    #[must_use]
    pub fn tasks(&self) -> Tasks {
        let sums: pool::Sums = self.pool.sums();
        Tasks {
            idle: sums.free,
            pending: self.queue.len() as u64,
            acquired: sums.held,
            reserved: self.reservations.len() as u64,
            unavailable: sums.unavailable,
        }
    }

    /// Sums for metrics.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let open =
            |which: fn(&super::Group) -> u32| self.groups.iter().map(|group| u64::from(which(group))).sum::<u64>();
        let mut by_state: Vec<(&'static str, u64)> = self.pool.by_state().collect();
        // Of Muster's requests none waits to be sent: all that were made are on their way.
        let requested = open(super::Group::possible);
        by_state.extend([("requested", 0), ("pending", requested)]);
        Counts {
            by_state,
            machines: self.pool.machines(requested),
            max: self.groups.iter().map(|group| group.max().map(u64::from)).sum(),
            missing: self.missing,
            spend_per_hour: self.spend_per_hour(),
            foreign: self.groups.iter().map(|group| group.foreign.len() as u64).sum(),
        }
    }

    /// Everything; takes time in proportion to the instances.
    #[must_use]
    pub fn status(&self, now: Now) -> Status {
        let inputs = self.inputs(now);
        let mut instances: Vec<&Instance> = self.pool.iter().map(|(_, instance)| instance).collect();
        instances.sort_by_key(|instance| instance.born);
        Status {
            tasks: self.tasks(),
            missing: formula::required(&inputs),
            idle_wanted: formula::idle(&inputs),
            policy: self.policy.map(|index| index + 1),
            spend_per_hour: self.spend_per_hour(),
            held: self.held_words(now),
            waiting: self.waiting(now),
            booting: self.booting(),
            ready_in_ms: self.ready_in_ms(now),
            groups: (0..self.groups.len()).filter_map(|index| self.group_status(GroupId(index))).collect(),
            instances: instances.into_iter().map(|instance| self.instance_status(now, instance)).collect(),
        }
    }

    /// Why a request waits; none where the key does not wait.
    #[must_use]
    pub fn why_waiting(&self, now: Now, key: &Key) -> Option<Wait> {
        let waiter = self.queue.get(key)?;
        Some(Wait {
            for_ms: millis(now.at.since(waiter.since)),
            before: self.queue.before(key),
            booting: self.booting(),
            ready_in_ms: self.ready_in_ms(now),
            held: self.held_words(now),
        })
    }

    fn waiting(&self, now: Now) -> Vec<WaitingStatus> {
        let all = self.queue.iter().enumerate();
        all.map(|(before, waiter)| WaitingStatus {
            key: waiter.key.to_string(),
            for_ms: millis(now.at.since(waiter.since)),
            before,
        })
        .collect()
    }

    /// Instances that boot or are made ready.
    fn booting(&self) -> u64 {
        self.expected() + (0..self.groups.len()).map(|group| u64::from(self.pool.coming(GroupId(group)))).sum::<u64>()
    }

    fn ready_in_ms(&self, now: Now) -> Option<u64> {
        let readying = |group: &super::Group| group.preparation.fast.unwrap_or_default();
        let asked = self.groups.iter().filter_map(|group| Some(group.asked()?.0 + group.boot.fast? + readying(group)));
        let known = self.pool.iter().filter_map(|(_, instance)| {
            let group = self.group(instance.group)?;
            match instance.state {
                State::Booting => Some(instance.asked + group.boot.fast? + readying(group)),
                State::Preparing => Some(instance.since + group.preparation.fast?),
                _ => None,
            }
        });
        asked.chain(known).min().map(|at| millis(at.since(now.at)))
    }

    fn held_words(&self, now: Now) -> Vec<String> {
        let mut held = self.held.clone();
        for (id, hold) in &mut held {
            // Time has passed since it was told.
            if let (Hold::BackOff { pause, .. }, Some(group)) = (hold, self.group(*id)) {
                let backoff = if group.creation.holds(now.at) { &group.creation } else { &group.readiness };
                *pause = backoff.until.since(now.at);
            }
        }
        let held = self.named(held);
        held.into_iter().map(|(group, hold)| format!("group {group}: {hold}")).collect()
    }

    fn group_status(&self, id: GroupId) -> Option<GroupStatus> {
        let group = self.group(id)?;
        let failing = [&group.creation, &group.readiness].into_iter().find(|backoff| backoff.failures > 0);
        Some(GroupStatus {
            name: group.config.name.clone(),
            down: match &group.plugin {
                Plugin::Down { cause } => Some(cause.clone()),
                Plugin::Up { .. } => None,
            },
            max: group.max(),
            instances: u32::try_from(self.pool.count(id)).unwrap_or(u32::MAX),
            coming: group.possible(),
            doubtful: group.possible() - group.expected(),
            failures: failing.map_or(0, |backoff| backoff.failures),
            error: failing.map(|backoff| backoff.error.clone()),
            list_failures: group.updates.failure().map_or(0, |(failures, _)| failures),
            list_error: group.updates.failure().map(|(_, error)| error.to_owned()),
            foreign: group.foreign.keys().map(ToString::to_string).collect(),
            drained: group.drained.clone(),
        })
    }

    fn instance_status(&self, now: Now, instance: &Instance) -> InstanceStatus {
        let (state, why) = match &instance.state {
            State::Booting => ("booting", None),
            State::Preparing => ("preparing", None),
            State::Ready => ("ready", None),
            State::Asleep(sleep) => (sleep.phase.name(), Some(kept_for(instance, sleep.until.since(now.at)))),
            State::Aside { by, .. } => ("drained", Some(by.clone())),
            State::Draining(why) => ("draining", Some(why.to_string())),
            State::Deleting(deleting) => ("deleting", Some(deleting.why.to_string())),
        };
        let slots = (0..).zip(&instance.slots);
        InstanceStatus {
            id: instance.id.to_string(),
            group: self.group(instance.group).map_or_else(String::new, |group| group.config.name.clone()),
            state: state.to_owned(),
            why,
            for_ms: millis(now.at.since(instance.since)),
            age_ms: millis(now.at.since(instance.seen)),
            used: instance.used,
            failures: instance.failures,
            slots: slots.filter_map(|(slot, key)| Some(SlotStatus { slot, key: key.as_ref()?.to_string() })).collect(),
        }
    }
}

/// For whom an instance is suspended.
fn kept_for(instance: &Instance, left: Duration) -> String {
    let name = instance.environment.as_ref().map_or("", |environment| environment.name.as_str());
    format!("the environment of {name}, kept for a later job for {} s more", left.as_secs())
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
