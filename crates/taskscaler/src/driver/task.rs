//! The task that owns the engine.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{self, JoinSet};
use tokio::time::Instant;

use super::call;
use super::capacity_notifier::CapacityNotifier;
use super::command::{Command, OperatorResult};
use super::context::DriverContext;
use super::environments::SuspendReply;
use super::lease::{LeaseHandle, Reservation};
use super::ledger_writer::LedgerWriter;
use super::metrics::Metrics;
use super::ports::{PluginAvailability, Prepare};
use super::store::LedgerStore;
use crate::config::Config;
use crate::decision::{Decision, DecisionKind, ScaleUpBlock};
use crate::engine::{Engine, EnqueueError, InstanceStatus, NoCapacity, ScalerStatus, WaitReason};
use crate::event::{Action, Event};
use crate::history::HistoryEntry;
use crate::ledger::{Row, RowKey};
use crate::time::{Now, Time};
use crate::types::{GroupId, LossReason, TaskKey};

/// Engine time at which the scaler starts. Not zero, because the ledger has earlier times, and engine times cannot be
/// negative.
const START: Time = Time::from_millis(10 * 365 * 24 * 3_600_000);
const MAX_COMMANDS_PER_WRITE: usize = 256;

struct Shutdown {
    until: Instant,
    reply: oneshot::Sender<Vec<InstanceStatus>>,
}

pub(super) struct ScalerTask {
    pub(super) engine: Engine,
    pub(super) shared: Arc<DriverContext>,
    prepare: Arc<dyn Prepare>,
    ledger: LedgerWriter,
    metrics: Arc<Metrics>,
    commands: mpsc::UnboundedReceiver<Command>,
    calls: JoinSet<Event>,
    /// Event to handle if a call panics.
    panic_events: HashMap<task::Id, Event>,
    /// Each task returns when the availability of its group's plugin changes.
    status_watches: JoinSet<(GroupId, watch::Receiver<PluginAvailability>)>,
    /// Jobs that wait for slots or for an environment.
    pub(super) waiting: HashMap<TaskKey, oneshot::Sender<Result<LeaseHandle, EnqueueError>>>,
    /// Suspend commands that wait for the ledger.
    pub(super) suspending: HashMap<TaskKey, SuspendReply>,
    pub(super) losses: HashMap<TaskKey, watch::Sender<Option<LossReason>>>,
    /// Reservations without a job, with the flag that revokes them.
    pub(super) reservations: HashMap<TaskKey, Arc<AtomicBool>>,
    /// Operator actions without a reply yet, by request number.
    operator_requests: HashMap<u64, oneshot::Sender<OperatorResult>>,
    last_operator_request: u64,
    started_at: Instant,
    shutdown: Option<Shutdown>,
    capacity: CapacityNotifier,
}

impl ScalerTask {
    pub(super) fn new(
        config: Config,
        rows: Vec<(RowKey, Row)>,
        shared: Arc<DriverContext>,
        prepare: Arc<dyn Prepare>,
        store: Box<dyn LedgerStore>,
        metrics: Arc<Metrics>,
        commands: mpsc::UnboundedReceiver<Command>,
    ) -> Self {
        let (started_at, capacity) = (Instant::now(), CapacityNotifier::new(shared.capacity_changes.clone()));
        let now = Now { at: START, unix: (shared.wall_clock)() };
        let (engine, unknown) = Engine::restore(config, rows, now);
        for row in unknown {
            tracing::warn!(?row, "ledger contains a row of an unknown group or of another kind; ignoring the row");
        }
        Self {
            engine,
            shared,
            prepare,
            ledger: LedgerWriter::new(store),
            metrics,
            commands,
            calls: JoinSet::new(),
            panic_events: HashMap::new(),
            status_watches: JoinSet::new(),
            waiting: HashMap::new(),
            suspending: HashMap::new(),
            losses: HashMap::new(),
            reservations: HashMap::new(),
            operator_requests: HashMap::new(),
            last_operator_request: 0,
            started_at,
            shutdown: None,
            capacity,
        }
    }

    fn now(&self) -> Now {
        Now { at: START + self.started_at.elapsed(), unix: (self.shared.wall_clock)() }
    }

