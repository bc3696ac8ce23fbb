//! The driver's ports: [`InstanceGroupPort`] for plugins, and [`Prepare`] for the preparation of instances.

use std::sync::Arc;

use async_trait::async_trait;
use muster_fleeting::model::{ConnectInfo, InstanceId, InstanceState};
use tokio::sync::watch;

use super::context::DriverContext;
use crate::types::GroupId;

const CANNOT_SUSPEND: &str = "capability not supported: suspend_resume";

/// Whether the plugin of a group is running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PluginAvailability {
    /// The plugin is running.
    Up {
        /// Maximum number of instances that the plugin supports. 0 means unknown.
        max_size: u32,
    },
    /// The plugin is not running.
    Down {
        /// Reason why it is not running.
        cause: String,
    },
}

/// Error of a call about an instance.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InstanceCallError {
    /// The plugin is not running, exited, or exceeded its timeout. The state of the instance is unknown.
    #[error("{0}")]
    Plugin(String),
    /// The plugin reported an error about the instance.
    #[error("{0}")]
    Instance(String),
}

/// Error of an attempt to get the connection details of an instance.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectInfoError {
    /// The scaler has shut down.
    #[error("the scaler has shut down")]
    ScalerStopped,
    /// The plugin was stopped.
    #[error("the plugin was stopped")]
    PluginStopped,
    /// The plugin reported an error about the instance, or failed in several attempts.
    #[error(transparent)]
    Call(#[from] InstanceCallError),
}

/// An instance group, served by a plugin. Calls can run concurrently, and each has its own timeout.
#[async_trait]
pub trait InstanceGroupPort: Send + Sync + 'static {
    /// Returns a receiver of the plugin's availability.
    fn status(&self) -> watch::Receiver<PluginAvailability>;
    /// Returns all instances with their states.
    async fn update(&self) -> Result<Vec<(InstanceId, InstanceState)>, String>;
    /// Requests `n` more instances. Returns the number that the provider accepted.
    async fn increase(&self, n: u32) -> Result<u32, String>;
    /// Requests the deletion of instances. Returns those that the provider accepted.
    async fn decrease(&self, ids: &[InstanceId]) -> Result<Vec<InstanceId>, String>;
    /// Returns whether instances can be suspended and resumed. `None` means unknown.
    fn can_suspend(&self) -> Option<bool> {
        Some(false)
    }
    /// Requests to suspend instances. Returns those that the provider accepted.
    async fn suspend(&self, _ids: &[InstanceId]) -> Result<Vec<InstanceId>, String> {
        Err(CANNOT_SUSPEND.to_owned())
    }
    /// Requests to resume instances. Returns those that the provider accepted.
    async fn resume(&self, _ids: &[InstanceId]) -> Result<Vec<InstanceId>, String> {
        Err(CANNOT_SUSPEND.to_owned())
    }
    /// Returns the connection details of an instance.
    async fn connect_info(&self, id: &InstanceId) -> Result<ConnectInfo, InstanceCallError>;
    /// Returns the fingerprints of the instance's SSH host keys. Empty means that the plugin reports none.
    async fn host_keys(&self, _id: &InstanceId) -> Result<Vec<String>, String> {
        Ok(Vec::new())
    }
    /// Checks the health of an instance.
    async fn heartbeat(&self, id: &InstanceId) -> Result<(), InstanceCallError>;
    /// Returns true if the plugin wants to be called before and after each job.
    fn has_hooks(&self) -> bool {
        false
    }
    /// Called before a job runs on an instance.
    async fn prepare_job(&self, _id: &InstanceId, _job: &str) -> Result<(), String> {
        Ok(())
    }
    /// Called after a job ran on an instance, even if the job failed.
    async fn finish_job(&self, _id: &InstanceId, _job: &str) -> Result<(), String> {
        Ok(())
    }
    /// Stops the plugin without deleting instances.
    async fn stop(self: Arc<Self>);
}

/// A running instance that must be prepared for jobs.
#[derive(Debug, Clone)]
pub struct StartingInstance {
    /// Name of the group.
    pub group: String,
    /// Provider's ID of the instance.
    pub id: InstanceId,
    /// Accepted fingerprints of the SSH host keys. Empty means that the first key is trusted.
    pub host_keys: Vec<String>,
    /// Whether the instance was ready earlier. Jobs may be running on it then.
    pub was_ready: bool,
    pub(super) group_id: GroupId,
    pub(super) shared: Arc<DriverContext>,
}

impl StartingInstance {
    /// Returns the connection details. Waits for the plugin while it is down.
    ///
    /// # Errors
    /// Returns [`ConnectInfoError`] if the plugin fails, or if the plugin or the scaler was stopped.
    pub async fn connect_info(&self) -> Result<ConnectInfo, ConnectInfoError> {
        self.shared.connect_info(self.group_id, &self.id).await
    }
}

/// Makes an instance ready for jobs.
///
/// Called for each new instance, and again after a restart of the manager, an uncordon or a resume. The engine gives up
/// after [`crate::config::Config::ready_timeout`].
#[async_trait]
pub trait Prepare: Send + Sync + 'static {
    /// Prepares an instance. After an error, the instance is deleted.
    async fn prepare(&self, starting: StartingInstance) -> Result<(), String>;
}

/// Preparation that does nothing, so that an instance is ready as soon as its connection details are known.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReadyWhenReachable;

#[async_trait]
impl Prepare for ReadyWhenReachable {
    async fn prepare(&self, _: StartingInstance) -> Result<(), String> {
        Ok(())
    }
}
