//! The handle of a running scaler.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use super::command::Command;
use super::context::DriverContext;
use super::environments::EnvironmentCommand;
use super::lease::{LeaseHandle, Reservation};
use super::metrics::{Buckets, Metrics};
use super::ports::{InstanceGroupPort, PluginAvailability, Prepare};
use super::store::{LedgerError, LedgerStore};
use super::task::ScalerTask;
use crate::config::Config;
use crate::engine::{InstanceStatus, NoCapacity, ScalerStatus, WaitReason};
use crate::event::Event;
use crate::operator::{OperatorAction, OperatorError, OperatorOutcome};
use crate::policy::Policies;
use crate::types::{GroupId, TaskKey};
use muster_fleeting::model::InstanceId;

/// Timeout for status queries and operator actions.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout for stopping the plugins.
const PLUGIN_STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// Error that prevents a scaler from starting.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The number of groups differs from the number of plugins.
    #[error("the number of configured groups ({groups}) differs from the number of plugins ({plugins})")]
    Groups {
        /// Number of configured groups.
        groups: usize,
        /// Number of plugins.
        plugins: usize,
    },
    /// `max_instances` exceeds the plugin's limit (docs/spec/fleeting.md, section 9, V1).
    #[error(
        "group {group}: max_instances is {configured}, but the plugin supports at most {plugin_max}; lower max_instances, or raise the plugin's limit"
    )]
    MaxSize {
        /// Name of the group.
        group: String,
        /// Configured maximum number of instances.
        configured: u32,
        /// Maximum number of instances that the plugin supports.
        plugin_max: u32,
    },
    /// The ledger cannot be read.
    #[error(transparent)]
    Store(#[from] LedgerError),
}

/// Logs a panic of the scaler task. It would otherwise go unnoticed, because no caller checks how the task ended.
struct PanicReporter;

impl Drop for PanicReporter {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!(
                "scaler panicked (this is a bug, please report it); no instances are created or deleted and no jobs are \
                 requested for this runner until the manager restarts"
            );
        }
    }
}

/// Handle of a running scaler, which runs until [`Scaler::shutdown`].
#[derive(Debug, Clone)]
pub struct Scaler {
    commands: mpsc::UnboundedSender<Command>,
    metrics: Arc<Metrics>,
    capacity_changes: watch::Receiver<u64>,
    task: Arc<tokio::sync::Mutex<Option<JoinHandle<()>>>>,
}

async fn run_task(task: ScalerTask) {
    let _reporter = PanicReporter;
    task.run().await;
}

impl Scaler {
    /// Starts a scaler from the ledger in `store`.
    ///
    /// `plugins` has one plugin for each group of `config`, in the same order. `wall_clock` returns Unix seconds.
    /// Leases of an earlier manager process are kept until [`Self::claims_complete`] is called.
    ///
    /// # Errors
    /// Returns [`StartError`] if the configuration does not match the plugins or the ledger cannot be read.
    pub async fn start(
        config: Config,
        plugins: Vec<Arc<dyn InstanceGroupPort>>,
        prepare: Arc<dyn Prepare>,
        mut store: Box<dyn LedgerStore>,
        buckets: &Buckets,
        wall_clock: fn() -> i64,
    ) -> Result<Self, StartError> {
        if plugins.len() != config.groups.len() {
            return Err(StartError::Groups { groups: config.groups.len(), plugins: plugins.len() });
        }
        for (group, plugin) in config.groups.iter().zip(&plugins) {
            if let PluginAvailability::Up { max_size: plugin_max @ 1.., .. } = *plugin.status().borrow()
                && group.max_instances > plugin_max
            {
                let (group, configured) = (group.name.clone(), group.max_instances);
                return Err(StartError::MaxSize { group, configured, plugin_max });
            }
        }
        let rows = store.load().await?;
        let metrics = Arc::new(Metrics::new(&config, buckets));
        // Unbounded, because functions that are not async, such as `admit`, also send commands.
        let (commands, command_receiver) = mpsc::unbounded_channel();
        let shared = Arc::new(DriverContext::new(plugins, commands.clone(), wall_clock));
        let capacity_changes = shared.capacity_changes.subscribe();
        let task = ScalerTask::new(config, rows, shared, prepare, store, Arc::clone(&metrics), command_receiver);
        let task = Arc::new(tokio::sync::Mutex::new(Some(tokio::spawn(run_task(task)))));
        Ok(Self { commands, metrics, capacity_changes, task })
    }

    /// Reserves a slot before a job is requested.
    ///
    /// # Errors
    /// Returns the reason why no job should be requested now. `None` means that the scaler has shut down.
    pub async fn reserve(&self, key: TaskKey) -> Result<Reservation, Option<NoCapacity>> {
        let (reply, answer) = oneshot::channel();
        let _ = self.commands.send(Command::Reserve { key, reply });
        answer.await.map_err(|_| None)?.map_err(Some)
    }

    /// Returns a receiver that changes when [`Self::reserve`] can succeed after a refusal, and when a reservation is
    /// revoked.
    #[must_use]
    pub fn capacity_changes(&self) -> watch::Receiver<u64> {
        self.capacity_changes.clone()
    }

