//! Invariants of a simulation that hold whatever the provider does.
//!
//! The crate's documentation defines I1 to I6, and `docs/spec/life-of-a-job.md` defines J4.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use super::cloud::{Cloud, Visibility};
use crate::config::Config;
use crate::engine::Violation;
use crate::time::Time;
use crate::types::{GroupId, SlotAssignment, TaskKey};
use muster_fleeting::model::InstanceId;

/// A burst of ten, and ten per second (I6).
const MAX_CALLS_PER_MINUTE: usize = 610;

/// Tracks leases and calls, and checks the invariants.
#[derive(Debug, Default)]
pub struct InvariantChecker {
    /// Task of each assigned slot.
    slots: HashMap<(GroupId, InstanceId, u32), TaskKey>,
    /// Number of assigned slots of each instance.
    assigned: HashMap<(GroupId, InstanceId), u32>,
    /// Number of jobs so far of each instance.
    uses: HashMap<(GroupId, InstanceId), u32>,
    /// Name of the environment that each instance has for a later job.
    environments: HashMap<(GroupId, InstanceId), String>,
    increases: VecDeque<Time>,
    last_price_change: Option<Time>,
}

impl InvariantChecker {
    /// Records that a lease begins.
    ///
    /// # Errors
    /// Returns a violation of J4 if a slot is assigned twice, if too many slots of the instance are assigned, or if it
    /// has had too many jobs. Returns a violation of the invariant `environment` if the instance does not have the
    /// environment that the job resumes, or has an environment that the job does not resume.
    pub fn record_lease_start(
        &mut self,
        lease: &SlotAssignment,
        resumes: Option<&str>,
        config: &Config,
    ) -> Result<(), Violation> {
        let instance = (lease.group, lease.instance.clone());
        let environment = self.environments.remove(&instance);
        if environment.as_deref() != resumes {
            let message = format!("{} resumes {resumes:?}, but {} has {environment:?}", lease.key, lease.instance);
            return Err(Violation::new("environment", message));
        }
        let slot = (lease.group, lease.instance.clone(), lease.slot);
        if let Some(other) = self.slots.insert(slot, lease.key.clone()) {
            return Err(Violation::new(
                "J4",
                format!("slot {} of {} is assigned to {} and {other}", lease.slot, lease.instance, lease.key),
            ));
        }
        let assigned = self.assigned.entry(instance.clone()).or_default();
        *assigned += lease.slots;
        if *assigned > config.capacity.get() || lease.slot >= config.capacity.get() || lease.slots == 0 {
            return Err(Violation::new("J4", format!("{assigned} slots of {} are assigned", lease.instance)));
        }
        let uses = self.uses.entry(instance).or_default();
        *uses += u32::from(resumes.is_none());
        if config.max_uses.is_some_and(|max| *uses > max.get()) {
            return Err(Violation::new("J4", format!("{} has had {uses} jobs", lease.instance)));
        }
        Ok(())
    }

    /// Records that a lease ends.
    pub fn record_lease_end(&mut self, lease: &SlotAssignment) {
        let instance = (lease.group, lease.instance.clone());
        if self.slots.remove(&(instance.0, instance.1.clone(), lease.slot)).is_some()
            && let Some(assigned) = self.assigned.get_mut(&instance)
        {
            *assigned -= lease.slots;
        }
    }

    /// Records that a job saves its environment under this name.
    pub fn record_saved_environment(&mut self, lease: &SlotAssignment, name: String) {
        self.environments.insert((lease.group, lease.instance.clone()), name);
    }

    /// Checks a call that deletes or suspends instances.
    ///
    /// # Errors
    /// Returns a violation of I4 if an instance has a job.
    pub fn check_deletion_or_suspension(&self, group: GroupId, ids: &[InstanceId]) -> Result<(), Violation> {
        for id in ids {
            if let Some(assigned @ 1..) = self.assigned.get(&(group, id.clone())) {
                return Err(Violation::new(
                    "I4",
                    format!("{id} is deleted or suspended while {assigned} of its slots are assigned"),
                ));
            }
        }
        Ok(())
    }

    /// Records a create call.
    ///
    /// # Errors
    /// Returns a violation of I6 if there were too many calls in the last minute.
    pub fn record_create_call(&mut self, at: Time) -> Result<(), Violation> {
        self.increases.push_back(at);
        while self.increases.front().is_some_and(|first| at.since(*first) >= Duration::from_secs(60)) {
            self.increases.pop_front();
        }
        if self.increases.len() > MAX_CALLS_PER_MINUTE {
            return Err(Violation::new("I6", format!("{} create calls in a minute", self.increases.len())));
        }
        Ok(())
    }

    /// Checks the number of existing machines of a group. Only machines that the manager can know about count.
    ///
    /// # Errors
    /// Returns a violation of I1 if there are more machines than allowed.
    pub fn check_instance_count(&self, cloud: &Cloud, at: Time, max: u32) -> Result<(), Violation> {
        let live = cloud.live(at).filter(|(_, machine)| machine.visibility == Visibility::Always).count();
        if max > 0 && live > max as usize {
            return Err(Violation::new("I1", format!("{live} machines exist, but at most {max} are allowed")));
        }
        Ok(())
    }

    /// Records that a price changed.
    pub fn record_price_change(&mut self, at: Time) {
        self.last_price_change = Some(at);
    }

    /// Checks the cost per hour of all machines that the manager can know about.
    ///
    /// After a price change, the check pauses for `create_timeout`, because machines that were requested at the old
    /// price may still appear.
    ///
    /// # Errors
    /// Returns a violation of I6 if the cost exceeds `max_cost_per_hour`.
    #[expect(clippy::cast_precision_loss, reason = "counts of machines")]
    pub fn check_cost(&self, clouds: &[Cloud], config: &Config, at: Time) -> Result<(), Violation> {
        let Some(max) = config.max_cost_per_hour else { return Ok(()) };
        if self.last_price_change.is_some_and(|change| at.since(change) < config.create_timeout) {
            return Ok(());
        }
        let costs = clouds.iter().zip(&config.groups).map(|(cloud, group)| {
            cloud.live(at).filter(|(_, machine)| machine.visibility == Visibility::Always).count() as f64
                * group.price_per_hour
        });
        let cost: f64 = costs.sum();
        if cost > max + 1e-6 {
            return Err(Violation::new(
                "I6",
                format!("the machines cost {cost} per hour, but at most {max} is allowed"),
            ));
        }
        Ok(())
    }
}
