//! The task that owns the engine.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use muster_fleeting::model::InstanceId;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{self, JoinSet};
use tokio::time::Instant;

use super::bookkeeper::Bookkeeper;
use super::call;
use super::environments::{Asked, Parking};
use super::host::{HostStatus, Prepare};
use super::lease::{Lease, Reservation};
use super::metrics::Metrics;
use super::room::Room;
use super::shared::Shared;
use super::store::Store;
use crate::books::{Row, RowKey};
use crate::config::Config;
use crate::decision::{Decision, Hold, What};
use crate::engine::{AcquireError, Engine, InstanceStatus, NoCapacity, Status, Wait};
use crate::event::{Action, Event};
use crate::history::Told;
use crate::operator::{Act, Done, Refused};
use crate::time::{Now, Time};
use crate::words::{GroupId, Key, Loss, Request};

/// What was before this process has a time, too: ten years are before it.
const START: Time = Time::from_millis(10 * 365 * 24 * 3_600_000);
/// Events that are taken together, with one write.
const TOGETHER_MAX: usize = 256;

/// What an operator is told.
type Answer = Result<Done, Refused>;

/// What the task is told.
#[derive(Debug)]
pub(super) enum Command {
    Reserve { key: Key, reply: oneshot::Sender<Result<Reservation, NoCapacity>> },
    Admit { key: Key },
    Rename { from: Key, to: Key },
    Acquire { key: Key, request: Request, reply: oneshot::Sender<Result<Lease, AcquireError>> },
    Environment(Asked),
    TimedOut { key: Key, reply: oneshot::Sender<Option<Wait>> },
    GiveUp { key: Key },
    Claim { key: Key, reply: oneshot::Sender<Option<Lease>> },
    Tell(Event),
    Operate { group: GroupId, id: Option<InstanceId>, act: Act, by: String, reply: oneshot::Sender<Answer> },
    Status { reply: oneshot::Sender<Status> },
    WhyWaiting { key: Key, reply: oneshot::Sender<Option<Wait>> },
    Shutdown { limit: Duration, reply: oneshot::Sender<Vec<InstanceStatus>> },
}

/// The end that is under way.
struct Ending {
    until: Instant,
    reply: oneshot::Sender<Vec<InstanceStatus>>,
}

/// See the module.
pub(super) struct Task {
    pub(super) engine: Engine,
    pub(super) shared: Arc<Shared>,
    prepare: Arc<dyn Prepare>,
    books: Bookkeeper,
    metrics: Arc<Metrics>,
    received: mpsc::UnboundedReceiver<Command>,
    calls: JoinSet<Event>,
    /// What each of them means if it ends in a panic.
    called: HashMap<task::Id, Event>,
    /// Each group's status; a task that ended gives it back with the change.
    watches: JoinSet<(GroupId, watch::Receiver<HostStatus>)>,
    pub(super) waiting: HashMap<Key, oneshot::Sender<Result<Lease, AcquireError>>>,
    /// Jobs that leave their environments for later ones, until that is in the books.
    pub(super) parking: HashMap<Key, Parking>,
    pub(super) losses: HashMap<Key, watch::Sender<Option<Loss>>>,
    /// Promises that no job has used, and whether they were withdrawn.
    pub(super) promises: HashMap<Key, Arc<AtomicBool>>,
    /// Operators who wait for an answer, by the question's number.
    questions: HashMap<u64, oneshot::Sender<Answer>>,
    asked: u64,
    origin: Instant,
    ending: Option<Ending>,
    room: Room,
}