    pub(super) async fn run(mut self) {
        for group in (0..self.engine.config().groups.len()).map(GroupId) {
            if let Some(plugin) = self.shared.plugin(group) {
                let mut status = plugin.status();
                let first = status.borrow_and_update().clone();
                self.status_changed(group, first);
                self.watch_status(group, status);
            }
        }
        loop {
            self.flush().await;
            if self.is_shutdown_complete() {
                break;
            }
            let now = self.now();
            // While the ledger cannot be written, the capacity is not checked, and the time of the check would stay in the
            // past.
            let next_check_at = self.capacity.next_check_at().filter(|_| self.ledger.write_error().is_none());
            let wake = self
                .engine
                .next_wake(now)
                .into_iter()
                .chain(next_check_at)
                .min()
                .map_or(Duration::from_secs(3600), |at| at.since(now.at));
            let until = self.shutdown.as_ref().map(|shutdown| shutdown.until);
            tokio::select! {
                command = self.commands.recv() => match command {
                    Some(command) => {
                        self.handle_command(command);
                        self.handle_pending_commands();
                    }
                    None => break,
                },
                Some(done) = self.calls.join_next_with_id() => self.call_finished(done),
                Some(changed) = self.status_watches.join_next() => if let Ok((group, mut status)) = changed {
                    let current = status.borrow_and_update().clone();
                    self.status_changed(group, current);
                    self.watch_status(group, status);
                },
                // At least one step of the clock, so that the task yields.
                () = tokio::time::sleep(wake.max(Duration::from_millis(1))) => self.engine.handle(self.now(), Event::Tick),
                () = self.ledger.next_event() => {}
                () = sleep_until(until) => {}
            }
        }
        self.stop().await;
    }

    /// Handles the pending commands, so that one write of the ledger covers all.
    fn handle_pending_commands(&mut self) {
        for _ in 0..MAX_COMMANDS_PER_WRITE {
            let Ok(command) = self.commands.try_recv() else { return };
            self.handle_command(command);
        }
    }

    fn call_finished(&mut self, done: Result<(task::Id, Event), task::JoinError>) {
        let panic_event = self.panic_events.remove(&done.as_ref().map_or_else(task::JoinError::id, |(task, _)| *task));
        let event = match done {
            Ok((_, event)) => Some(event),
            Err(error) => {
                tracing::error!(%error, "plugin call panicked (this is a bug, please report it)");
                panic_event
            }
        };
        if let Some(event) = event {
            self.engine.handle(self.now(), event);
        }
    }

    fn watch_status(&mut self, group: GroupId, mut status: watch::Receiver<PluginAvailability>) {
        self.status_watches.spawn(async move {
            if status.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            (group, status)
        });
    }

    fn status_changed(&mut self, group: GroupId, status: PluginAvailability) {
        let event = match status {
            PluginAvailability::Up { max_size } => Event::PluginUp { group, max_size },
            PluginAvailability::Down { cause } => Event::PluginDown { group, cause },
        };
        self.engine.handle(self.now(), event);
    }

    fn handle_command(&mut self, command: Command) {
        let now = self.now();
        match command {
            Command::Reserve { key, reply } => {
                let reserved = self.reserve(now, key.clone());
                self.metrics.record_reservation(reserved.as_ref().err());
                self.capacity.record(&reserved);
                let commands = self.shared.commands.clone();
                let reservation = |()| {
                    let revoked = Arc::<AtomicBool>::default();
                    self.reservations.insert(key.clone(), Arc::clone(&revoked));
                    Reservation { key, commands, revoked, needs_cancel: true }
                };
                let _ = reply.send(reserved.map(reservation));
            }
            Command::Admit { key } => self.engine.admit(key),
            Command::Rename { from, to } => {
                self.reservations.remove(&from);
                self.engine.rename(&from, to);
            }
            Command::Acquire { key, request, reply } => {
                // The caller's reservation may have been revoked while the job arrived.
                self.reservations.remove(&key);
                self.engine.admit(key.clone());
                match self.engine.acquire(now, key.clone(), &request) {
                    Ok(()) => {
                        self.waiting.insert(key, reply);
                    }
                    Err(error) => {
                        let _ = reply.send(Err(error));
                    }
                }
            }
            Command::Environment(command) => self.handle_environment_command(now, command),
            Command::TimedOut { key, reply } => {
                self.metrics.record_acquire_timeout();
                let _ = reply.send(self.explain_waiting(now, &key));
                self.cancel(now, key);
            }
            Command::Cancel { key } => self.cancel(now, key),
            Command::Claim { key, reply } => {
                let lease = self.engine.claim(&key).and_then(|assignment| self.lease_handle(assignment));
                let _ = reply.send(lease);
            }
            Command::Event(event) => {
                if let Event::Release { key } = &event {
                    self.losses.remove(key);
                }
                self.engine.handle(now, event);
            }
            Command::Operate { group, id, action, by, reply } => {
                self.last_operator_request += 1;
                let request = self.last_operator_request;
                self.operator_requests.insert(request, reply);
                self.engine.handle(now, Event::Operator { request, group, id, action, by });
            }
            Command::Status { reply } => {
                let _ = reply.send(self.status(now));
            }
            Command::ExplainWaiting { key, reply } => {
                let _ = reply.send(self.explain_waiting(now, &key));
            }
            Command::Shutdown { timeout, reply } => {
                self.engine.handle(now, Event::Stop);
                for (key, reply) in self.waiting.drain() {
                    let _ = reply.send(Err(EnqueueError::Stopping { key }));
                }
                self.shutdown = Some(Shutdown { until: Instant::now() + timeout, reply });
            }
        }
    }

