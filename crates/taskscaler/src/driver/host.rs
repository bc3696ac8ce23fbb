//! The ports to instance groups, and to what makes an instance ready.

use std::sync::Arc;

use async_trait::async_trait;
use muster_fleeting::model::{ConnectInfo, InstanceId, InstanceState};
use tokio::sync::watch;

use super::context::DriverContext;
use crate::types::GroupId;

const CANNOT_SUSPEND: &str = "capability not supported: suspend_resume";

/// Whether a group can be called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostStatus {
    /// It can.
    Up {
        /// The most instances it can have; 0: it does not say.
        max_size: u32,
    },
    /// It cannot, for now.
    Down {
        /// Why.
        cause: String,
    },
}

/// Why a call about one instance has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    /// The plugin is down, went, or was too late: that says nothing of the instance.
    #[error("{0}")]
    Plugin(String),
    /// The answer is an error, about this instance.
    #[error("{0}")]
    Instance(String),
}

/// One instance group. Calls may be made at the same time; each ends within a limit of its own. Errors are for people.
#[async_trait]
pub trait InstanceGroupPort: Send + Sync + 'static {
    /// Whether it can be called, and each change of that.
    fn status(&self) -> watch::Receiver<HostStatus>;
    /// All instances.
    async fn update(&self) -> Result<Vec<(InstanceId, InstanceState)>, String>;
    /// Asks for `n` more; how many are made.
    async fn increase(&self, n: u32) -> Result<u32, String>;
    /// Asks to remove these; those that go.
    async fn decrease(&self, ids: &[InstanceId]) -> Result<Vec<InstanceId>, String>;
    /// Whether its instances can be suspended and resumed; none: nobody knows yet.
    fn can_suspend(&self) -> Option<bool> {
        Some(false)
    }
    /// Asks to suspend these; those for which it is accepted.
    async fn suspend(&self, _ids: &[InstanceId]) -> Result<Vec<InstanceId>, String> {
        Err(CANNOT_SUSPEND.to_owned())
    }
    /// Asks to let these run again; those for which it is accepted.
    async fn resume(&self, _ids: &[InstanceId]) -> Result<Vec<InstanceId>, String> {
        Err(CANNOT_SUSPEND.to_owned())
    }
    /// How to reach an instance.
    async fn connect_info(&self, id: &InstanceId) -> Result<ConnectInfo, NoAnswer>;
    /// Fingerprints of the keys that an instance's SSH server may show; none where the group does not say.
    async fn host_keys(&self, _id: &InstanceId) -> Result<Vec<String>, String> {
        Ok(Vec::new())
    }
    /// Whether an instance is well.
    async fn heartbeat(&self, id: &InstanceId) -> Result<(), NoAnswer>;
    /// It has something to do before and after each job.
    fn has_hooks(&self) -> bool {
        false
    }
    /// Before a job runs on an instance.
    async fn prepare_job(&self, _id: &InstanceId, _job: &str) -> Result<(), String> {
        Ok(())
    }
    /// After a job ran on an instance, however it ended.
    async fn finish_job(&self, _id: &InstanceId, _job: &str) -> Result<(), String> {
        Ok(())
    }
    /// Ends it, in order. No instance is removed by this.
    async fn stop(self: Arc<Self>);
}

/// An instance that runs and is to be made ready.
#[derive(Debug, Clone)]
pub struct StartingInstance {
    /// Its group's name.
    pub group: String,
    /// Its name at the provider.
    pub id: InstanceId,
    /// Fingerprints of the keys that its SSH server may show; none: whichever it shows first.
    pub host_keys: Vec<String>,
    /// It was ready before, for an earlier start of the manager or before an operator drained it: jobs may run on it.
    pub again: bool,
    pub(super) of: GroupId,
    pub(super) shared: Arc<DriverContext>,
}

impl StartingInstance {
    /// How to reach it; asked for again where the details end within ten seconds. While the plugin is down, it waits for it.
    ///
    /// # Errors
    /// The plugin's words; or it ended at each of some times, or for good.
    pub async fn connect_info(&self) -> Result<ConnectInfo, String> {
        self.shared.connect_info(self.of, &self.id).await
    }
}

/// Makes an instance ready for jobs: dials it, runs the ready command, puts the agent there. Called once per instance and
/// start of the manager ([`StartingInstance::again`] tells); bounded by [`crate::config::Config::ready_timeout`].
#[async_trait]
pub trait Prepare: Send + Sync + 'static {
    /// Ready, or why it cannot be; it is removed then.
    async fn prepare(&self, up: StartingInstance) -> Result<(), String>;
}

/// An instance is ready as soon as it can be reached by its details.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReadyWhenReachable;

#[async_trait]
impl Prepare for ReadyWhenReachable {
    async fn prepare(&self, _: StartingInstance) -> Result<(), String> {
        Ok(())
    }
}
