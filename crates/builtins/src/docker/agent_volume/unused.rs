//! Removes unused volumes of other versions of the agent, and containers that killed agents left.

use std::collections::HashMap;
use std::time::Duration;

use bollard::Docker;
use bollard::query_parameters::{ListContainersOptions, ListVolumesOptions, RemoveVolumeOptions};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::{FILL_TIMEOUT, FILLER_SUFFIX, VOLUME_PREFIX, transfer};
use crate::docker::create::MANAGED;
use crate::docker::engine::time_at_engine;

/// Age after which a volume of another version of the agent is removed. Younger volumes may still be in use.
const MAX_OTHER_AGE: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Removes containers of killed agents, and old volumes other than `own`.
///
/// The engine keeps volumes that a container uses. An agent recreates its volume if it was removed.
pub(super) async fn remove(engine: &Docker, own: &str) {
    match time_at_engine(engine).await {
        Ok(now) => {
            remove_filler_containers(engine, now).await;
            remove_volumes(engine, own, now).await;
        }
        Err(error) => tracing::warn!(
            error,
            "failed to read the clock of the engine, so only the next agent process removes unused volumes of agents"
        ),
    }
}

/// Removes the containers of killed agents, which would keep volumes in use.
async fn remove_filler_containers(engine: &Docker, now: OffsetDateTime) {
    let options = ListContainersOptions { all: true, filters: Some(filters()), ..ListContainersOptions::default() };
    let found = match engine.list_containers(Some(options)).await {
        Ok(found) => found,
        Err(error) => {
            tracing::warn!(%error, "failed to list the containers of killed agents");
            return;
        }
    };
    let limit = (now - FILL_TIMEOUT).unix_timestamp();
    for container in found {
        let is_filler_name = |name: &String| {
            let name = name.trim_start_matches('/');
            name.starts_with(VOLUME_PREFIX) && name.ends_with(FILLER_SUFFIX)
        };
        let is_old = container.created.is_some_and(|created| created < limit);
        if let Some(id) = container.id
            && is_old
            && container.names.iter().flatten().any(is_filler_name)
        {
            tracing::info!(
                container = id,
                "removing the container of an agent that was killed while it filled a volume"
            );
            transfer::remove(engine, &id).await;
        }
    }
}

async fn remove_volumes(engine: &Docker, own: &str, now: OffsetDateTime) {
    let options = ListVolumesOptions { filters: Some(filters()) };
    let found = match engine.list_volumes(Some(options)).await {
        Ok(found) => found.volumes.unwrap_or_default(),
        Err(error) => {
            tracing::warn!(%error, "failed to list the volumes of other versions of the agent");
            return;
        }
    };
    let limit = now - MAX_OTHER_AGE;
    let is_old = |created: &str| OffsetDateTime::parse(created, &Rfc3339).is_ok_and(|created| created < limit);
    for volume in found {
        let is_other = volume.name.starts_with(VOLUME_PREFIX) && volume.name != own;
        if !is_other || !volume.created_at.as_deref().is_some_and(is_old) {
            continue;
        }
        match engine.remove_volume(&volume.name, None::<RemoveVolumeOptions>).await {
            Ok(()) => tracing::info!(volume = volume.name, "volume of another version of the agent removed"),
            Err(error) => {
                tracing::debug!(%error, volume = volume.name, "keeping the volume of another version of the agent")
            }
        }
    }
}

fn filters() -> HashMap<String, Vec<String>> {
    let filters = [("name", VOLUME_PREFIX.to_owned()), ("label", format!("{}={}", MANAGED.0, MANAGED.1))];
    filters.map(|(name, value)| (name.to_owned(), vec![value])).into()
}
