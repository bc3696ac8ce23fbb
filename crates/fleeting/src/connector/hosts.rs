//! Who machines are.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::model::InstanceId;

/// The host keys of instances (with HTTPS their certificates): those that the plugin pinned, else the one of the first connection. A machine is new, so its
/// first key is believed; from then on only that one.
#[derive(Debug, Clone, Default)]
pub struct KnownHosts(Arc<Mutex<HashMap<InstanceId, Keys>>>);

/// The keys that an instance may have.
#[derive(Debug)]
struct Keys {
    fingerprints: Vec<String>,
    /// From elsewhere, and not from the first connection.
    are_pinned: bool,
}

impl KnownHosts {
    /// The known fingerprints, where the key is none of them.
    pub(super) fn differs(&self, instance: &InstanceId, found: &str) -> Option<String> {
        let mut hosts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let first = || Keys { fingerprints: vec![found.to_owned()], are_pinned: false };
        let known = &hosts.entry(instance.clone()).or_insert_with(first).fingerprints;
        (!known.iter().any(|known| known == found)).then(|| known.join(" or "))
    }

    /// Forgets the key of the first connection. Whether there was one, and not pinned ones.
    pub(super) fn forget_the_first(&self, instance: &InstanceId) -> bool {
        let mut hosts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = hosts.get(instance).is_some_and(|keys| !keys.are_pinned);
        if is_first {
            hosts.remove(instance);
        }
        is_first
    }

    /// The keys that the instance may have, where they are known from elsewhere: fingerprints, `SHA256:...`.
    pub fn pin(&self, instance: &InstanceId, fingerprints: &[String]) {
        let keys = Keys { fingerprints: fingerprints.to_vec(), are_pinned: true };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(instance.clone(), keys);
    }

    /// The instance is gone: its name may come back with another machine.
    pub fn forget(&self, instance: &InstanceId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(instance);
    }
}