    fn cancel(&mut self, now: Now, key: TaskKey) {
        self.waiting.remove(&key);
        self.reservations.remove(&key);
        self.metrics.record_unreserve();
        // `Unreserve` precedes `Cancel`. Otherwise, the reservation would count as unused between the two events.
        self.engine.handle(now, Event::Unreserve { key: key.clone() });
        self.engine.handle(now, Event::Cancel { key });
    }

    /// Returns a handle of the lease, and creates the channel that reports the loss of the instance.
    fn lease_handle(&mut self, assignment: crate::types::SlotAssignment) -> Option<LeaseHandle> {
        let group_name = self.engine.config().groups.get(assignment.group.0)?.name.clone();
        let losses = self.losses.entry(assignment.key.clone()).or_insert_with(|| watch::Sender::new(None));
        let lost = losses.subscribe();
        Some(LeaseHandle { assignment, group_name, shared: Arc::clone(&self.shared), lost, is_detached: false })
    }

    /// Performs the engine's actions, except those that must wait for the ledger.
    async fn flush(&mut self) {
        loop {
            #[cfg(debug_assertions)]
            if let Err(violation) = self.engine.check() {
                debug_assert!(false, "{violation}");
            }
            let decisions = self.engine.decisions();
            let history: Vec<HistoryEntry> = decisions.into_iter().map(|decision| self.record(&decision)).collect();
            let mut actions = self.ledger.add(self.engine.changes(), history, self.engine.actions());
            actions.extend(self.ledger.advance().await);
            if actions.is_empty() {
                break;
            }
            for action in actions {
                self.perform(action);
            }
        }
        let now = self.now();
        if self.ledger.write_error().is_none() {
            self.capacity.notify_if_available(&mut self.engine, now);
        }
        self.metrics.observe(&self.engine);
    }

    fn reserve(&mut self, now: Now, key: TaskKey) -> Result<(), NoCapacity> {
        match self.ledger.write_error() {
            Some(reason) => Err(NoCapacity::LedgerUnavailable { reason }),
            None => self.engine.reserve(now, key),
        }
    }

    fn status(&self, now: Now) -> ScalerStatus {
        let mut status = self.engine.status(now);
        status.scale_up_blocked.extend(self.ledger.write_error());
        status
    }

    fn explain_waiting(&self, now: Now, key: &TaskKey) -> Option<WaitReason> {
        let wait = self.engine.explain_waiting(now, key);
        let Some(write_error) = self.ledger.write_error() else { return wait };
        let unqueued = || WaitReason {
            waiting_ms: 0,
            requests_ahead: 0,
            booting: 0,
            next_ready_in_ms: None,
            scale_up_blocked: Vec::new(),
        };
        // The engine may have assigned slots already, but the assignment waits for the ledger.
        let mut wait = wait.or_else(|| self.waiting.contains_key(key).then(unqueued))?;
        wait.scale_up_blocked.push(write_error);
        Some(wait)
    }

