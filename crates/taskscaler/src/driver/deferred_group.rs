//! A group whose plugin has not started yet. The runner's other groups are used until it does.

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use muster_fleeting::model::{ConnectInfo, InstanceId, InstanceState};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::host::{HostStatus, InstanceGroupPort, NoAnswer};

const NOT_STARTED: &str = "its plugin has not been started yet";

/// A group that is down until a running plugin is attached, and then forwards all calls to it.
pub struct DeferredGroup {
    status: watch::Sender<HostStatus>,
    attached: OnceLock<(Arc<dyn InstanceGroupPort>, JoinHandle<()>)>,
}

impl std::fmt::Debug for DeferredGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeferredGroup").field("is_attached", &self.attached.get().is_some()).finish_non_exhaustive()
    }
}

impl DeferredGroup {
    /// Creates a group that is down for this reason.
    #[must_use]
    pub fn new(cause: String) -> Arc<Self> {
        Arc::new(Self { status: watch::Sender::new(HostStatus::Down { cause }), attached: OnceLock::new() })
    }

    /// Updates the reason for which the group is down, after another attempt to start the plugin failed.
    pub fn failed(&self, cause: String) {
        self.status.send_replace(HostStatus::Down { cause });
    }

    /// Attaches the running plugin. Later calls have no effect.
    pub fn attach(&self, host: Arc<dyn InstanceGroupPort>) {
        let (mut status, forwarded) = (host.status(), self.status.clone());
        let follow = tokio::spawn(async move {
            loop {
                let current = status.borrow_and_update().clone();
                forwarded.send_replace(current);
                if status.changed().await.is_err() {
                    return;
                }
            }
        });
        if let Err((_, follow)) = self.attached.set((host, follow)) {
            follow.abort();
        }
    }

    fn host(&self) -> Result<&Arc<dyn InstanceGroupPort>, String> {
        self.attached.get().map(|(host, _)| host).ok_or_else(|| NOT_STARTED.to_owned())
    }

    fn host_or_no_answer(&self) -> Result<&Arc<dyn InstanceGroupPort>, NoAnswer> {
        self.host().map_err(NoAnswer::Plugin)
    }
}

#[async_trait]
impl InstanceGroupPort for DeferredGroup {
    fn status(&self) -> watch::Receiver<HostStatus> {
        self.status.subscribe()
    }

    async fn update(&self) -> Result<Vec<(InstanceId, InstanceState)>, String> {
        self.host()?.update().await
    }

    async fn increase(&self, n: u32) -> Result<u32, String> {
        self.host()?.increase(n).await
    }

    async fn decrease(&self, ids: &[InstanceId]) -> Result<Vec<InstanceId>, String> {
        self.host()?.decrease(ids).await
    }

    fn can_suspend(&self) -> Option<bool> {
        self.host().ok()?.can_suspend()
    }

    async fn suspend(&self, ids: &[InstanceId]) -> Result<Vec<InstanceId>, String> {
        self.host()?.suspend(ids).await
    }

    async fn resume(&self, ids: &[InstanceId]) -> Result<Vec<InstanceId>, String> {
        self.host()?.resume(ids).await
    }

    async fn connect_info(&self, id: &InstanceId) -> Result<ConnectInfo, NoAnswer> {
        self.host_or_no_answer()?.connect_info(id).await
    }

    async fn host_keys(&self, id: &InstanceId) -> Result<Vec<String>, String> {
        self.host()?.host_keys(id).await
    }

    async fn heartbeat(&self, id: &InstanceId) -> Result<(), NoAnswer> {
        self.host_or_no_answer()?.heartbeat(id).await
    }

    fn has_hooks(&self) -> bool {
        self.host().is_ok_and(|host| host.has_hooks())
    }

    async fn prepare_job(&self, id: &InstanceId, job: &str) -> Result<(), String> {
        self.host()?.prepare_job(id, job).await
    }

    async fn finish_job(&self, id: &InstanceId, job: &str) -> Result<(), String> {
        self.host()?.finish_job(id, job).await
    }

    async fn stop(self: Arc<Self>) {
        if let Some((host, follow)) = self.attached.get() {
            follow.abort();
            Arc::clone(host).stop().await;
        }
    }
}
