//! What must hold in the world, whatever the provider does: the invariants that the engine's own books cannot show.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use super::cloud::{Cloud, Visibility};
use crate::config::Config;
use crate::engine::Violation;
use crate::time::Time;
use crate::types::{GroupId, SlotAssignment, TaskKey};
use muster_fleeting::model::InstanceId;

/// Calls of `Increase` in a minute: ten at once, then ten per second (I6).
const MAX_CALLS_PER_MINUTE: usize = 610;

/// Who watches.
#[derive(Debug, Default)]
pub struct InvariantChecker {
    /// Who runs where.
    slots: HashMap<(GroupId, InstanceId, u32), TaskKey>,
    held: HashMap<(GroupId, InstanceId), u32>,
    uses: HashMap<(GroupId, InstanceId), u32>,
    /// What jobs left for later ones: whose it is, by the name of the environment.
    left: HashMap<(GroupId, InstanceId), String>,
    /// Calls of the last minute.
    increases: VecDeque<Time>,
    /// When a price changed last.
    priced: Option<Time>,
}

impl InvariantChecker {
    /// A lease begins.
    ///
    /// # Errors
    /// J4: a slot twice, or more slots or uses than there may be. An environment that is another's.
    pub fn granted(&mut self, lease: &SlotAssignment, resumes: Option<&str>, config: &Config) -> Result<(), Violation> {
        let place = (lease.group, lease.instance.clone());
        let left = self.left.remove(&place);
        if left.as_deref() != resumes {
            let what = format!("{} asked for {resumes:?}, and {} has {left:?}", lease.key, lease.instance);
            return Err(Violation::new("environment", what));
        }
        let slot = (lease.group, lease.instance.clone(), lease.slot);
        if let Some(other) = self.slots.insert(slot, lease.key.clone()) {
            return Err(Violation::new(
                "J4",
                format!("slot {} of {} is given to {} and {other}", lease.slot, lease.instance, lease.key),
            ));
        }
        let held = self.held.entry(place.clone()).or_default();
        *held += lease.slots;
        if *held > config.capacity.get() || lease.slot >= config.capacity.get() || lease.slots == 0 {
            return Err(Violation::new("J4", format!("{held} slots are held on {}", lease.instance)));
        }
        let uses = self.uses.entry(place).or_default();
        // A job that is resumed goes on with the use of the one before it.
        *uses += u32::from(resumes.is_none());
        if config.max_uses.is_some_and(|max| *uses > max.get()) {
            return Err(Violation::new("J4", format!("{} has its job number {uses}", lease.instance)));
        }
        Ok(())
    }

    /// A lease ends.
    pub fn ended(&mut self, lease: &SlotAssignment) {
        let place = (lease.group, lease.instance.clone());
        if self.slots.remove(&(place.0, place.1.clone(), lease.slot)).is_some()
            && let Some(held) = self.held.get_mut(&place)
        {
            *held -= lease.slots;
        }
    }

    /// A job leaves its environment, by this name, for a later one.
    pub fn left(&mut self, lease: &SlotAssignment, name: String) {
        self.left.insert((lease.group, lease.instance.clone()), name);
    }

    /// Instances are removed, or suspended.
    ///
    /// # Errors
    /// I4: one of them has a job.
    pub fn removed(&self, group: GroupId, ids: &[InstanceId]) -> Result<(), Violation> {
        for id in ids {
            if let Some(held @ 1..) = self.held.get(&(group, id.clone())) {
                return Err(Violation::new(
                    "I4",
                    format!("{id} is removed or suspended, and {held} of its slots are held"),
                ));
            }
        }
        Ok(())
    }

    /// Instances are asked for.
    ///
    /// # Errors
    /// I6: too many calls.
    pub fn asked(&mut self, at: Time) -> Result<(), Violation> {
        self.increases.push_back(at);
        while self.increases.front().is_some_and(|first| at.since(*first) >= Duration::from_secs(60)) {
            self.increases.pop_front();
        }
        if self.increases.len() > MAX_CALLS_PER_MINUTE {
            return Err(Violation::new("I6", format!("{} creation calls in a minute", self.increases.len())));
        }
        Ok(())
    }

    /// The machines of a group, as they really are. Those that no list since the last lie about them has told of do not
    /// count: nobody can know of them.
    ///
    /// # Errors
    /// I1: more than allowed.
    pub fn made(&self, cloud: &Cloud, at: Time, max: u32) -> Result<(), Violation> {
        let live = cloud.live(at).filter(|(_, machine)| machine.visibility == Visibility::Always).count();
        if max > 0 && live > max as usize {
            return Err(Violation::new("I1", format!("{live} machines, of at most {max}")));
        }
        Ok(())
    }

    /// A price is another one from now on.
    pub fn priced(&mut self, at: Time) {
        self.priced = Some(at);
    }

    /// What the machines cost per hour. What was asked for at another price may come for a while.
    ///
    /// # Errors
    /// I6: more than allowed.
    #[expect(clippy::cast_precision_loss, reason = "counts of machines")]
    pub fn spent(&self, clouds: &[Cloud], config: &Config, at: Time) -> Result<(), Violation> {
        let Some(max) = config.max_cost_per_hour else { return Ok(()) };
        if self.priced.is_some_and(|priced| at.since(priced) < config.create_timeout) {
            return Ok(());
        }
        let costs = clouds.iter().zip(&config.groups).map(|(cloud, group)| {
            cloud.live(at).filter(|(_, machine)| machine.visibility == Visibility::Always).count() as f64
                * group.price_per_hour
        });
        let spend: f64 = costs.sum();
        if spend > max + 1e-6 {
            return Err(Violation::new("I6", format!("{spend} per hour, of at most {max}")));
        }
        Ok(())
    }
}