    /// Counts and logs a decision.
    fn record(&self, decision: &Decision) -> HistoryEntry {
        self.metrics.record(&decision.kind);
        let groups = &self.engine.config().groups;
        let name = |group: GroupId| groups.get(group.0).map_or_else(String::new, |group| group.name.clone());
        let entry = HistoryEntry::from_decision(decision, name);
        match &decision.kind {
            // These blocks are normal, so they are not warnings.
            DecisionKind::ScaleUpBlocked { reasons, .. }
                if reasons.iter().all(|(_, block)| {
                    matches!(
                        block,
                        ScaleUpBlock::PartiallyAccepted
                            | ScaleUpBlock::Throttled
                            | ScaleUpBlock::NotListedYet { error: None }
                    )
                }) =>
            {
                tracing::debug!(decision = entry.text, group = entry.group, "scaler decision");
            }
            DecisionKind::CreationFailed { .. }
            | DecisionKind::ListFailed { .. }
            | DecisionKind::ScaleUpBlocked { .. }
            | DecisionKind::Lost { .. }
            | DecisionKind::DeletionStuck { .. } => {
                tracing::warn!(decision = entry.text, group = entry.group, "scaler decision");
            }
            DecisionKind::Leased { .. }
            | DecisionKind::Released { .. }
            | DecisionKind::ScaleUpAccepted { .. }
            | DecisionKind::Running { .. } => {
                tracing::debug!(decision = entry.text, group = entry.group, "scaler decision");
            }
            _ => tracing::info!(decision = entry.text, group = entry.group, "scaler decision"),
        }
        entry
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Assign(assignment) => {
                let key = assignment.key.clone();
                let Some(reply) = self.waiting.remove(&key).filter(|reply| !reply.is_closed()) else {
                    self.engine.handle(self.now(), Event::AssignmentAbandoned { key });
                    return;
                };
                if let Some(lease) = self.lease_handle(assignment) {
                    // If the caller no longer waits, dropping the handle releases the slots.
                    let _ = reply.send(Ok(lease));
                }
            }
            Action::Lost { key, reason } => {
                if let Some(loss) = self.losses.remove(&key) {
                    loss.send_replace(Some(reason));
                }
            }
            Action::EnvironmentSaved { key } => self.confirm_suspend(&key),
            Action::ResumeFailed { key, error } => self.reject_resume(&key, error),
            Action::RevokeReservation { key } => {
                if let Some(revoked) = self.reservations.remove(&key) {
                    revoked.store(true, Ordering::Relaxed);
                    self.shared.capacity_changes.send_modify(|count| *count += 1);
                }
            }
            Action::OperatorReply { request, result } => {
                if let Some(reply) = self.operator_requests.remove(&request) {
                    let _ = reply.send(result);
                }
            }
            Action::ForgetInstance { group, id } => self.shared.forget_connect_info(group, &id),
            call => {
                let Some(call) = call::plugin_call(&self.engine, &self.shared, &self.prepare, call) else { return };
                self.metrics.record_call(&call.action);
                let panic_event = call.panic_event();
                let task = self.calls.spawn(call.execute()).id();
                self.panic_events.insert(task, panic_event);
            }
        }
    }

    fn is_shutdown_complete(&self) -> bool {
        let Some(shutdown) = &self.shutdown else { return false };
        if Instant::now() >= shutdown.until {
            return true;
        }
        let status = self.engine.status(self.now());
        let is_being_removed = |instance: &InstanceStatus| instance.state == "deleting" || instance.state == "draining";
        // Requested instances that appear after the shutdown would not be deleted.
        let may_appear =
            self.engine.config().delete_on_shutdown && status.groups.iter().any(|group| group.requested > 0);
        let is_ledger_written = !self.ledger.has_pending_writes();
        is_ledger_written && status.slots.acquired == 0 && !may_appear && !status.instances.iter().any(is_being_removed)
    }

    async fn stop(mut self) {
        self.calls.shutdown().await;
        self.status_watches.shutdown().await;
        if let Some(shutdown) = self.shutdown.take() {
            let _ = shutdown.reply.send(self.engine.status(self.now()).instances);
        }
        let plugins = std::mem::take(&mut *self.shared.plugins.lock().unwrap_or_else(PoisonError::into_inner));
        for plugin in plugins {
            plugin.stop().await;
        }
    }
}

async fn sleep_until(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until).await,
        None => std::future::pending().await,
    }
}
