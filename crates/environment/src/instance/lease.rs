//! A job's slot on an instance, as an environment.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use muster_agent_api::result::Used;
use muster_fleeting::connector::Session;
use muster_taskscaler::driver::Lease as Slot;

use super::provider::{Shared, UnderWay};
use super::reach::{Addresses, Dial, Instance, directories};
use super::share;
use crate::{AgentConnection, Directories, Environment, EnvironmentError, Guard, Share, SlotGuard, TakenSlot};

/// An instance that answers nothing for so long is given up, whatever its provider says of it. Before that its connection was
/// silent for up to 6 s: together a job hears of it within 15 s.
const SILENCE_MAX: Duration = Duration::from_secs(7);

/// The scaler's lease. Given back when the job said so, and else left to the manager's next start: the instance of a job
/// that may still run must not be removed.
struct Held {
    slot: Option<Slot>,
    over: AtomicBool,
    /// Dropped after the slot: then it is free when the next job is asked for.
    _counted: (TakenSlot, UnderWay),
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some(slot) = self.slot.take() else { return };
        if self.over.load(Ordering::Relaxed) {
            slot.finish_job();
        } else {
            slot.keep();
        }
    }
}

/// The environment of one lease; its instance may have others.
struct Leased {
    /// Dropped before the slot is: who gets that finds the instance free.
    instance: Arc<Instance>,
    held: Arc<Held>,
    shared: Arc<Shared>,
}

struct HeldGuard(Arc<Held>);

impl Guard for HeldGuard {
    fn release(self: Box<Self>) {
        self.0.over.store(true, Ordering::Relaxed);
    }
}

/// A lease's environment, and what holds its slot.
pub(super) fn leased(
    slot: Slot,
    instance: Arc<Instance>,
    shared: Arc<Shared>,
    number: TakenSlot,
    counted: UnderWay,
) -> (Arc<dyn Environment>, SlotGuard) {
    let held = Arc::new(Held { slot: Some(slot), over: AtomicBool::new(false), _counted: (number, counted) });
    let guard = HeldGuard(Arc::clone(&held));
    (Arc::new(Leased { instance, held, shared }), Box::new(guard))
}

#[async_trait]
impl Dial for Leased {
    async fn dial(&self) -> Result<(Box<dyn Session>, Addresses), String> {
        let slot = self.held.slot.as_ref().ok_or("the slot was given back")?;
        self.shared.dial((slot.group(), slot.instance()), || slot.connect_info(), false).await
    }

    fn doubt(&self) {
        if let Some(slot) = &self.held.slot {
            slot.suspect();
        }
    }
}

#[async_trait]
impl Environment for Leased {
    async fn connect(&self) -> Result<AgentConnection, EnvironmentError> {
        Ok(self.instance.connect(self).await?.0)
    }

    async fn directories(&self) -> Result<Directories, EnvironmentError> {
        Ok(directories(&self.instance.connect(self).await?.1))
    }

    fn words(&self) -> Vec<String> {
        self.instance.words()
    }

    fn share(&self) -> Option<Share> {
        let slot = self.held.slot.as_ref()?;
        Some(share::share(slot, &self.shared.settings(), self.instance.home().as_deref()))
    }

    fn used(&self, used: &Used) {
        let Some(slot) = &self.held.slot else { return };
        slot.used(share::used(used));
        // Once: it is the same on all instances of one image.
        if !used.no_share.is_empty() && !self.shared.told_no_share.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                runner = self.shared.options.name,
                instance = %slot.instance(),
                why = used.no_share,
                "use_slot_cgroups: jobs run without cgroups, so without shares of their own, and what they use is not counted; \
                 the user on the instance must be allowed to make cgroups"
            );
        }
    }

    fn silence_max(&self) -> Option<Duration> {
        Some(SILENCE_MAX)
    }

    fn give_up(&self, why: &str) {
        if let Some(slot) = &self.held.slot {
            slot.disown(why.to_owned());
        }
    }

    async fn lost(&self) -> String {
        let Some(slot) = &self.held.slot else { return std::future::pending().await };
        let loss = slot.lost().await;
        format!("instance {} was lost: {loss}", slot.instance())
    }
}