    /// Reserves a slot for a job that was already received.
    #[must_use]
    pub fn admit(&self, key: TaskKey) -> Reservation {
        let _ = self.commands.send(Command::Admit { key: key.clone() });
        Reservation { key, commands: self.commands.clone(), revoked: Arc::default(), needs_cancel: true }
    }

    /// Returns the lease that `key` has from an earlier manager process.
    ///
    /// `None` means that no such lease exists, or that the scaler has shut down.
    pub async fn claim(&self, key: TaskKey) -> Option<LeaseHandle> {
        let (reply, answer) = oneshot::channel();
        let _ = self.commands.send(Command::Claim { key, reply });
        answer.await.ok().flatten()
    }

    /// Checks whether the ledger contains a suspended environment with this name. `None` means that the scaler has shut down.
    pub async fn has_environment(&self, name: String) -> Option<bool> {
        let (reply, answer) = oneshot::channel();
        let _ = self.commands.send(Command::Environment(EnvironmentCommand::Exists { name, reply }));
        answer.await.ok()
    }

    /// Releases the unclaimed leases of earlier manager processes.
    ///
    /// Their instances are drained, unless [`Config::jobs_are_isolated`] is set.
    pub fn claims_complete(&self) {
        self.send(Event::ClaimsComplete);
    }

    /// Reports the answer to a job request that had a reservation.
    ///
    /// `is_immediate_job` means that the coordinator returned a job without delay.
    pub fn job_request_answered(&self, is_immediate_job: bool) {
        self.send(Event::JobRequestAnswered { is_immediate_job });
    }

    /// Replaces the policies.
    pub fn set_policies(&self, policies: Policies) {
        self.send(Event::Policies(policies));
    }

    /// Stops keeping idle capacity. Received jobs still get slots.
    pub fn drain(&self) {
        self.send(Event::Drain);
    }

    /// Makes [`Self::shutdown`] delete all instances, whatever the configuration.
    pub fn delete_all_on_shutdown(&self) {
        self.send(Event::DeleteAllOnStop);
    }

    /// Applies an operator's action to an instance, or to the whole group if `id` is `None`.
    ///
    /// `by` names the operator and the reason. Returns once the ledger contains the outcome. `None` means that the
    /// scaler has shut down, or did not answer within five seconds; it may still apply the action.
    pub async fn apply_operator_action(
        &self,
        group: GroupId,
        id: Option<InstanceId>,
        action: OperatorAction,
        by: String,
    ) -> Option<Result<OperatorOutcome, OperatorError>> {
        let (reply, answer) = oneshot::channel();
        let _ = self.commands.send(Command::Operate { group, id, action, by, reply });
        tokio::time::timeout(REPLY_TIMEOUT, answer).await.ok()?.ok()
    }

    /// Retires an instance whose end the plugin announced: it gets no more jobs and is deleted after its last job.
    pub fn retire_instance(&self, group: GroupId, id: InstanceId, reason: String) {
        self.send(Event::Retire { group, id, reason });
    }

    /// Sets the price of a group's instances, in the unit of [`crate::config::GroupConfig::price_per_hour`].
    pub fn set_price(&self, group: GroupId, per_hour: f64) {
        self.send(Event::PriceChanged { group, per_hour });
    }

    /// Sets whether a group's provider has stock. No instances are requested from a group without stock.
    pub fn set_stock(&self, group: GroupId, available: bool) {
        self.send(Event::StockChanged { group, available });
    }

    /// Returns the current status. `None` means that the scaler has shut down or did not answer within five seconds.
    pub async fn status(&self) -> Option<ScalerStatus> {
        let (reply, answer) = oneshot::channel();
        let _ = self.commands.send(Command::Status { reply });
        tokio::time::timeout(REPLY_TIMEOUT, answer).await.ok()?.ok()
    }

    /// Returns the reason why a request waits. `None` means that it does not wait, or that the scaler has shut down.
    pub async fn explain_waiting(&self, key: TaskKey) -> Option<WaitReason> {
        let (reply, answer) = oneshot::channel();
        let _ = self.commands.send(Command::ExplainWaiting { key, reply });
        answer.await.ok().flatten()
    }

    /// Returns the scaler's metrics.
    #[must_use]
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Shuts down the scaler and returns the instances that remain in the ledger.
    ///
    /// `None` means that the scaler did not answer in time, or had already shut down.
    ///
    /// Waits up to `timeout` for leases to end and for deletions, and up to ten seconds more for the plugins to stop.
    pub async fn shutdown(&self, timeout: Duration) -> Option<Vec<InstanceStatus>> {
        let end = tokio::time::Instant::now() + timeout + PLUGIN_STOP_TIMEOUT;
        let (reply, answer) = oneshot::channel();
        let _ = self.commands.send(Command::Shutdown { timeout, reply });
        let remaining = tokio::time::timeout_at(end, answer).await;
        if let Some(mut task) = self.task.lock().await.take()
            && tokio::time::timeout_at(end, &mut task).await.is_err()
        {
            tracing::error!("scaler did not shut down in time, aborting it; the next start resumes from its ledger");
            task.abort();
        }
        remaining.ok().and_then(Result::ok)
    }

    fn send(&self, event: Event) {
        let _ = self.commands.send(Command::Event(event));
    }
}
