//! Several jobs on one instance: what a job asks the scaler for, what it gets, and what it used.

use std::num::NonZeroU32;
use std::path::Path;
use std::time::Duration;

use muster_agent_api::result::Used;
use muster_config::settings::{AutoscalerSettings, StickySettings};
use muster_taskscaler::driver;
use muster_taskscaler::need;
use muster_taskscaler::words::Need;
use muster_taskscaler::words::{Context, Request, Tried, Work};
use sha2::{Digest, Sha256};

use crate::port::SlotKey;
use crate::port::{EnvironmentRequest, SlotShare, StickyContextSettings};

/// Below the home directory: what jobs leave for each other.
const CONTEXTS: &str = ".muster/contexts";

/// What the scaler is asked for.
pub(super) fn request(
    key: &SlotKey,
    job: &EnvironmentRequest,
    settings: &AutoscalerSettings,
    avoid: Option<Tried>,
) -> Request {
    let project = key.project_id.to_le_bytes();
    let sticky = settings.sticky.is_some() && job.sticky;
    Request {
        need: Need { cpu_milli: job.cpu_milli, memory_bytes: job.memory_bytes },
        work: (!job.name.is_empty()).then(|| Work(number(&[&project, job.name.as_bytes()]))),
        context: sticky.then(|| Context(number(&[&project, &[u8::from(job.protected)]]))),
        avoid,
    }
}

/// Eight bytes of a hash.
fn number(parts: &[&[u8]]) -> u64 {
    let mut hash = Sha256::new();
    parts.iter().for_each(|part| hash.update(part));
    hash.finalize().iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// What a lease gives; `home` is the home directory on its instance, once that is known. With `nested` the job has a virtual
/// machine of its own there.
pub(super) fn share(
    lease: &driver::Lease,
    settings: &AutoscalerSettings,
    home: Option<&Path>,
    nested: bool,
) -> SlotShare {
    let sticky = |sticky: &StickySettings| {
        Some(StickyContextSettings {
            root: home?.join(CONTEXTS),
            size_max_bytes: sticky.size_max_bytes,
            age_max: sticky.age_max,
        })
    };
    let density = settings.scaling.config.density;
    SlotShare {
        slot: lease.slot(),
        slots: lease.slots(),
        memory_bytes: density.slot.memory_bytes.unwrap_or_default().saturating_mul(u64::from(lease.slots())),
        measured: density.measured,
        sticky: settings.sticky.as_ref().and_then(sticky),
        is_alone: nested || settings.scaling.config.uses_max == Some(NonZeroU32::MIN),
    }
}

/// What a job used, as the scaler learns from it: what only some processes say is no need.
pub(super) fn used(used: &Used) -> need::Used {
    let millis = Duration::from_millis;
    need::Used {
        wall: millis(used.wall_ms),
        cpu: used.cpu_ms.filter(|_| !used.by_processes).map(millis),
        memory_bytes: used.memory_bytes.filter(|_| !used.by_processes),
        stalled: need::Stalled {
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
    fn a_context_is_of_one_project_and_one_level_and_a_kind_is_of_one_project() {
        let settings = AutoscalerSettings { sticky: Some(StickySettings::default()), ..AutoscalerSettings::default() };
        let of = |project_id, name: &str, protected| {
            let key = SlotKey { runner: "r".to_owned(), project_id };
            let job = EnvironmentRequest {
                name: name.to_owned(),
                protected,
                sticky: true,
                ..EnvironmentRequest::new(JobId(1))
            };
            request(&key, &job, &settings, None)
        };
        let one = of(1, "build", true);
        assert_eq!(one, of(1, "build", true));
        assert_eq!(one.context, of(1, "test", true).context);
        for other in [of(1, "build", false), of(2, "build", true)] {
            assert_ne!(one.context, other.context);
        }
        assert!(one.work != of(1, "test", true).work && one.work != of(2, "build", true).work);
        assert_eq!(one.work, of(1, "build", false).work);
        let off = request(
            &SlotKey { runner: "r".to_owned(), project_id: 1 },
            &EnvironmentRequest { sticky: true, ..EnvironmentRequest::new(JobId(1)) },
            &AutoscalerSettings::default(),
            None,
        );
        assert_eq!((off.context, off.work), (None, None));
    }
}
