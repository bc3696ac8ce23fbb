//! What leases and calls share with the task: plugins, and how to reach instances.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use muster_fleeting::model::{ConnectInfo, InstanceId};
use tokio::sync::{mpsc, watch};

use super::host::{Host, HostStatus, Unanswered};
use super::task::Command;
use crate::event::Event;
use crate::words::GroupId;

/// Connection details that end within this are asked for again (fleeting.md 2.4).
const EXPIRES_SOON_S: i64 = 10;

/// The details of an instance are asked for so often where the plugin ended each time; then they count as not to be had.
const ASKED_MAX: u32 = 5;
const ASKED_AGAIN: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct Shared {
    pub(super) hosts: Mutex<Vec<Arc<dyn Host>>>,
    pub(super) commands: mpsc::UnboundedSender<Command>,
    infos: Mutex<HashMap<(GroupId, InstanceId), ConnectInfo>>,
    /// Counts how often a promise was possible again.
    pub(super) room: watch::Sender<u64>,
    pub(super) wall: fn() -> i64,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Shared {
    pub(super) fn new(hosts: Vec<Arc<dyn Host>>, commands: mpsc::UnboundedSender<Command>, wall: fn() -> i64) -> Self {
        Self { hosts: Mutex::new(hosts), commands, infos: Mutex::default(), room: watch::Sender::new(0), wall }
    }

    pub(super) fn host(&self, group: GroupId) -> Option<Arc<dyn Host>> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner).get(group.0).cloned()
    }

    /// How to reach an instance. While the plugin is down, it waits for it.
    pub(super) async fn connect_info(&self, group: GroupId, id: &InstanceId) -> Result<ConnectInfo, String> {
        let host = self.host(group).ok_or("the taskscaler has ended")?;
        let mut status = host.status();
        let mut asked = 0;
        loop {
            asked += 1;
            match self.connect_info_of(&*host, group, id).await {
                Ok(info) => return Ok(info),
                Err(Unanswered::Plugin(cause)) if asked < ASKED_MAX => {
                    tracing::debug!(instance = %id, cause, "connection details are asked for again when the plugin is up");
                }
                Err(error) => return Err(error.to_string()),
            }
            let up = status.wait_for(|status| matches!(status, HostStatus::Up { .. })).await;
            up.map_err(|_| "the plugin was stopped".to_owned())?;
            tokio::time::sleep(ASKED_AGAIN).await;
        }
    }

    /// Asked for again where the details end soon.
    async fn connect_info_of(
        &self,
        host: &dyn Host,
        group: GroupId,
        id: &InstanceId,
    ) -> Result<ConnectInfo, Unanswered> {
        let known = self.infos.lock().unwrap_or_else(PoisonError::into_inner).get(&(group, id.clone())).cloned();
        if let Some(info) = known
            && info.expires.is_none_or(|expires| expires - (self.wall)() > EXPIRES_SOON_S)
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

    pub(super) fn tell(&self, event: Event) {
        self.send(Command::Tell(event));
    }

    pub(super) fn send(&self, command: Command) {
        let _ = self.commands.send(command);
    }
}
