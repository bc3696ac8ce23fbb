//! Instances with several jobs: resource requests, shares and usage.

use std::num::NonZeroU32;
use std::path::Path;
use std::time::Duration;

use muster_agent_api::result::ResourceUsage;
use muster_config::settings::{AutoscalerSettings, StickySettings};
use muster_taskscaler::driver;
use muster_taskscaler::resources;
use muster_taskscaler::types::{JobKind, ResourceRequest, SlotRequest, StickyContextId, TriedInstance};
use sha2::{Digest, Sha256};

use crate::port::{EnvironmentRequest, SlotKey, SlotShare, StickyContextSettings};

/// Relative to the home directory on the instance.
const CONTEXTS_DIR: &str = ".muster/contexts";

pub(super) fn slot_request(
    key: &SlotKey,
    job: &EnvironmentRequest,
    settings: &AutoscalerSettings,
    avoid: Option<TriedInstance>,
) -> SlotRequest {
    let project = key.project_id.to_le_bytes();
    let sticky = settings.sticky.is_some() && job.sticky;
    SlotRequest {
        resources: ResourceRequest { cpu_milli: job.cpu_milli, memory_bytes: job.memory_bytes },
        job_kind: (!job.name.is_empty()).then(|| JobKind(hash_number(&[&project, job.name.as_bytes()]))),
        sticky_context: sticky.then(|| StickyContextId(hash_number(&[&project, &[u8::from(job.protected)]]))),
        avoid,
    }
}

/// The first eight bytes of the SHA-256 hash of the concatenated parts.
fn hash_number(parts: &[&[u8]]) -> u64 {
    let mut hash = Sha256::new();
    parts.iter().for_each(|part| hash.update(part));
    hash.finalize().iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Returns the job's share of the instance of a lease.
///
/// `home` is the home directory on the instance, if it is known. `nested` means that the job has a virtual machine.
/// `shares_host` means that the instance is on the manager's host.
pub(super) fn slot_share(
    lease: &driver::LeaseHandle,
    settings: &AutoscalerSettings,
    home: Option<&Path>,
    nested: bool,
    shares_host: bool,
) -> SlotShare {
    let sticky = |sticky: &StickySettings| {
        Some(StickyContextSettings {
            root: home?.join(CONTEXTS_DIR),
            max_size_bytes: sticky.max_size_bytes,
            max_age: sticky.max_age,
        })
    };
    let density = settings.scaling.config.density;
    SlotShare {
        slot: lease.slot(),
        slots: lease.slots(),
        memory_bytes: density.slot.memory_bytes.unwrap_or_default().saturating_mul(u64::from(lease.slots())),
        measured: density.learn_from_usage,
        sticky: settings.sticky.as_ref().and_then(sticky),
        is_exclusive: nested || settings.scaling.config.max_uses == Some(NonZeroU32::MIN),
        shares_host,
    }
}

/// Converts a job's usage to the scaler's type. Omits values that cover only some processes, because they are too low.
pub(super) fn job_usage(used: &ResourceUsage) -> resources::JobUsage {
    let millis = Duration::from_millis;
    resources::JobUsage {
        wall: millis(used.wall_ms),
        cpu: used.cpu_ms.filter(|_| !used.counted_by_process).map(millis),
        memory_bytes: used.memory_bytes.filter(|_| !used.counted_by_process),
        stalled: resources::PressureStall {
            cpu: used.cpu_stalled_ms.map(millis),
            memory: used.memory_stalled_ms.map(millis),
            io: used.io_stalled_ms.map(millis),
        },
    }
}

#[cfg(test)]
mod tests {
    use muster_job::JobId;

    use super::*;

    #[test]
    fn sticky_contexts_and_job_kinds_are_distinguished() {
        let settings = AutoscalerSettings { sticky: Some(StickySettings::default()), ..AutoscalerSettings::default() };
        let request_for = |project_id, name: &str, protected| {
            let key = SlotKey { runner: "r".to_owned(), project_id };
            let job = EnvironmentRequest {
                name: name.to_owned(),
                protected,
                sticky: true,
                ..EnvironmentRequest::new(JobId(1))
            };
            slot_request(&key, &job, &settings, None)
        };
        let one = request_for(1, "build", true);
        assert_eq!(one, request_for(1, "build", true));
        assert_eq!(one.sticky_context, request_for(1, "test", true).sticky_context);
        for other in [request_for(1, "build", false), request_for(2, "build", true)] {
            assert_ne!(one.sticky_context, other.sticky_context);
        }
        assert!(
            one.job_kind != request_for(1, "test", true).job_kind
                && one.job_kind != request_for(2, "build", true).job_kind
        );
        assert_eq!(one.job_kind, request_for(1, "build", false).job_kind);
        let without_sticky = slot_request(
            &SlotKey { runner: "r".to_owned(), project_id: 1 },
            &EnvironmentRequest { sticky: true, ..EnvironmentRequest::new(JobId(1)) },
            &AutoscalerSettings::default(),
            None,
        );
        assert_eq!((without_sticky.sticky_context, without_sticky.job_kind), (None, None));
    }
}
