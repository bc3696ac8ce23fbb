//! Who machines are.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::model::InstanceId;

/// The host keys of instances (with HTTPS their certificates): those that the plugin pinned, else the one of the first connection. A machine is new, so its
/// first key is believed; from then on only that one.
#[derive(Debug, Clone, Default)]
pub struct KnownHosts(Arc<Mutex<HashMap<InstanceId, Vec<String>>>>);

impl KnownHosts {
    /// The known fingerprints, where the key is none of them.
    pub(super) fn differs(&self, instance: &InstanceId, found: &str) -> Option<String> {
        let mut hosts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = hosts.entry(instance.clone()).or_insert_with(|| vec![found.to_owned()]);
        (!known.iter().any(|known| known == found)).then(|| known.join(" or "))
    }

    /// The keys that the instance may have, where they are known from elsewhere: fingerprints, `SHA256:...`.
    pub fn pin(&self, instance: &InstanceId, fingerprints: &[String]) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(instance.clone(), fingerprints.to_vec());
    }

    /// The instance is gone: its name may come back with another machine.
    pub fn forget(&self, instance: &InstanceId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(instance);
    }
}