impl Task {
    pub(super) fn new(
        config: Config,
        rows: Vec<(RowKey, Row)>,
        shared: Arc<Shared>,
        prepare: Arc<dyn Prepare>,
        store: Box<dyn Store>,
        metrics: Arc<Metrics>,
        received: mpsc::UnboundedReceiver<Command>,
    ) -> Self {
        let (origin, room) = (Instant::now(), Room::new(shared.room.clone()));
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
            books: Bookkeeper::new(store),
            metrics,
            received,
            calls: JoinSet::new(),
            called: HashMap::new(),
            watches: JoinSet::new(),
            waiting: HashMap::new(),
            parking: HashMap::new(),
            losses: HashMap::new(),
            promises: HashMap::new(),
            questions: HashMap::new(),
            asked: 0,
            origin,
            ending: None,
            room,
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
                .chain(self.room.again())
                .min()
                .map_or(Duration::from_secs(3600), |at| at.since(now.at));
            let until = self.ending.as_ref().map(|ending| ending.until);
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
                () = self.books.turn() => {}
                () = sleep_until(until) => {}
            }
        }
        self.end().await;
    }

    /// What was told meanwhile, with one write for all.
    fn more(&mut self) {
        for _ in 0..TOGETHER_MAX {
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
            HostStatus::Up { max_size } => Event::GroupUp { group, max_size },
            HostStatus::Down { cause } => Event::GroupDown { group, cause },
        };
        self.engine.handle(self.now(), event);
    }

    fn command(&mut self, command: Command) {
        let now = self.now();
        match command {
            Command::Reserve { key, reply } => {
                let reserved = self.reserve(now, key.clone());
                self.metrics.reserved(reserved.as_ref().err());
                self.room.note(&reserved);
                let commands = self.shared.commands.clone();
                let promised = |()| {
                    let withdrawn = Arc::<AtomicBool>::default();
                    self.promises.insert(key.clone(), Arc::clone(&withdrawn));
                    Reservation { key, commands, withdrawn, used: false }
                };
                let _ = reply.send(reserved.map(promised));
            }
            Command::Admit { key } => self.engine.admit(key),
            Command::Rename { from, to } => {
                self.promises.remove(&from);
                self.engine.rename(&from, to);
            }
            Command::Acquire { key, request, reply } => {
                // There is a promise; it may have been withdrawn while its job came.
                self.promises.remove(&key);
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
            Command::Tell(event) => {
                if let Event::Release { key } = &event {
                    self.losses.remove(key);
                }
                self.engine.handle(now, event);
            }
            Command::Operate { group, id, act, by, reply } => {
                self.asked += 1;
                let question = self.asked;
                self.questions.insert(question, reply);
                self.engine.handle(now, Event::Operator { question, group, id, act, by });
            }
            Command::Status { reply } => {
                let _ = reply.send(self.status(now));
            }
            Command::WhyWaiting { key, reply } => {
                let _ = reply.send(self.why_waiting(now, &key));
            }
            Command::Shutdown { limit, reply } => {
                self.engine.handle(now, Event::Stop);
                for (key, reply) in self.waiting.drain() {
                    let _ = reply.send(Err(AcquireError::Stopping { key }));
                }
                self.ending = Some(Ending { until: Instant::now() + limit, reply });
            }
        }
    }

    fn give_up(&mut self, now: Now, key: Key) {
        self.waiting.remove(&key);
        self.promises.remove(&key);
        self.metrics.unreserved();
        // In this order: else it is a promise for a moment, for which nothing may be in sight, and all are looked through.
        self.engine.handle(now, Event::Unreserve { key: key.clone() });
        self.engine.handle(now, Event::Cancel { key });
    }

    fn lease(&mut self, inner: crate::words::Lease) -> Option<Lease> {
        let group_name = self.engine.config().groups.get(inner.group.0)?.name.clone();
        let losses = self.losses.entry(inner.key.clone()).or_insert_with(|| watch::Sender::new(None));
        let lost = losses.subscribe();
        Some(Lease { inner, group_name, shared: Arc::clone(&self.shared), lost, kept: false })
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
            let told: Vec<Told> = decisions.into_iter().map(|decision| self.note(&decision)).collect();
            let mut actions = self.books.add(self.engine.changes(), told, self.engine.actions());
            actions.extend(self.books.advance().await);
            if actions.is_empty() {
                break;
            }
            for action in actions {
                self.perform(action);
            }
        }
        let now = self.now();
        if self.books.trouble().is_none() {
            self.room.look(&mut self.engine, now);
        }
        self.metrics.observe(&self.engine);
    }

    /// Why no slot can be promised.
    fn reserve(&mut self, now: Now, key: Key) -> Result<(), NoCapacity> {
        match self.books.trouble() {
            Some(why) => Err(NoCapacity::Unwritten { why }),
            None => self.engine.reserve(now, key),
        }
    }

    /// Everything, with what the engine does not know of.
    fn status(&self, now: Now) -> Status {
        let mut status = self.engine.status(now);
        status.held.extend(self.books.trouble());
        status
    }

    fn why_waiting(&self, now: Now, key: &Key) -> Option<Wait> {
        let wait = self.engine.why_waiting(now, key);
        let Some(trouble) = self.books.trouble() else { return wait };
        let nobody = || Wait { for_ms: 0, before: 0, booting: 0, ready_in_ms: None, held: Vec::new() };
        // Who has a slot by the engine's books waits until the ones on disk say so.
        let mut wait = wait.or_else(|| self.waiting.contains_key(key).then(nobody))?;
        wait.held.push(trouble);
        Some(wait)
    }

    /// Counts and logs a decision; what is kept of it.
    fn note(&self, decision: &Decision) -> Told {
        self.metrics.note(&decision.what);
        let groups = &self.engine.config().groups;
        let name = |group: GroupId| groups.get(group.0).map_or_else(String::new, |group| group.name.clone());
        let told = Told::of(decision, name);
        match &decision.what {
            // As fast as the provider allows, or a start: that is no trouble.
            What::Hold { reasons, .. }
                if reasons
                    .iter()
                    .all(|(_, hold)| matches!(hold, Hold::Short | Hold::Throttled | Hold::Unknown { error: None })) =>
            {
                tracing::debug!(decision = told.text, group = told.group, "taskscaler");
            }
            What::CreationFailed { .. }
            | What::UpdateFailed { .. }
            | What::Hold { .. }
            | What::Lost { .. }
            | What::Stuck { .. } => {
                tracing::warn!(decision = told.text, group = told.group, "taskscaler");
            }
            What::Leased { .. } | What::Released { .. } | What::Granted { .. } | What::Running { .. } => {
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
                    self.engine.handle(self.now(), Event::Unused { key });
                    return;
                };
                if let Some(lease) = self.lease(lease) {
                    // Given to nobody, it is dropped, and with that released.
                    let _ = reply.send(Ok(lease));
                }
            }
            Action::Lost { key, cause } => {
                if let Some(told) = self.losses.remove(&key) {
                    told.send_replace(Some(cause));
                }
            }
            Action::Parked { key } => self.parked(&key),
            Action::NotResumed { key, why } => self.not_resumed(&key, why),
            Action::Withdraw { key } => {
                if let Some(withdrawn) = self.promises.remove(&key) {
                    withdrawn.store(true, Ordering::Relaxed);
                    self.shared.room.send_modify(|times| *times += 1);
                }
            }
            Action::Answer { question, answer } => {
                if let Some(reply) = self.questions.remove(&question) {
                    // Who asked may have gone away.
                    let _ = reply.send(answer);
                }
            }
            Action::Forget { group, id } => self.shared.forget(group, &id),
            call => {
                let Some(call) = call::of(&self.engine, &self.shared, &self.prepare, call) else { return };
                self.metrics.called(&call.action);
                let failed = call.failed();
                let task = self.calls.spawn(call.made()).id();
                self.called.insert(task, failed);
            }
        }
    }

    /// Whether the end may come: its time is over, or nothing is left to be done.
    fn is_over(&self) -> bool {
        let Some(ending) = &self.ending else { return false };
        if Instant::now() >= ending.until {
            return true;
        }
        let status = self.engine.status(self.now());
        let going = |instance: &InstanceStatus| instance.state == "deleting" || instance.state == "draining";
        // What was asked for and appears later would be left.
        let to_come = self.engine.config().delete_on_shutdown && status.groups.iter().any(|group| group.coming > 0);
        let written = !self.books.is_at_work();
        written && status.tasks.acquired == 0 && !to_come && !status.instances.iter().any(going)
    }

    async fn end(mut self) {
        self.calls.shutdown().await;
        self.watches.shutdown().await;
        let left = self.engine.status(self.now()).instances;
        let hosts = std::mem::take(&mut *self.shared.hosts.lock().unwrap_or_else(PoisonError::into_inner));
        for host in hosts {
            host.stop().await;
        }
        if let Some(ending) = self.ending.take() {
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
