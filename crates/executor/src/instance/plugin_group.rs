//! Implements the scaler's port with a running fleeting plugin.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use muster_fleeting::host::{CallError, Group, PluginStatus};
use muster_fleeting::model::{ConnectInfo, InstanceId, InstanceState};
use muster_job::error_chain;
use muster_taskscaler::driver::{InstanceCallError, InstanceGroupPort, PluginAvailability};
use tokio::sync::watch;

/// Minimum delay before a call that failed because the plugin was down is repeated. Doubled after each lost connection.
const RETRY_DELAY: Duration = Duration::from_millis(100);
/// Maximum number of attempts at a call during which the connection is lost: the call itself may make the plugin crash.
const MAX_ATTEMPTS: u32 = 5;

/// Instance group of one plugin.
#[derive(Debug)]
pub struct PluginGroup {
    group: Group,
    status: watch::Receiver<PluginAvailability>,
    status_forwarder: tokio::task::JoinHandle<()>,
}

impl PluginGroup {
    /// Returns the instance group of a running plugin.
    #[must_use]
    pub fn new(group: Group) -> Arc<Self> {
        let max_size = group.info().max_size;
        let translate = move |status: &PluginStatus| match status {
            PluginStatus::Up { .. } => PluginAvailability::Up { max_size },
            PluginStatus::Down { cause, .. } => PluginAvailability::Down { cause: cause.clone() },
            PluginStatus::Stopped => PluginAvailability::Down { cause: "it was stopped".to_owned() },
        };
        let mut plugin = group.status();
        let (sender, status) = watch::channel(translate(&plugin.borrow_and_update()));
        let status_forwarder = tokio::spawn(async move {
            while plugin.changed().await.is_ok() {
                sender.send_replace(translate(&plugin.borrow_and_update()));
            }
        });
        Arc::new(Self { group, status, status_forwarder })
    }

    /// Returns the plugin, for calls that are not part of the scaler's port.
    #[must_use]
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Returns the answer to a call about one instance.
    ///
    /// If the plugin is or goes down, waits until it is up again and repeats the call, because this failure proves
    /// nothing about the instance. Ends after [`MAX_ATTEMPTS`] lost connections.
    async fn call<T, F>(&self, call: impl Fn() -> F + Send) -> Result<T, String>
    where
        T: Send,
        F: Future<Output = Result<T, CallError>> + Send,
    {
        let mut disconnected = 0;
        loop {
            let error = match call().await {
                // This call was not sent.
                Err(error @ CallError::Down { .. }) => error,
                Err(error @ CallError::Disconnected { .. }) if disconnected + 1 < MAX_ATTEMPTS => {
                    disconnected += 1;
                    error
                }
                answer => return answer.map_err(|error| error_chain(&error)),
            };
            tracing::debug!(plugin = self.group.name(), %error, "call to the plugin interrupted, repeating it when the plugin is up");
            // The connection can break before the exit of the process is noticed.
            tokio::time::sleep(RETRY_DELAY * 2_u32.pow(disconnected)).await;
            let mut status = self.status.clone();
            let up = status.wait_for(|status| matches!(status, PluginAvailability::Up { .. })).await;
            up.map_err(|_| "the plugin was stopped")?;
        }
    }
}

fn instance_call_error(error: &CallError) -> InstanceCallError {
    let message = error_chain(error);
    match error {
        CallError::Down { .. } | CallError::Disconnected { .. } | CallError::Timeout { .. } => {
            InstanceCallError::Plugin(message)
        }
        CallError::Refused { .. } | CallError::NoCapability { .. } | CallError::InvalidResponse { .. } => {
            InstanceCallError::Instance(message)
        }
    }
}

#[async_trait]
impl InstanceGroupPort for PluginGroup {
    fn status(&self) -> watch::Receiver<PluginAvailability> {
        self.status.clone()
    }

    async fn update(&self) -> Result<Vec<(InstanceId, InstanceState)>, String> {
        let snapshot = self.group.update().await.map_err(|error| error_chain(&error))?;
        let mut list: Vec<_> = snapshot.instances.into_iter().collect();
        // The scaler matches new instances with requests in this order, so it must not depend on the order of a map.
        list.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(list)
    }

    async fn increase(&self, n: u32) -> Result<u32, String> {
        self.group.increase(n).await.map_err(|error| error_chain(&error))
    }

    async fn decrease(&self, ids: &[InstanceId]) -> Result<Vec<InstanceId>, String> {
        self.group.decrease(ids).await.map_err(|error| error_chain(&error))
    }

    fn can_suspend(&self) -> Option<bool> {
        Some(self.group.info().can_suspend)
    }

    async fn suspend(&self, ids: &[InstanceId]) -> Result<Vec<InstanceId>, String> {
        self.group.suspend(ids).await.map_err(|error| error_chain(&error))
    }

    async fn resume(&self, ids: &[InstanceId]) -> Result<Vec<InstanceId>, String> {
        self.group.resume(ids).await.map_err(|error| error_chain(&error))
    }

    async fn connect_info(&self, id: &InstanceId) -> Result<ConnectInfo, InstanceCallError> {
        self.group.connect_info(id).await.map_err(|error| instance_call_error(&error))
    }

    async fn heartbeat(&self, id: &InstanceId) -> Result<(), InstanceCallError> {
        self.group.heartbeat(id).await.map_err(|error| instance_call_error(&error))
    }

    async fn host_keys(&self, id: &InstanceId) -> Result<Vec<String>, String> {
        self.call(|| self.group.host_keys(id)).await
    }

    fn has_hooks(&self) -> bool {
        self.group.features().hooks
    }

    async fn prepare_job(&self, id: &InstanceId, job: &str) -> Result<(), String> {
        self.call(|| self.group.prepare(id, job)).await
    }

    async fn finish_job(&self, id: &InstanceId, job: &str) -> Result<(), String> {
        self.call(|| self.group.cleanup(id, job)).await
    }

    async fn stop(self: Arc<Self>) {
        self.status_forwarder.abort();
        self.group.stop().await;
    }
}
