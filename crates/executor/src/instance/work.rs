//! Background task of an instance executor: starts the plugins and the scaler, and keeps slots reserved.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use muster_config::settings::AutoscalerSettings;
use muster_fleeting::model::InstanceId;
use muster_taskscaler::driver::Scaler;
use muster_taskscaler::types::TaskKey;

use super::group_plugins;
use super::lease::SCALER_ENDED;
use super::provider::{ExecutorContext, Intake};
use super::settings;

/// Interval between attempts to reserve slots, in case the scaler's notification is missed.
const RESERVATION_RETRY_INTERVAL: Duration = Duration::from_secs(10);
const PRUNE_INTERVAL: Duration = Duration::from_secs(10);
const INTAKE_CLOSED: &str = "the runner accepts no more jobs";

pub(super) async fn run(shared: Arc<ExecutorContext>) {
    let ledger_lock = Arc::clone(&shared.options.ledger_lock).lock_owned().await;
    *shared.ledger_lock.lock() = Some(ledger_lock);
    let (scaler, plugins) = group_plugins::start_scaler(&shared).await;
    shared.check_claims();
    // The first future ends when no plugin can send further reports, the second future when the scaler ends.
    let plugins = plugins.into_iter().map(|plugin| plugin.follow(scaler.clone(), &shared));
    tokio::join!(futures::future::join_all(plugins), maintain_reservations(&shared, &scaler));
}

/// Keeps one slot reserved for each job request that may be in flight.
async fn maintain_reservations(shared: &ExecutorContext, scaler: &Scaler) {
    let mut refusal: Option<Arc<str>> = None;
    let mut last_prune = tokio::time::Instant::now();
    let mut capacity = scaler.capacity_changes();
    loop {
        capacity.mark_unchanged();
        let reason = fill_reservations(shared, scaler).await;
        if reason.is_some() && refusal.is_none() {
            tracing::debug!(
                runner = shared.options.name,
                reason = reason.as_deref(),
                "not requesting more jobs for now"
            );
        }
        refusal = reason;
        if last_prune.elapsed() >= PRUNE_INTERVAL {
            prune(shared, scaler).await;
            last_prune = tokio::time::Instant::now();
        }
        tokio::select! {
            () = shared.reservations_changed.notified() => {}
            // A scaler that has ended makes no more reservations.
            changed = capacity.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(RESERVATION_RETRY_INTERVAL), if refusal.is_some() => {}
        }
    }
}

/// Returns the reason if not all slots can be reserved.
async fn fill_reservations(shared: &ExecutorContext, scaler: &Scaler) -> Option<Arc<str>> {
    loop {
        let reserved = {
            let mut reservations = shared.reservations.lock();
            reservations.retain(|reservation| !reservation.is_revoked());
            reservations.len()
        };
        shared.publish_capacity(reserved, None);
        if *shared.intake.lock() == Intake::Closed {
            shared.reservations.lock().clear();
            return Some(INTAKE_CLOSED.into());
        }
        let max_requests = shared.requests.load(Ordering::Relaxed).max(1);
        if reserved > max_requests {
            // Dropping a reservation revokes it.
            shared.reservations.lock().truncate(max_requests);
            continue;
        }
        if reserved == max_requests {
            return None;
        }
        match scaler.reserve(new_key()).await {
            Ok(reservation) => shared.reservations.lock().push(reservation),
            Err(refusal) => {
                let reason = refusal.map_or_else(|| SCALER_ENDED.to_owned(), |reason| reason.to_string());
                let reason: Arc<str> = reason.into();
                shared.publish_capacity(shared.reservations.lock().len(), Some(Arc::clone(&reason)));
                return Some(reason);
            }
        }
    }
}

/// Keeps the old policies if the new ones are invalid.
pub(super) fn set_policies(scaler: &Scaler, settings: &AutoscalerSettings, runner: &str) {
    match settings::scaler_config(settings, runner, 0) {
        Ok((config, _)) => scaler.set_policies(config.policies),
        Err(error) => tracing::error!(runner, %error, "failed to apply the new policies, keeping the old ones"),
    }
}

/// Forgets the connections and the host keys of instances that no longer exist.
async fn prune(shared: &ExecutorContext, scaler: &Scaler) {
    // The status may lack an instance that appears after this line. Such an instance is not in `before`, so it is kept.
    let mut before: BTreeSet<InstanceId> = shared.instances.lock().keys().cloned().collect();
    before.extend(shared.known_hosts().names().into_iter().map(InstanceId::new));
    let Some(status) = scaler.status().await else { return };
    let known: BTreeSet<InstanceId> =
        status.instances.iter().map(|instance| shared.name(&instance.group, &instance.id)).collect();
    let is_known = |id: &InstanceId| known.contains(id) || !before.contains(id);
    shared.instances.lock().retain(|id, _| is_known(id));
    shared.known_hosts().retain(|name| is_known(&InstanceId::new(name)));
}

fn new_key() -> TaskKey {
    TaskKey::new(uuid::Uuid::new_v4().simple().to_string())
}
