//! Background task of an instance executor: starts the plugins and the scaler, and keeps slots reserved.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use muster_config::settings::AutoscalerSettings;
use muster_fleeting::model::InstanceId;
use muster_taskscaler::driver::Scaler;
use muster_taskscaler::types::TaskKey;

use super::members;
use super::provider::{Intake, Shared};
use super::settings;

/// Time after which a refused reservation is retried, in case the scaler's notification is missed.
const PROMISE_NET: Duration = Duration::from_secs(10);
/// Minimum interval between two removals of connections to deleted instances.
const PRUNE_EVERY: Duration = Duration::from_secs(10);
/// Reason for no reservations while the manager shuts down.
const DRAINING: &str = "the manager takes no more jobs";

/// Runs the background task of an instance executor.
pub(super) async fn work(shared: Arc<Shared>) {
    let turn = Arc::clone(&shared.options.turn).lock_owned().await;
    *shared.turn.lock() = Some(turn);
    let (scaler, members) = members::started(&shared).await;
    shared.settle();
    // The first future ends if no plugin reports anything. The second one ends with the scaler.
    let members = members.into_iter().map(|member| member.follow(scaler.clone(), &shared));
    tokio::join!(futures::future::join_all(members), promise(&shared, &scaler));
}

/// Keeps as many slots reserved as job requests may be in flight.
async fn promise(shared: &Shared, scaler: &Scaler) {
    let mut refused: Option<Arc<str>> = None;
    let mut pruned = tokio::time::Instant::now();
    let mut room = scaler.room();
    loop {
        room.mark_unchanged();
        let why = keep_promises(shared, scaler).await;
        if why.is_some() && refused.is_none() {
            tracing::debug!(runner = shared.options.name, why = why.as_deref(), "no more jobs are requested for now");
        }
        refused = why;
        if pruned.elapsed() >= PRUNE_EVERY {
            prune(shared, scaler).await;
            pruned = tokio::time::Instant::now();
        }
        tokio::select! {
            () = shared.again.notified() => {}
            // A scaler that has ended makes no more reservations.
            changed = room.changed() => if changed.is_err() { return },
            // A fallback: the scaler notifies this task whenever a reservation becomes possible.
            () = tokio::time::sleep(PROMISE_NET), if refused.is_some() => {}
        }
    }
}

/// Makes the missing reservations. Returns the reason why there are not more.
async fn keep_promises(shared: &Shared, scaler: &Scaler) -> Option<Arc<str>> {
    loop {
        let held = {
            let mut promises = shared.promises.lock();
            promises.retain(|promise| !promise.is_revoked());
            promises.len()
        };
        shared.publish(held, None);
        if *shared.intake.lock() == Intake::Closed {
            shared.promises.lock().clear();
            return Some(DRAINING.into());
        }
        let wanted = shared.requests.load(Ordering::Relaxed).max(1);
        if held > wanted {
            // Dropping a reservation revokes it.
            shared.promises.lock().truncate(wanted);
            continue;
        }
        if held == wanted {
            return None;
        }
        match scaler.reserve(new_key()).await {
            Ok(promise) => shared.promises.lock().push(promise),
            Err(refusal) => {
                let why = refusal.map_or_else(|| "the taskscaler has ended".to_owned(), |why| why.to_string());
                let why: Arc<str> = why.into();
                shared.publish(shared.promises.lock().len(), Some(Arc::clone(&why)));
                return Some(why);
            }
        }
    }
}

/// Applies changed policies.
pub(super) fn set_policies(scaler: &Scaler, settings: &AutoscalerSettings, runner: &str) {
    match settings::scaling(settings, runner, 0) {
        Ok((config, _)) => scaler.set_policies(config.policies),
        Err(error) => tracing::error!(runner, %error, "the policies stay as they were"),
    }
}

/// Drops the connections to instances that no longer exist.
async fn prune(shared: &Shared, scaler: &Scaler) {
    // Instances that appear while the status is requested are not in it, and are kept.
    let mut before: BTreeSet<InstanceId> = shared.instances.lock().keys().cloned().collect();
    before.extend(shared.hosts().names().into_iter().map(InstanceId::new));
    let Some(status) = scaler.status().await else { return };
    let known: BTreeSet<InstanceId> =
        status.instances.iter().map(|instance| shared.name(&instance.group, &instance.id)).collect();
    let stays = |id: &InstanceId| known.contains(id) || !before.contains(id);
    shared.instances.lock().retain(|id, _| stays(id));
    shared.hosts().retain(|name| stays(&InstanceId::new(name)));
}

fn new_key() -> TaskKey {
    TaskKey::new(uuid::Uuid::new_v4().simple().to_string())
}
