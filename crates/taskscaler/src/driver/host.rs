//! The ports to instance groups, and to what makes an instance ready.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use muster_fleeting::host::{CallError, Group, Status};
use muster_fleeting::model::{ConnectInfo, InstanceId, InstanceState};
use tokio::sync::watch;

use super::shared::Shared;
use crate::words::GroupId;

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
pub enum Unanswered {
    /// The plugin is down, went, or was too late: that says nothing of the instance.
    #[error("{0}")]
    Plugin(String),
    /// The answer is an error, about this instance.
    #[error("{0}")]
    Instance(String),
}

impl From<CallError> for Unanswered {
    fn from(error: CallError) -> Self {
        let told = words(&error);
        match error {
            CallError::Down { .. } | CallError::Broken { .. } | CallError::Deadline { .. } => Self::Plugin(told),
            CallError::Refused { .. } | CallError::NoCapability { .. } | CallError::Nonsense { .. } => {
                Self::Instance(told)
            }
        }
    }
}

/// One instance group. Calls may be made at the same time; each ends within a limit of its own. Errors are for people.
#[async_trait]
pub trait Host: Send + Sync + 'static {
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
    async fn connect_info(&self, id: &InstanceId) -> Result<ConnectInfo, Unanswered>;
    /// Fingerprints of the keys that an instance's SSH server may show; none where the group does not say.
    async fn host_keys(&self, _id: &InstanceId) -> Result<Vec<String>, String> {
        Ok(Vec::new())
    }
    /// Whether an instance is well.
    async fn heartbeat(&self, id: &InstanceId) -> Result<(), Unanswered>;
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

/// Before a call that a plugin's death cut off is made again.
const AGAIN: Duration = Duration::from_millis(100);

/// A running plugin, as a group.
#[derive(Debug)]
pub struct Plugin {
    group: Group,
    status: watch::Receiver<HostStatus>,
    follow: tokio::task::JoinHandle<()>,
}

impl Plugin {
    /// The group of a started plugin.
    #[must_use]
    pub fn new(group: Group) -> Arc<Self> {
        let max_size = group.info().max_size;
        let translate = move |status: &Status| match status {
            Status::Up { .. } => HostStatus::Up { max_size },
            Status::Down { cause, .. } => HostStatus::Down { cause: cause.clone() },
            Status::Stopped => HostStatus::Down { cause: "it was stopped".to_owned() },
        };
        let mut plugin = group.status();
        let (told, status) = watch::channel(translate(&plugin.borrow_and_update()));
        let follow = tokio::spawn(async move {
            while plugin.changed().await.is_ok() {
                told.send_replace(translate(&plugin.borrow_and_update()));
            }
        });
        Arc::new(Self { group, status, follow })
    }

    /// The plugin itself, for what it tells by itself.
    #[must_use]
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// The answer to a call about one instance. That its plugin is down says nothing of the instance: `None` when the plugin is
    /// up again, and is to be asked again.
    async fn told<T>(&self, answer: Result<T, CallError>) -> Option<Result<T, String>> {
        match answer {
            Err(error @ (CallError::Down { .. } | CallError::Broken { .. })) => {
                tracing::debug!(plugin = self.group.name(), %error, "asked again when the plugin is up");
            }
            answer => return Some(answer.map_err(|error| words(&error))),
        }
        // A connection that broke is known here before the process is seen to be gone.
        tokio::time::sleep(AGAIN).await;
        let mut status = self.status.clone();
        match status.wait_for(|status| matches!(status, HostStatus::Up { .. })).await {
            Ok(_) => None,
            Err(_) => Some(Err("the plugin was stopped".to_owned())),
        }
    }
}

/// The words of an error with those of its causes.
#[must_use]
pub fn words(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[async_trait]
impl Host for Plugin {
    fn status(&self) -> watch::Receiver<HostStatus> {
        self.status.clone()
    }

    async fn update(&self) -> Result<Vec<(InstanceId, InstanceState)>, String> {
        let snapshot = self.group.update().await.map_err(|error| words(&error))?;
        let mut list: Vec<_> = snapshot.instances.into_iter().collect();
        // Which of several new ones belongs to which request does not depend on the order of a map.
        list.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(list)
    }

    async fn increase(&self, n: u32) -> Result<u32, String> {
        self.group.increase(n).await.map_err(|error| words(&error))
    }

    async fn decrease(&self, ids: &[InstanceId]) -> Result<Vec<InstanceId>, String> {
        self.group.decrease(ids).await.map_err(|error| words(&error))
    }

    fn can_suspend(&self) -> Option<bool> {
        Some(self.group.info().can_suspend)
    }

    async fn suspend(&self, ids: &[InstanceId]) -> Result<Vec<InstanceId>, String> {
        self.group.suspend(ids).await.map_err(|error| words(&error))
    }

    async fn resume(&self, ids: &[InstanceId]) -> Result<Vec<InstanceId>, String> {
        self.group.resume(ids).await.map_err(|error| words(&error))
    }

    async fn connect_info(&self, id: &InstanceId) -> Result<ConnectInfo, Unanswered> {
        Ok(self.group.connect_info(id).await?)
    }

    async fn heartbeat(&self, id: &InstanceId) -> Result<(), Unanswered> {
        Ok(self.group.heartbeat(id).await?)
    }

    async fn host_keys(&self, id: &InstanceId) -> Result<Vec<String>, String> {
        loop {
            if let Some(answer) = self.told(self.group.host_keys(id).await).await {
                return answer;
            }
        }
    }

    fn has_hooks(&self) -> bool {
        self.group.features().hooks
    }

    async fn prepare_job(&self, id: &InstanceId, job: &str) -> Result<(), String> {
        loop {
            if let Some(answer) = self.told(self.group.prepare(id, job).await).await {
                return answer;
            }
        }
    }

    async fn finish_job(&self, id: &InstanceId, job: &str) -> Result<(), String> {
        loop {
            if let Some(answer) = self.told(self.group.finish(id, job).await).await {
                return answer;
            }
        }
    }

    async fn stop(self: Arc<Self>) {
        self.follow.abort();
        self.group.stop().await;
    }
}

/// An instance that runs and is to be made ready.
#[derive(Debug, Clone)]
pub struct Up {
    /// Its group's name.
    pub group: String,
    /// Its name at the provider.
    pub id: InstanceId,
    /// Fingerprints of the keys that its SSH server may show; none: whichever it shows first.
    pub host_keys: Vec<String>,
    /// It was ready before, for an earlier start of the manager or before an operator drained it: jobs may run on it.
    pub again: bool,
    pub(super) of: GroupId,
    pub(super) shared: Arc<Shared>,
}

impl Up {
    /// How to reach it; asked for again where the details end within ten seconds. While the plugin is down, it waits for it.
    ///
    /// # Errors
    /// The plugin's words; or it ended at each of some times, or for good.
    pub async fn connect_info(&self) -> Result<ConnectInfo, String> {
        self.shared.connect_info(self.of, &self.id).await
    }
}

/// Makes an instance ready for jobs: dials it, runs the ready command, puts the agent there. Called once per instance and
/// start of the manager ([`Up::again`] tells); bounded by [`crate::config::Config::prepare_deadline`].
#[async_trait]
pub trait Prepare: Send + Sync + 'static {
    /// Ready, or why it cannot be; it is removed then.
    async fn prepare(&self, up: Up) -> Result<(), String>;
}

/// An instance is ready as soon as it can be reached by its details.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoPreparation;

#[async_trait]
impl Prepare for NoPreparation {
    async fn prepare(&self, _: Up) -> Result<(), String> {
        Ok(())
    }
}
