//! Who gets which slot.

use super::{Engine, Place};
use crate::decision::What;
use crate::event::Action;
use crate::time::Now;

impl Engine {
    /// Free slots go to those who wait, the longest first (I5).
    pub(super) fn place(&mut self, now: Now) {
        while !self.stopping && !self.queue.is_empty() {
            let Some(index) = self.pool.best() else { return };
            let Some(waiter) = self.queue.pop() else { return };
            let key = waiter.key;
            let Some(slot) = self.pool.get(index).map(super::instance::Instance::free_slot) else { return };
            self.pool.change(index, |instance| {
                instance.hold(slot, key.clone());
                instance.used += 1;
            });
            let place = Place { index, slot };
            self.reservations.remove(&key);
            self.leases.insert(key.clone(), place);
            self.touch(index);
            let Some(lease) = self.lease_at(&key, place) else { return };
            let (group, id, slot) = (lease.group, lease.instance.clone(), lease.slot);
            self.decide(now, What::Leased { key, group, id, slot, waited: now.at.since(waiter.since) });
            self.actions.push(Action::Grant(lease));
        }
    }
}
