//! State that leases and plugin calls share with the scaler task: the plugins, and connection details of instances.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use muster_fleeting::model::{ConnectInfo, InstanceId};
use tokio::sync::{mpsc, watch};

use super::command::Command;
use super::host::{ConnectInfoError, HostStatus, InstanceGroupPort, NoAnswer};
use crate::event::Event;
use crate::types::GroupId;

/// Minimum remaining validity of cached connection details, in seconds (docs/spec/fleeting.md, section 2.4).
const MIN_VALIDITY_S: i64 = 10;

/// Maximum number of attempts to get the connection details of an instance while each attempt makes the plugin fail.
const MAX_CONNECT_INFO_ATTEMPTS: u32 = 5;
const CONNECT_INFO_RETRY_DELAY: Duration = Duration::from_secs(1);

/// State that leases and plugin calls share with the scaler task.
pub(super) struct DriverContext {
    pub(super) hosts: Mutex<Vec<Arc<dyn InstanceGroupPort>>>,
    pub(super) commands: mpsc::UnboundedSender<Command>,
    infos: Mutex<HashMap<(GroupId, InstanceId), ConnectInfo>>,
    /// Number of changes of the capacity for reservations. See [`super::Scaler::capacity_changes`].
    pub(super) capacity_changes: watch::Sender<u64>,
    pub(super) wall: fn() -> i64,
}

impl std::fmt::Debug for DriverContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DriverContext").finish_non_exhaustive()
    }
}

impl DriverContext {
    pub(super) fn new(
        hosts: Vec<Arc<dyn InstanceGroupPort>>,
        commands: mpsc::UnboundedSender<Command>,
        wall: fn() -> i64,
    ) -> Self {
        Self {
            hosts: Mutex::new(hosts),
            commands,
            infos: Mutex::default(),
            capacity_changes: watch::Sender::new(0),
            wall,
        }
    }

    pub(super) fn host(&self, group: GroupId) -> Option<Arc<dyn InstanceGroupPort>> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner).get(group.0).cloned()
    }

    /// Returns the connection details of an instance. Waits for the plugin while it is down.
    pub(super) async fn connect_info(&self, group: GroupId, id: &InstanceId) -> Result<ConnectInfo, ConnectInfoError> {
        let host = self.host(group).ok_or(ConnectInfoError::ScalerStopped)?;
        let mut status = host.status();
        let mut attempts = 0;
        loop {
            attempts += 1;
            match self.cached_connect_info(&*host, group, id).await {
                Ok(info) => return Ok(info),
                Err(NoAnswer::Plugin(cause)) if attempts < MAX_CONNECT_INFO_ATTEMPTS => {
                    tracing::debug!(instance = %id, cause, "failed to get connection details, retrying when the plugin is up");
                }
                Err(error) => return Err(error.into()),
            }
            let up = status.wait_for(|status| matches!(status, HostStatus::Up { .. })).await;
            up.map_err(|_| ConnectInfoError::PluginStopped)?;
            tokio::time::sleep(CONNECT_INFO_RETRY_DELAY).await;
        }
    }

    /// Returns cached connection details, or requests new ones if those expire soon.
    async fn cached_connect_info(
        &self,
        host: &dyn InstanceGroupPort,
        group: GroupId,
        id: &InstanceId,
    ) -> Result<ConnectInfo, NoAnswer> {
        let cached = self.infos.lock().unwrap_or_else(PoisonError::into_inner).get(&(group, id.clone())).cloned();
        if let Some(info) = cached
            && info.expires.is_none_or(|expires| expires - (self.wall)() > MIN_VALIDITY_S)
        {
            return Ok(info);
        }
        let info = host.connect_info(id).await?;
        self.infos.lock().unwrap_or_else(PoisonError::into_inner).insert((group, id.clone()), info.clone());
        Ok(info)
    }

    pub(super) fn forget(&self, group: GroupId, id: &InstanceId) {
        self.infos.lock().unwrap_or_else(PoisonError::into_inner).remove(&(group, id.clone()));
    }

    pub(super) fn send_event(&self, event: Event) {
        self.send(Command::Event(event));
    }

    pub(super) fn send(&self, command: Command) {
        let _ = self.commands.send(command);
    }
}
