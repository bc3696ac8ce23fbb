//! What a provider does by itself: it starts the plugin and its scaler, and keeps promises.

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

/// After a refused promise the scaler tells when one is possible; without a word it is asked again after this.
const PROMISE_NET: Duration = Duration::from_secs(10);
/// Connections to instances that are gone are looked for this often at most.
const PRUNE_EVERY: Duration = Duration::from_secs(10);
/// Why a manager that ends makes no promises.
const DRAINING: &str = "the manager takes no more jobs";

/// The provider's task.
pub(super) async fn work(shared: Arc<Shared>) {
    let turn = Arc::clone(&shared.options.turn).lock_owned().await;
    *shared.turn.lock() = Some(turn);
    let (scaler, members) = members::started(&shared).await;
    shared.settle();
    // The first end where the plugin tells nothing by itself; the second never does.
    let members = members.into_iter().map(|member| member.follow(scaler.clone(), &shared));
    tokio::join!(futures::future::join_all(members), promise(&shared, &scaler));
}

/// Keeps as many promises as requests may be in flight.
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
            // A scaler that has ended has no more promises.
            changed = room.changed() => if changed.is_err() { return },
            // A net: it is told of each chance.
            () = tokio::time::sleep(PROMISE_NET), if refused.is_some() => {}
        }
    }
}

/// Makes the promises that are missing; why there are not more.
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
            // Dropped, they are given back.
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

/// Other policies, from now on.
pub(super) fn set_policies(scaler: &Scaler, settings: &AutoscalerSettings, runner: &str) {
    match settings::scaling(settings, runner, 0) {
        Ok((config, _)) => scaler.set_policies(config.policies),
        Err(error) => tracing::error!(runner, %error, "the policies stay as they were"),
    }
}

/// Forgets the connections to instances that are gone.
async fn prune(shared: &Shared, scaler: &Scaler) {
    // What comes while the status is on its way is not in it, and stays.
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
