//! The handle of a running scaler.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use super::command::Command;
use super::context::DriverContext;
use super::environments::EnvironmentQuery;
use super::host::{InstanceGroupPort, Prepare};
use super::lease::{LeaseHandle, Reservation};
use super::metrics::{Buckets, Metrics};
use super::store::{LedgerError, LedgerStore};
use super::task::ScalerTask;
use crate::config::Config;
use crate::engine::{InstanceStatus, NoCapacity, ScalerStatus, WaitReason};
use crate::event::Event;
use crate::operator::{OperatorAction, OperatorError, OperatorOutcome};
use crate::policy::Policies;
use crate::types::{GroupId, TaskKey};
use muster_fleeting::model::InstanceId;

/// A question that is not answered in this time has no answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the plugins have to stop.
const PLUGIN_STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a scaler does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Groups and plugins do not fit.
    #[error("{groups} groups are configured, and {hosts} plugins run")]
    Groups {
        /// Configured.
        groups: usize,
        /// Running.
        hosts: usize,
    },
    /// The limit is beyond the plugin's (V1).
    #[error(
        "group {group}: max_instances {configured} is greater than the {plugin} that the plugin can have: max size option exceeds instance group's max size"
    )]
    MaxSize {
        /// Which group.
        group: String,
        /// The limit.
        configured: u32,
        /// The plugin's.
        plugin: u32,
    },
    /// The books cannot be read.
    #[error(transparent)]
    Store(#[from] LedgerError),
}

/// Says so where the task ends in a panic: nobody waits for it then.
struct PanicReporter;

impl Drop for PanicReporter {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!(
                "the taskscaler has ended by a defect of its own, please report it: no instance is created or removed, and no \
                 job is requested for its runner, until the manager is started again, which goes on from the books"
            );
        }
    }
}

/// A running scaler. Cheap to clone; it runs until [`Scaler::shutdown`], or until its runtime ends.
#[derive(Debug, Clone)]
pub struct Scaler {
    commands: mpsc::UnboundedSender<Command>,
    metrics: Arc<Metrics>,
    room: watch::Receiver<u64>,
    task: Arc<tokio::sync::Mutex<Option<JoinHandle<()>>>>,
}

async fn run_task(task: ScalerTask) {
    let _alive = PanicReporter;
    task.run().await;
}

