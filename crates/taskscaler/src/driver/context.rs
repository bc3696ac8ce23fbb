//! State that leases and plugin calls share with the scaler task.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use muster_fleeting::model::{ConnectInfo, InstanceId};
use tokio::sync::{mpsc, watch};

use super::command::Command;
use super::ports::{ConnectInfoError, InstanceCallError, InstanceGroupPort, PluginAvailability};
use crate::event::Event;
use crate::types::GroupId;

/// Cached connection details that expire within this many seconds are not used (docs/spec/fleeting.md, section 2.4).
const MIN_VALIDITY_S: i64 = 10;

const MAX_CONNECT_INFO_ATTEMPTS: u32 = 5;
const CONNECT_INFO_RETRY_DELAY: Duration = Duration::from_secs(1);

pub(super) struct DriverContext {
    pub(super) plugins: Mutex<Vec<Arc<dyn InstanceGroupPort>>>,
    pub(super) commands: mpsc::UnboundedSender<Command>,
    connect_infos: Mutex<HashMap<(GroupId, InstanceId), ConnectInfo>>,
    /// Incremented when a reservation is possible again after a refusal, and when a reservation is revoked.
    pub(super) capacity_changes: watch::Sender<u64>,
    /// Returns the seconds since 1970.
    pub(super) wall_clock: fn() -> i64,
}

impl std::fmt::Debug for DriverContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DriverContext").finish_non_exhaustive()
    }
}

impl DriverContext {
    pub(super) fn new(
        plugins: Vec<Arc<dyn InstanceGroupPort>>,
        commands: mpsc::UnboundedSender<Command>,
        wall_clock: fn() -> i64,
    ) -> Self {
        Self {
            plugins: Mutex::new(plugins),
            commands,
            connect_infos: Mutex::default(),
            capacity_changes: watch::Sender::new(0),
            wall_clock,
        }
    }

    pub(super) fn plugin(&self, group: GroupId) -> Option<Arc<dyn InstanceGroupPort>> {
        self.plugins.lock().unwrap_or_else(PoisonError::into_inner).get(group.0).cloned()
    }

    /// Returns the connection details of an instance. Waits for the plugin while it is down.
    pub(super) async fn connect_info(&self, group: GroupId, id: &InstanceId) -> Result<ConnectInfo, ConnectInfoError> {
        let plugin = self.plugin(group).ok_or(ConnectInfoError::ScalerStopped)?;
        let mut status = plugin.status();
        let mut attempts = 0;
        loop {
            attempts += 1;
            match self.cached_connect_info(&*plugin, group, id).await {
                Ok(info) => return Ok(info),
                Err(InstanceCallError::Plugin(cause)) if attempts < MAX_CONNECT_INFO_ATTEMPTS => {
                    tracing::debug!(instance = %id, cause, "failed to get connection details, retrying when the plugin is up");
                }
                Err(error) => return Err(error.into()),
            }
            let up = status.wait_for(|status| matches!(status, PluginAvailability::Up { .. })).await;
            up.map_err(|_| ConnectInfoError::PluginStopped)?;
            tokio::time::sleep(CONNECT_INFO_RETRY_DELAY).await;
        }
    }

    async fn cached_connect_info(
        &self,
        plugin: &dyn InstanceGroupPort,
        group: GroupId,
        id: &InstanceId,
    ) -> Result<ConnectInfo, InstanceCallError> {
        let cached =
            self.connect_infos.lock().unwrap_or_else(PoisonError::into_inner).get(&(group, id.clone())).cloned();
        if let Some(info) = cached
            && info.expires.is_none_or(|expires| expires - (self.wall_clock)() > MIN_VALIDITY_S)
        {
            return Ok(info);
        }
        let info = plugin.connect_info(id).await?;
        self.connect_infos.lock().unwrap_or_else(PoisonError::into_inner).insert((group, id.clone()), info.clone());
        Ok(info)
    }

    pub(super) fn forget_connect_info(&self, group: GroupId, id: &InstanceId) {
        self.connect_infos.lock().unwrap_or_else(PoisonError::into_inner).remove(&(group, id.clone()));
    }

    pub(super) fn send_event(&self, event: Event) {
        self.send(Command::Event(event));
    }

    pub(super) fn send(&self, command: Command) {
        let _ = self.commands.send(command);
    }
}
