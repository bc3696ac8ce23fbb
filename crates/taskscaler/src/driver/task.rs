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
use super::host::{HostStatus, Prepare};
use super::lease::{LeaseHandle, Reservation};
use super::ledger_writer::LedgerWriter;
use super::metrics::Metrics;
use super::store::LedgerStore;
use crate::config::Config;
use crate::decision::{Decision, DecisionKind, ScaleUpBlock};
use crate::engine::{Engine, EnqueueError, InstanceStatus, NoCapacity, ScalerStatus, WaitReason};
use crate::event::{Action, Event};
use crate::history::HistoryEntry;
use crate::ledger::{Row, RowKey};
use crate::time::{Now, Time};
use crate::types::{GroupId, LossReason, TaskKey};

/// What was before this process has a time, too: ten years are before it.
const START: Time = Time::from_millis(10 * 365 * 24 * 3_600_000);
/// Events that are taken together, with one write.
const MAX_EVENTS_PER_WRITE: usize = 256;

/// The end that is under way.
struct Shutdown {
    until: Instant,
    reply: oneshot::Sender<Vec<InstanceStatus>>,
}

/// See the module.
pub(super) struct ScalerTask {
    pub(super) engine: Engine,
    pub(super) shared: Arc<DriverContext>,
    prepare: Arc<dyn Prepare>,
    ledger: LedgerWriter,
    metrics: Arc<Metrics>,
    received: mpsc::UnboundedReceiver<Command>,
    calls: JoinSet<Event>,
    /// What each of them means if it ends in a panic.
    called: HashMap<task::Id, Event>,
    /// Each group's status; a task that ended gives it back with the change.
    watches: JoinSet<(GroupId, watch::Receiver<HostStatus>)>,
    pub(super) waiting: HashMap<TaskKey, oneshot::Sender<Result<LeaseHandle, EnqueueError>>>,
    /// Jobs that leave their environments for later ones, until that is in the books.
    pub(super) suspending: HashMap<TaskKey, SuspendReply>,
    pub(super) losses: HashMap<TaskKey, watch::Sender<Option<LossReason>>>,
    /// Promises that no job has used, and whether they were withdrawn.
    pub(super) reservations: HashMap<TaskKey, Arc<AtomicBool>>,
    /// Operators who wait for an answer, by the question's number.
    operator_requests: HashMap<u64, oneshot::Sender<OperatorResult>>,
    asked: u64,
    origin: Instant,
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
        received: mpsc::UnboundedReceiver<Command>,
    ) -> Self {
        let (origin, room) = (Instant::now(), CapacityNotifier::new(shared.capacity_changes.clone()));
        let now = Now { at: START, unix: (shared.wall)() };
        let (engine, unknown) = Engine::restore(config, rows, now);
        for row in unknown {
            tracing::warn!(
                ?row,
                "the books have an entry of a group that is not configured any more; its instances are left alone"
            );
        }
        Self {
            engine,
            shared,
            prepare,
            ledger: LedgerWriter::new(store),
            metrics,
            received,
            calls: JoinSet::new(),
            called: HashMap::new(),
            watches: JoinSet::new(),
            waiting: HashMap::new(),
            suspending: HashMap::new(),
            losses: HashMap::new(),
            reservations: HashMap::new(),
            operator_requests: HashMap::new(),
            asked: 0,
            origin,
            shutdown: None,
            capacity: room,
        }
    }

    fn now(&self) -> Now {
        Now { at: START + self.origin.elapsed(), unix: (self.shared.wall)() }
    }

    pub(super) async fn run(mut self) {
        for group in (0..self.engine.config().groups.len()).map(GroupId) {
            if let Some(host) = self.shared.host(group) {
                let mut status = host.status();
                let first = status.borrow_and_update().clone();
                self.status_changed(group, first);
                self.watch(group, status);
            }
        }
        loop {
            self.flush().await;
            if self.is_over() {
                break;
            }
            let now = self.now();
            let wake = self
                .engine
                .next_wake(now)
                .into_iter()
                .chain(self.capacity.again())
                .min()
                .map_or(Duration::from_secs(3600), |at| at.since(now.at));
            let until = self.shutdown.as_ref().map(|ending| ending.until);
            tokio::select! {
                command = self.received.recv() => match command {
                    Some(command) => {
                        self.command(command);
                        self.more();
                    }
                    None => break,
                },
                Some(done) = self.calls.join_next_with_id() => self.answered(done),
                Some(changed) = self.watches.join_next() => if let Ok((group, mut status)) = changed {
                    let now = status.borrow_and_update().clone();
                    self.status_changed(group, now);
                    self.watch(group, status);
                },
                // A wake of 0 ms is one that is due: it is waited for by the smallest step of the clock.
                () = tokio::time::sleep(wake.max(Duration::from_millis(1))) => self.engine.handle(self.now(), Event::Tick),
                () = self.ledger.next_event() => {}
                () = sleep_until(until) => {}
            }
        }
        self.end().await;
    }

    /// What was told meanwhile, with one write for all.
    fn more(&mut self) {
        for _ in 0..MAX_EVENTS_PER_WRITE {
            let Ok(command) = self.received.try_recv() else { return };
            self.command(command);
        }
    }

    fn answered(&mut self, done: Result<(task::Id, Event), task::JoinError>) {
        let failed = self.called.remove(&done.as_ref().map_or_else(task::JoinError::id, |(task, _)| *task));
        let event = match done {
            Ok((_, event)) => Some(event),
            Err(error) => {
                tracing::error!(%error, "a call of a plugin ended in a panic");
                failed
            }
        };
        if let Some(event) = event {
            self.engine.handle(self.now(), event);
        }
    }

    fn watch(&mut self, group: GroupId, mut status: watch::Receiver<HostStatus>) {
        self.watches.spawn(async move {
            if status.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            (group, status)
        });
    }

    fn status_changed(&mut self, group: GroupId, status: HostStatus) {
        let event = match status {
            HostStatus::Up { max_size } => Event::PluginUp { group, max_size },
            HostStatus::Down { cause } => Event::PluginDown { group, cause },
        };
        self.engine.handle(self.now(), event);
    }

    fn command(&mut self, command: Command) {
        let now = self.now();
        match command {
            Command::Reserve { key, reply } => {
                let reserved = self.reserve(now, key.clone());
                self.metrics.reserved(reserved.as_ref().err());
                self.capacity.record(&reserved);
                let commands = self.shared.commands.clone();
                let promised = |()| {
                    let withdrawn = Arc::<AtomicBool>::default();
                    self.reservations.insert(key.clone(), Arc::clone(&withdrawn));
                    Reservation { key, commands, revoked: withdrawn, used: false }
                };
                let _ = reply.send(reserved.map(promised));
            }
            Command::Admit { key } => self.engine.admit(key),
            Command::Rename { from, to } => {
                self.reservations.remove(&from);
                self.engine.rename(&from, to);
            }
            Command::Acquire { key, request, reply } => {
                // There is a promise; it may have been withdrawn while its job came.
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
            Command::Environment(asked) => self.environment(now, asked),
            Command::TimedOut { key, reply } => {
                self.metrics.acquire_timed_out();
                let _ = reply.send(self.why_waiting(now, &key));
                self.give_up(now, key);
            }
            Command::GiveUp { key } => self.give_up(now, key),
            Command::Claim { key, reply } => {
                let lease = self.engine.claim(&key).and_then(|lease| self.lease(lease));
                let _ = reply.send(lease);
            }
            Command::Event(event) => {
                if let Event::Release { key } = &event {
                    self.losses.remove(key);
                }
                self.engine.handle(now, event);
            }
            Command::Operate { group, id, action: act, by, reply } => {
                self.asked += 1;
                let question = self.asked;
                self.operator_requests.insert(question, reply);
                self.engine.handle(now, Event::Operator { request: question, group, id, action: act, by });
            }
            Command::Status { reply } => {
                let _ = reply.send(self.status(now));
            }
            Command::ExplainWaiting { key, reply } => {
                let _ = reply.send(self.why_waiting(now, &key));
            }
            Command::Shutdown { limit, reply } => {
                self.engine.handle(now, Event::Stop);
                for (key, reply) in self.waiting.drain() {
                    let _ = reply.send(Err(EnqueueError::Stopping { key }));
                }
                self.shutdown = Some(Shutdown { until: Instant::now() + limit, reply });
            }
        }
    }

    fn give_up(&mut self, now: Now, key: TaskKey) {
        self.waiting.remove(&key);
        self.reservations.remove(&key);
        self.metrics.unreserved();
        // In this order: else it is a promise for a moment, for which nothing may be in sight, and all are looked through.
        self.engine.handle(now, Event::Unreserve { key: key.clone() });
        self.engine.handle(now, Event::Cancel { key });
    }

    fn lease(&mut self, inner: crate::types::SlotAssignment) -> Option<LeaseHandle> {
        let group_name = self.engine.config().groups.get(inner.group.0)?.name.clone();
        let losses = self.losses.entry(inner.key.clone()).or_insert_with(|| watch::Sender::new(None));
        let lost = losses.subscribe();
        Some(LeaseHandle { inner, group_name, shared: Arc::clone(&self.shared), lost, is_left: false })
    }

    /// Does what is to be done, and has been stored where it must be. Waits for nothing: a store that is slow, or fails, goes
    /// on with [`Bookkeeper::turn`].
    async fn flush(&mut self) {
        loop {
            #[cfg(debug_assertions)]
            if let Err(violation) = self.engine.check() {
                debug_assert!(false, "{violation}");
            }
            let decisions = self.engine.decisions();
            let told: Vec<HistoryEntry> = decisions.into_iter().map(|decision| self.note(&decision)).collect();
            let mut actions = self.ledger.add(self.engine.changes(), told, self.engine.actions());
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

    /// Why no slot can be promised.
    fn reserve(&mut self, now: Now, key: TaskKey) -> Result<(), NoCapacity> {
        match self.ledger.write_error() {
            Some(why) => Err(NoCapacity::LedgerUnavailable { why }),
            None => self.engine.reserve(now, key),
        }
    }

    /// Everything, with what the engine does not know of.
    fn status(&self, now: Now) -> ScalerStatus {
        let mut status = self.engine.status(now);
        status.scale_up_blocked.extend(self.ledger.write_error());
        status
    }

    fn why_waiting(&self, now: Now, key: &TaskKey) -> Option<WaitReason> {
        let wait = self.engine.explain_waiting(now, key);
        let Some(trouble) = self.ledger.write_error() else { return wait };
        let nobody = || WaitReason {
            waiting_ms: 0,
            queue_position: 0,
            booting: 0,
            next_ready_in_ms: None,
            scale_up_blocked: Vec::new(),
        };
        // Who has a slot by the engine's books waits until the ones on disk say so.
        let mut wait = wait.or_else(|| self.waiting.contains_key(key).then(nobody))?;
        wait.scale_up_blocked.push(trouble);
        Some(wait)
    }

    /// Counts and logs a decision; what is kept of it.
    fn note(&self, decision: &Decision) -> HistoryEntry {
        self.metrics.note(&decision.kind);
        let groups = &self.engine.config().groups;
        let name = |group: GroupId| groups.get(group.0).map_or_else(String::new, |group| group.name.clone());
        let told = HistoryEntry::from_decision(decision, name);
        match &decision.kind {
            // As fast as the provider allows, or a start: that is no trouble.
            DecisionKind::ScaleUpBlocked { reasons, .. }
                if reasons.iter().all(|(_, hold)| {
                    matches!(
                        hold,
                        ScaleUpBlock::PartialGrant
                            | ScaleUpBlock::Throttled
                            | ScaleUpBlock::NotListedYet { error: None }
                    )
                }) =>
            {
                tracing::debug!(decision = told.text, group = told.group, "taskscaler");
            }
            DecisionKind::CreationFailed { .. }
            | DecisionKind::ListFailed { .. }
            | DecisionKind::ScaleUpBlocked { .. }
            | DecisionKind::Lost { .. }
            | DecisionKind::DeletionStuck { .. } => {
                tracing::warn!(decision = told.text, group = told.group, "taskscaler");
            }
            DecisionKind::Leased { .. }
            | DecisionKind::Released { .. }
            | DecisionKind::ScaleUpAccepted { .. }
            | DecisionKind::Running { .. } => {
                tracing::debug!(decision = told.text, group = told.group, "taskscaler");
            }
            _ => tracing::info!(decision = told.text, group = told.group, "taskscaler"),
        }
        told
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Grant(lease) => {
                let key = lease.key.clone();
                let Some(reply) = self.waiting.remove(&key).filter(|reply| !reply.is_closed()) else {
                    self.engine.handle(self.now(), Event::GrantAbandoned { key });
                    return;
                };
                if let Some(lease) = self.lease(lease) {
                    // Given to nobody, it is dropped, and with that released.
                    let _ = reply.send(Ok(lease));
                }
            }
            Action::Lost { key, reason: cause } => {
                if let Some(told) = self.losses.remove(&key) {
                    told.send_replace(Some(cause));
                }
            }
            Action::EnvironmentSaved { key } => self.environment_saved(&key),
            Action::ResumeFailed { key, error: why } => self.resume_failed(&key, why),
            Action::RevokeReservation { key } => {
                if let Some(withdrawn) = self.reservations.remove(&key) {
                    withdrawn.store(true, Ordering::Relaxed);
                    self.shared.capacity_changes.send_modify(|times| *times += 1);
                }
            }
            Action::OperatorReply { request: question, result: answer } => {
                if let Some(reply) = self.operator_requests.remove(&question) {
                    // Who asked may have gone away.
                    let _ = reply.send(answer);
                }
            }
            Action::ForgetInstance { group, id } => self.shared.forget(group, &id),
            call => {
                let Some(call) = call::of(&self.engine, &self.shared, &self.prepare, call) else { return };
                self.metrics.called(&call.action);
                let failed = call.failed();
                let task = self.calls.spawn(call.execute()).id();
                self.called.insert(task, failed);
            }
        }
    }

    /// Whether the end may come: its time is over, or nothing is left to be done.
    fn is_over(&self) -> bool {
        let Some(ending) = &self.shutdown else { return false };
        if Instant::now() >= ending.until {
            return true;
        }
        let status = self.engine.status(self.now());
        let going = |instance: &InstanceStatus| instance.state == "deleting" || instance.state == "draining";
        // What was asked for and appears later would be left.
        let to_come = self.engine.config().delete_on_shutdown && status.groups.iter().any(|group| group.requested > 0);
        let written = !self.ledger.has_pending_writes();
        written && status.slots.acquired == 0 && !to_come && !status.instances.iter().any(going)
    }

    async fn end(mut self) {
        self.calls.shutdown().await;
        self.watches.shutdown().await;
        let left = self.engine.status(self.now()).instances;
        let hosts = std::mem::take(&mut *self.shared.hosts.lock().unwrap_or_else(PoisonError::into_inner));
        for host in hosts {
            host.stop().await;
        }
        if let Some(ending) = self.shutdown.take() {
            let _ = ending.reply.send(left);
        }
    }
}

async fn sleep_until(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until).await,
        None => std::future::pending().await,
    }
}
