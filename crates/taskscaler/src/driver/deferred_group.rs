//! A group whose plugin has not started yet.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use async_trait::async_trait;
use muster_fleeting::model::{ConnectInfo, InstanceId, InstanceState};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::ports::{InstanceCallError, InstanceGroupPort, PluginAvailability};

const NOT_STARTED: &str = "its plugin has not been started yet";

/// A group that is down until a plugin is attached. Afterwards, all calls are forwarded to that plugin.
pub struct DeferredGroup {
    status: watch::Receiver<PluginAvailability>,
    /// `None` once a plugin was attached, because `status_forwarder` then owns the sender, or the group was stopped.
    /// Dropping the sender ends all calls that wait for the plugin.
    status_sender: Mutex<Option<watch::Sender<PluginAvailability>>>,
    attached_plugin: OnceLock<Arc<dyn InstanceGroupPort>>,
    /// Forwards the status of the attached plugin.
    status_forwarder: OnceLock<JoinHandle<()>>,
}

impl std::fmt::Debug for DeferredGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeferredGroup")
            .field("is_attached", &self.attached_plugin.get().is_some())
            .finish_non_exhaustive()
    }
}

impl DeferredGroup {
    /// Creates a group that is down for the reason `cause`.
    #[must_use]
    pub fn new(cause: String) -> Arc<Self> {
        let (sender, status) = watch::channel(PluginAvailability::Down { cause });
        Arc::new(Self {
            status,
            status_sender: Mutex::new(Some(sender)),
            attached_plugin: OnceLock::new(),
            status_forwarder: OnceLock::new(),
        })
    }

    /// Updates the reason why the group is down, after another attempt to start the plugin failed.
    ///
    /// Has no effect after [`Self::attach`], or once the group was stopped.
    pub fn set_cause(&self, cause: String) {
        if let Some(sender) = &*self.status_sender.lock().unwrap_or_else(PoisonError::into_inner) {
            sender.send_replace(PluginAvailability::Down { cause });
        }
    }

    fn take_status_sender(&self) -> Option<watch::Sender<PluginAvailability>> {
        self.status_sender.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Attaches the running plugin. Later calls have no effect.
    pub fn attach(&self, plugin: Arc<dyn InstanceGroupPort>) {
        let mut status = plugin.status();
        // The plugin is attached before the group reports that it is up. Otherwise, the first calls would fail.
        if self.attached_plugin.set(plugin).is_err() {
            return;
        }
        let Some(sender) = self.take_status_sender() else { return };
        let status_forwarder = async move {
            loop {
                let current = status.borrow_and_update().clone();
                sender.send_replace(current);
                if status.changed().await.is_err() {
                    return;
                }
            }
        };
        self.status_forwarder.get_or_init(|| tokio::spawn(status_forwarder));
    }

    fn plugin(&self) -> Result<&Arc<dyn InstanceGroupPort>, String> {
        self.attached_plugin.get().ok_or_else(|| NOT_STARTED.to_owned())
    }

    fn plugin_or_call_error(&self) -> Result<&Arc<dyn InstanceGroupPort>, InstanceCallError> {
        self.plugin().map_err(InstanceCallError::Plugin)
    }
}

#[async_trait]
impl InstanceGroupPort for DeferredGroup {
    fn status(&self) -> watch::Receiver<PluginAvailability> {
        self.status.clone()
    }

    async fn update(&self) -> Result<Vec<(InstanceId, InstanceState)>, String> {
        self.plugin()?.update().await
    }

    async fn increase(&self, n: u32) -> Result<u32, String> {
        self.plugin()?.increase(n).await
    }

    async fn decrease(&self, ids: &[InstanceId]) -> Result<Vec<InstanceId>, String> {
        self.plugin()?.decrease(ids).await
    }

    fn can_suspend(&self) -> Option<bool> {
        self.plugin().ok()?.can_suspend()
    }

    async fn suspend(&self, ids: &[InstanceId]) -> Result<Vec<InstanceId>, String> {
        self.plugin()?.suspend(ids).await
    }

    async fn resume(&self, ids: &[InstanceId]) -> Result<Vec<InstanceId>, String> {
        self.plugin()?.resume(ids).await
    }

    async fn connect_info(&self, id: &InstanceId) -> Result<ConnectInfo, InstanceCallError> {
        self.plugin_or_call_error()?.connect_info(id).await
    }

    async fn host_keys(&self, id: &InstanceId) -> Result<Vec<String>, String> {
        self.plugin()?.host_keys(id).await
    }

    async fn heartbeat(&self, id: &InstanceId) -> Result<(), InstanceCallError> {
        self.plugin_or_call_error()?.heartbeat(id).await
    }

    fn has_hooks(&self) -> bool {
        self.plugin().is_ok_and(|plugin| plugin.has_hooks())
    }

    async fn prepare_job(&self, id: &InstanceId, job: &str) -> Result<(), String> {
        self.plugin()?.prepare_job(id, job).await
    }

    async fn finish_job(&self, id: &InstanceId, job: &str) -> Result<(), String> {
        self.plugin()?.finish_job(id, job).await
    }

    async fn stop(self: Arc<Self>) {
        drop(self.take_status_sender());
        if let Some(status_forwarder) = self.status_forwarder.get() {
            status_forwarder.abort();
        }
        if let Some(plugin) = self.attached_plugin.get() {
            Arc::clone(plugin).stop().await;
        }
    }
}