impl Scaler {
    /// Starts a scaler of `config` on running plugins, one for each group in its order; goes on from the books in `store`.
    ///
    /// Leases from before are held until they are claimed ([`Self::claim`]) or [`Self::settled`] is called. `wall` gives
    /// seconds since 1970.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn start(
        config: Config,
        hosts: Vec<Arc<dyn InstanceGroupPort>>,
        prepare: Arc<dyn Prepare>,
        mut store: Box<dyn LedgerStore>,
        buckets: &Buckets,
        wall: fn() -> i64,
    ) -> Result<Self, StartError> {
        if hosts.len() != config.groups.len() {
            return Err(StartError::Groups { groups: config.groups.len(), hosts: hosts.len() });
        }
        for (group, host) in config.groups.iter().zip(&hosts) {
            if let super::host::HostStatus::Up { max_size: plugin @ 1.., .. } = *host.status().borrow()
                && group.max_instances > plugin
            {
                let (group, configured) = (group.name.clone(), group.max_instances);
                return Err(StartError::MaxSize { group, configured, plugin });
            }
        }
        let rows = store.load().await?;
        let metrics = Arc::new(Metrics::new(&config, buckets));
        // Not bounded by the channel: each caller waits for its answer, and what is dropped is at most what was handed out.
        let (commands, received) = mpsc::unbounded_channel();
        let shared = Arc::new(DriverContext::new(hosts, commands.clone(), wall));
        let room = shared.capacity_changes.subscribe();
        let task = ScalerTask::new(config, rows, shared, prepare, store, Arc::clone(&metrics), received);
        let task = Arc::new(tokio::sync::Mutex::new(Some(tokio::spawn(run_task(task)))));
        Ok(Self { commands, metrics, room, task })
    }

    /// Promises a slot, before a job is requested.
    ///
    /// # Errors
    /// [`NoCapacity`]: no job should be requested for this runner now, and why. None where the scaler has ended.
    pub async fn reserve(&self, key: TaskKey) -> Result<Reservation, Option<NoCapacity>> {
        let (reply, answer) = oneshot::channel();
        let _ = self.commands.send(Command::Reserve { key, reply });
        answer.await.map_err(|_| None)?.map_err(Some)
    }

    /// Changes each time that a promise is possible again after [`Self::reserve`] refused one, and when promises are
    /// withdrawn ([`Reservation::is_withdrawn`]).
    #[must_use]
    pub fn room(&self) -> watch::Receiver<u64> {
        self.room.clone()
    }

    /// Promises a slot for a job that is here already (taken before a restart, or moved from a lost instance).
    #[must_use]
    pub fn admit(&self, key: TaskKey) -> Reservation {
        let _ = self.commands.send(Command::Admit { key: key.clone() });
        Reservation { key, commands: self.commands.clone(), revoked: Arc::default(), used: false }
    }

    /// The lease that a key has from an earlier start of the manager; none where it has none (any more).
    pub async fn claim(&self, key: TaskKey) -> Option<LeaseHandle> {
        let (reply, answer) = oneshot::channel();
        let _ = self.commands.send(Command::Claim { key, reply });
        answer.await.ok().flatten()
    }

    /// Whether a job left an environment of this name, which is in the books; none where the scaler has ended.
    pub async fn has_environment(&self, name: String) -> Option<bool> {
        let (reply, answer) = oneshot::channel();
        let _ = self.commands.send(Command::Environment(EnvironmentQuery::Has { name, reply }));
        answer.await.ok()
    }

    /// All leases from before that are still wanted have been claimed: the others end, and their instances are removed.
    pub fn claims_complete(&self) {
        self.send(Event::ClaimsComplete);
    }

    /// The coordinator answered a job request that a reservation was made for. `at_once`: with a job, and without holding the
    /// request.
    pub fn answered(&self, at_once: bool) {
        self.send(Event::Answered { at_once });
    }

    /// Other policies, from now on.
    pub fn set_policies(&self, policies: Policies) {
        self.send(Event::Policies(policies));
    }

    /// No more jobs are requested: nothing is kept idle from now on. Jobs that are there already are served.
    pub fn drain(&self) {
        self.send(Event::Drain);
    }

    /// [`Self::shutdown`] is to remove all instances, whatever the configuration says: nobody will start with these books.
    pub fn delete_all_on_shutdown(&self) {
        self.send(Event::DeleteAllOnStop);
    }

    /// An operator does something to an instance, or without one to the whole group; `by` is who, and why. What is answered
    /// is in the books. None where the scaler has ended, or cannot say within five seconds: its books cannot be written,
    /// and it does it when they can.
    pub async fn apply_operator_action(
        &self,
        group: GroupId,
        id: Option<InstanceId>,
        act: OperatorAction,
        by: String,
    ) -> Option<Result<OperatorOutcome, OperatorError>> {
        let (reply, answer) = oneshot::channel();
        let _ = self.commands.send(Command::Operate { group, id, action: act, by, reply });
        tokio::time::timeout(ANSWER_TIMEOUT, answer).await.ok()?.ok()
    }

    /// A plugin says that an instance should not be used any more: it gets no more jobs, and goes after those that it has.
    pub fn retire_instance(&self, group: GroupId, id: InstanceId, why: String) {
        self.send(Event::Retire { group, id, reason: why });
    }

    /// What an instance of a group costs in an hour from now on, in the unit of
    /// [`crate::config::GroupConfig::price_per_hour`].
    pub fn set_price(&self, group: GroupId, per_hour: f64) {
        self.send(Event::PriceChanged { group, per_hour });
    }

    /// Whether a group's provider has any instances to give; while it has none, it is not asked.
    pub fn set_stock(&self, group: GroupId, available: bool) {
        self.send(Event::StockChanged { group, available });
    }

    /// Everything at this moment; none where the scaler has ended, or does not answer within five seconds.
    pub async fn status(&self) -> Option<ScalerStatus> {
        let (reply, answer) = oneshot::channel();
        let _ = self.commands.send(Command::Status { reply });
        tokio::time::timeout(ANSWER_TIMEOUT, answer).await.ok()?.ok()
    }

    /// Why a request waits; none where it does not.
    pub async fn explain_waiting(&self, key: TaskKey) -> Option<WaitReason> {
        let (reply, answer) = oneshot::channel();
        let _ = self.commands.send(Command::ExplainWaiting { key, reply });
        answer.await.ok().flatten()
    }

    /// Its numbers.
    #[must_use]
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Ends it: nothing more is granted, leases may end within `limit`, what is to be removed is removed within it, then
    /// the plugins stop, for which they have ten seconds more. What is left stays in the books for the next start; it is
    /// returned.
    pub async fn shutdown(&self, limit: Duration) -> Vec<InstanceStatus> {
        let end = tokio::time::Instant::now() + limit + PLUGIN_STOP_TIMEOUT;
        let (reply, answer) = oneshot::channel();
        let _ = self.commands.send(Command::Shutdown { limit, reply });
        let left = tokio::time::timeout_at(end, answer).await;
        if let Some(mut task) = self.task.lock().await.take()
            && tokio::time::timeout_at(end, &mut task).await.is_err()
        {
            tracing::error!(
                "the taskscaler did not end in its time, and is cut off; the next start goes on from its books"
            );
            task.abort();
        }
        left.ok().and_then(Result::ok).unwrap_or_default()
    }

    fn send(&self, event: Event) {
        let _ = self.commands.send(Command::Event(event));
    }
}
