//! The driver's ports: [`InstanceGroupPort`] for plugins, and [`Prepare`] for the code that makes an instance ready.

use std::sync::Arc;

use async_trait::async_trait;
use muster_fleeting::model::{ConnectInfo, InstanceId, InstanceState};
use tokio::sync::watch;

use super::context::DriverContext;
use crate::types::GroupId;

const CANNOT_SUSPEND: &str = "capability not supported: suspend_resume";

/// Whether the plugin of a group is running, so that it can be called.
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
    /// Returns a receiver for the current status and its changes.
    fn status(&self) -> watch::Receiver<PluginAvailability>;
    /// Returns all instances with their states.
    async fn update(&self) -> Result<Vec<(InstanceId, InstanceState)>, String>;
    /// Requests `n` more instances. Returns the number that the provider creates.
    async fn increase(&self, n: u32) -> Result<u32, String>;
    /// Requests the deletion of these instances. Returns those that the provider deletes.
    async fn decrease(&self, ids: &[InstanceId]) -> Result<Vec<InstanceId>, String>;
    /// Returns whether instances can be suspended and resumed. `None` means not known yet.
    fn can_suspend(&self) -> Option<bool> {
        Some(false)
    }
    /// Requests to suspend these instances. Returns those that the provider suspends.
    async fn suspend(&self, _ids: &[InstanceId]) -> Result<Vec<InstanceId>, String> {
        Err(CANNOT_SUSPEND.to_owned())
    }
    /// Requests to resume these instances. Returns those that the provider resumes.
    async fn resume(&self, _ids: &[InstanceId]) -> Result<Vec<InstanceId>, String> {
        Err(CANNOT_SUSPEND.to_owned())
    }
    /// Returns the connection details of an instance.
    async fn connect_info(&self, id: &InstanceId) -> Result<ConnectInfo, InstanceCallError>;
    /// Returns the fingerprints of the instance's SSH host keys. An empty list means that the plugin does not report them.
    async fn host_keys(&self, _id: &InstanceId) -> Result<Vec<String>, String> {
        Ok(Vec::new())
    }
    /// Checks the health of an instance.
    async fn heartbeat(&self, id: &InstanceId) -> Result<(), InstanceCallError>;
    /// Returns true if the plugin must be called before and after each job.
    fn has_hooks(&self) -> bool {
        false
    }
    /// Called before a job runs on an instance.
    async fn prepare_job(&self, _id: &InstanceId, _job: &str) -> Result<(), String> {
        Ok(())
    }
    /// Called after a job ran on an instance, whether or not it succeeded.
    async fn finish_job(&self, _id: &InstanceId, _job: &str) -> Result<(), String> {
        Ok(())
    }
    /// Stops the plugin gracefully. Deletes no instances.
    async fn stop(self: Arc<Self>);
}

/// A running instance that must be prepared for jobs.
#[derive(Debug, Clone)]
pub struct StartingInstance {
    /// Name of the group.
    pub group: String,
    /// Provider ID of the instance.
    pub id: InstanceId,
    /// Accepted fingerprints of the instance's SSH host keys. Empty means that the first key it presents is trusted.
    pub host_keys: Vec<String>,
    /// Whether the instance was ready earlier, for example before a restart of the manager. Jobs may be running on it then.
    pub was_ready: bool,
    pub(super) group_id: GroupId,
    pub(super) shared: Arc<DriverContext>,
}

impl StartingInstance {
    /// Returns the connection details. Waits for the plugin while it is down.
    ///
    /// Cached details are used unless they expire within ten seconds.
    ///
    /// # Errors
    /// Returns [`ConnectInfoError`].
    pub async fn connect_info(&self) -> Result<ConnectInfo, ConnectInfoError> {
        self.shared.connect_info(self.group_id, &self.id).await
    }
}

/// Makes an instance ready for jobs: connects to it, runs the ready command and deploys the agent.
///
/// Called for each new instance, and again after a restart of the manager, an uncordon or a resume. The engine gives up
/// after [`crate::config::Config::ready_timeout`].
#[async_trait]
pub trait Prepare: Send + Sync + 'static {
    /// Prepares an instance. After an error, the instance is deleted.
    async fn prepare(&self, starting: StartingInstance) -> Result<(), String>;
}

/// Preparation that does nothing: an instance is ready once its connection details are known.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReadyWhenReachable;

#[async_trait]
impl Prepare for ReadyWhenReachable {
    async fn prepare(&self, _: StartingInstance) -> Result<(), String> {
        Ok(())
    }
}
