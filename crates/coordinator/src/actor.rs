//! The event loop: one task that owns all state.
//!
//! ```text
//! wait for a command, a timer or a child configuration
//!   -> read into memory what it is about, if that has left it
//!   -> take it in, and whatever else is there, into memory   (answers are staged, not sent)
//!   -> give ready jobs to held requests
//!   -> write the batch in one transaction
//!   -> send the answers, publish the events, start what was asked of the outside
//!   -> remove what is finished from memory
//! ```
//! Where the write fails, answers that change something become errors, hand-outs are taken back, and the rows stay marked:
//! memory is then ahead of the database, nobody was told, and the next write carries them. No job is given out meanwhile.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use muster_job::invariants::{InvariantMonitor, JobSnapshot};
use muster_job::{JobId, PipelineId};
use muster_runner_api::service::{JobRequestAnswer, ServiceError};
use tokio::sync::{broadcast, mpsc};
use tokio::task::JoinSet;

use crate::artifacts::Places;
use crate::blobs::Blobs;
use crate::child::ChildResult;
use crate::clock::{Timestamp, engine_time, from_millis, to_millis};
use crate::command::{Command, Reply, ServiceReply};
use crate::error::{CoordinatorError, StoreError};
use crate::expiry::Expiry;
use crate::facts::JobKind;
use crate::jwt::Signer;
use crate::keys::Keys;
use crate::options::Options;
use crate::queue::Queue;
use crate::residency::Residency;
use crate::schedule::{self, Target};
use crate::store::{Member, Store};
use crate::timers::{Timer, Timers};
use crate::views::Event;
use crate::world::{Dirty, Repeated, World};

/// How many commands one transaction may carry.
const BATCH_MAX: usize = 128;
/// How long after a failed write the next is tried, if no command comes before.
const FLUSH_AGAIN: Duration = Duration::from_secs(1);

/// The task's state.
pub(crate) struct Actor {
    pub(crate) options: Options,
    pub(crate) world: World,
    pub(crate) queue: Queue,
    pub(crate) timers: Timers,
    pub(crate) keys: Keys,
    pub(crate) signer: Signer,
    pub(crate) blobs: Arc<dyn Blobs>,
    pub(crate) residency: Residency,
    pub(crate) expiry: Expiry,
    pub(crate) staged: Vec<Staged>,
    /// Bridges whose child is to be made, once the batch is written.
    pub(crate) bridges: Vec<JobId>,
    /// Bridges of an earlier process that wait for the files of their pipeline.
    pub(crate) sourceless: BTreeSet<JobId>,
    /// Configurations of children that are being compiled.
    pub(crate) children: JoinSet<(JobId, ChildResult)>,
    /// Why the database cannot be written.
    pub(crate) storage_problem: Option<String>,
    store: Arc<dyn Store>,
    events: broadcast::Sender<Event>,
    watch: InvariantMonitor,
}

/// What became of the write that an answer waited for.
type Written<'a> = Result<(), &'a StoreError>;

/// An answer that waits for the write.
pub(crate) enum Staged {
    /// Sends its answer, or the error of the write.
    Answer(Box<dyn FnOnce(Written<'_>) + Send>),
    /// A new pipeline. Who is told that there is none must not have its jobs run later.
    Pipeline {
        /// Its id.
        id: PipelineId,
        /// Who asked for it.
        reply: Reply<PipelineId>,
    },
    /// A job for a manager. If it cannot be delivered the job goes back to the queue.
    Handout {
        /// The job.
        job: JobId,
        /// The number of the hand-out.
        handout: u32,
        /// Its payload.
        assignment: JobRequestAnswer,
        /// The manager.
        reply: ServiceReply<JobRequestAnswer>,
    },
}

/// An answer that reached nobody, or said no.
enum Undelivered {
    /// The hand-out of a job, by its number.
    Handout(JobId, u32),
    /// A pipeline whose creation was refused.
    Pipeline(PipelineId),
}

impl Actor {
    /// An actor with its state; `actions` are those that may not have reached the outside before the last end.
    pub(crate) fn new(
        options: Options,
        store: Arc<dyn Store>,
        (world, actions): (World, Repeated),
        (keys, signer): (Keys, Signer),
        (blobs, places): (Arc<dyn Blobs>, Places),
        events: broadcast::Sender<Event>,
    ) -> Self {
        let kept = options.limits.finished_in_memory;
        let mut actor = Self {
            residency: Residency::new(Arc::clone(&store), places.clone(), kept),
            expiry: Expiry::new(Arc::clone(&store), Arc::clone(&blobs), places),
            options,
            world,
            queue: Queue::new(),
            timers: Timers::default(),
            keys,
            signer,
            blobs,
            staged: Vec::new(),
            bridges: Vec::new(),
            sourceless: BTreeSet::new(),
            children: JoinSet::new(),
            storage_problem: None,
            store,
            events,
            watch: InvariantMonitor::default(),
        };
        actor.watch_jobs_on_runners();
        for (project, actions) in actions {
            actor.carry_out(project, &actions);
        }
        actor
    }

    /// Runs until it is told to stop or every handle is gone.
    pub(crate) async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        self.expiry.look(self.now());
        self.settle().await;
        loop {
            let wake = self.timers.next().map(|at| self.options.clock.sleep_until(at));
            // All four may be dropped half-way: a command stays in its channel, a child in its set, a timer in its heap.
            let command = tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => Some(command),
                    None => break,
                },
                Some(child) = self.children.join_next() => {
                    self.child_compiled(child);
                    None
                }
                step = self.expiry.step() => {
                    self.expiry_step(step);
                    None
                }
                () = sleep(wake) => None,
            };
            if self.take_in(command, &mut commands).await {
                break;
            }
            self.settle().await;
        }
        commands.close();
        self.children.shutdown().await;
        self.expiry.stop().await;
        // Before the last batch: a job that were given out now would have nobody to report to.
        self.send_held_away();
        self.settle().await;
        if let Err(error) = self.store.close().await {
            tracing::warn!(%error, "the database was not closed in order; its log is replayed at the next start");
        }
    }

    /// Takes in a command with all that wait behind it, and the timers that are due. True: stop.
    async fn take_in(&mut self, first: Option<Command>, commands: &mut mpsc::Receiver<Command>) -> bool {
        let (mut next, mut taken) = (first, 0);
        while let Some(command) = next.take() {
            if matches!(command, Command::Shutdown) {
                return true;
            }
            match self.bring_in(&command).await {
                Ok(()) => self.handle(command),
                Err(error) => {
                    tracing::error!(%error, "failed to read what a command is about");
                    command.refuse(&error);
                }
            }
            taken += 1;
            if taken < BATCH_MAX {
                next = commands.try_recv().ok();
            }
        }
        // What fits now is given out before a long poll that is over is sent away with nothing.
        self.dispatch().await;
        self.bound_held();
        let now = self.now();
        while let Some(timer) = self.timers.pop_due(now) {
            self.fire(timer);
        }
        false
    }

    /// Gives out jobs, writes, answers; again until nothing is left to do.
    async fn settle(&mut self) {
        loop {
            let failing = self.storage_problem.is_some();
            self.dispatch().await;
            self.residency.note_open(&mut self.world);
            let written = self.write().await;
            let undelivered = self.answer(written.as_ref().err());
            let settled = undelivered.is_empty();
            for undo in undelivered {
                self.undo(undo);
            }
            if let Err(error) = written {
                self.storage_failed(&error);
                self.evict();
                return;
            }
            self.start_bridges().await;
            // After a failure nothing was given out; now it is.
            let recovered = self.storage_problem.is_none() && failing;
            if settled && !recovered {
                self.evict();
                return;
            }
        }
    }

    /// Reads into memory what a command is about.
    async fn bring_in(&mut self, command: &Command) -> Result<(), StoreError> {
        for member in command.members(&self.keys) {
            self.admit(member).await?;
        }
        if let Command::RequestJob { request, .. } = command
            && let Some(job) = self.assigned_before(request)
        {
            while let Some(pipeline) = self.lacks(job) {
                self.admit(Member::Pipeline(pipeline)).await?;
            }
        }
        Ok(())
    }

    /// Reads a family into memory, unless it is there.
    pub(crate) async fn admit(&mut self, member: Member) -> Result<(), StoreError> {
        let now = engine_time(self.now());
        for (project, actions) in self.residency.admit(&mut self.world, member, now).await? {
            self.carry_out(project, &actions);
        }
        Ok(())
    }

    /// Removes from memory what is finished, with all that is kept about it.
    fn evict(&mut self) {
        let watch = &mut self.watch;
        self.residency.evict(&mut self.world, |world, root| {
            for row in world.family(root).flat_map(|pipeline| world.jobs_of(pipeline.id)) {
                watch.forget(row.id);
            }
        });
        let jobs = &self.world.jobs;
        self.timers.prune(jobs.len(), |job| jobs.contains_key(&job));
    }

    /// Writes what is marked, and publishes it.
    async fn write(&mut self) -> Result<(), StoreError> {
        let changes = self.world.changes();
        if changes.is_empty() {
            return Ok(());
        }
        self.store.write(&changes).await?;
        let dirty = std::mem::take(&mut self.world.dirty);
        if self.storage_problem.take().is_some() {
            tracing::info!("the database can be written again");
            let _ = self.events.send(Event::StorageProblem(None));
        }
        self.check(&dirty);
        self.publish(&dirty);
        Ok(())
    }

    /// Looks whether what was written keeps the invariants.
    fn check(&mut self, dirty: &Dirty) {
        let written = dirty.jobs.iter().filter_map(|job| self.world.jobs.get(job));
        for row in written.filter(|row| row.kind == JobKind::Script) {
            let standing =
                JobSnapshot { status: row.status(), assignment: row.detail.handout, alive: row.detail.alive };
            if let Err(violation) = self.watch.note(row.id, standing) {
                tracing::error!(%violation, "this is a defect of the coordinator");
                debug_assert!(false, "{violation}");
            }
        }
    }

    fn publish(&self, dirty: &Dirty) {
        if self.events.receiver_count() == 0 {
            return;
        }
        // Sending fails only where the last receiver has just gone.
        for pipeline in &dirty.new_pipelines {
            self.publish_pipeline(*pipeline);
        }
        for job in &dirty.jobs {
            if let Some(view) = self.world.job_view(*job) {
                let _ = self.events.send(Event::JobChanged(Arc::new(view)));
            }
        }
        for pipeline in dirty.pipelines.difference(&dirty.new_pipelines) {
            self.publish_pipeline(*pipeline);
        }
    }

    fn publish_pipeline(&self, pipeline: PipelineId) {
        if let Some(row) = self.world.pipelines.get(&pipeline) {
            let summary = crate::views::summary(row, self.storage_problem.as_deref());
            let _ = self.events.send(Event::PipelineChanged(Arc::new(summary)));
        }
    }

    /// Sends the staged answers. Returned is what reached nobody.
    fn answer(&mut self, failure: Option<&StoreError>) -> Vec<Undelivered> {
        let mut undelivered = Vec::new();
        for staged in std::mem::take(&mut self.staged) {
            match (staged, failure) {
                (Staged::Answer(send), None) => send(Ok(())),
                (Staged::Answer(send), Some(error)) => send(Err(error)),
                (Staged::Pipeline { id, reply }, None) => {
                    let _ = reply.send(Ok(id));
                }
                (Staged::Pipeline { id, reply }, Some(error)) => {
                    let _ = reply.send(Err(error.clone().into()));
                    undelivered.push(Undelivered::Pipeline(id));
                }
                (Staged::Handout { job, handout, assignment, reply }, None) => {
                    if reply.send(Ok(assignment)).is_err() {
                        undelivered.push(Undelivered::Handout(job, handout));
                    }
                }
                (Staged::Handout { job, handout, reply, .. }, Some(error)) => {
                    let _ = reply.send(Err(ServiceError::from(error.clone())));
                    undelivered.push(Undelivered::Handout(job, handout));
                }
            }
        }
        undelivered
    }

    fn undo(&mut self, undelivered: Undelivered) {
        match undelivered {
            Undelivered::Handout(job, handout) => self.give_back(job, handout),
            Undelivered::Pipeline(id) => {
                let target = Target::Pipeline(id);
                if let Err(refusal) = self.event(id, schedule::Event::Cancel { target }) {
                    tracing::debug!(pipeline = %id, %refusal, "a pipeline that could not be stored has ended");
                }
            }
        }
    }

    fn storage_failed(&mut self, error: &StoreError) {
        if self.storage_problem.is_none() {
            let text = format!("{error} (`{}`): jobs wait until it can be written again", self.options.dir.display());
            tracing::error!(%error, "the database cannot be written");
            self.storage_problem = Some(text.clone());
            let _ = self.events.send(Event::StorageProblem(Some(text)));
        }
        self.timers.add(self.now() + FLUSH_AGAIN, Timer::Flush);
    }

    /// The time, in the steps in which it is stored.
    pub(crate) fn now(&self) -> Timestamp {
        from_millis(to_millis(self.options.clock.now()))
    }

    /// Stages the answer of a library call.
    pub(crate) fn reply<T: Send + 'static>(&mut self, reply: Reply<T>, result: Result<T, CoordinatorError>) {
        self.staged.push(Staged::Answer(Box::new(move |written| {
            let answer = result.and_then(|value| written.map(|()| value).map_err(|error| error.clone().into()));
            // Who asked may be gone; what they asked for is done all the same.
            let _ = reply.send(answer);
        })));
    }

    /// Stages the answer to a manager.
    pub(crate) fn service_reply<T: Send + 'static>(&mut self, reply: ServiceReply<T>, result: Result<T, ServiceError>) {
        self.staged.push(Staged::Answer(Box::new(move |written| {
            let answer = result.and_then(|value| written.map(|()| value).map_err(|error| error.clone().into()));
            let _ = reply.send(answer);
        })));
    }

    /// Stages the answer of a call that only reads: it needs no write.
    pub(crate) fn reply_read<T: Send + 'static>(&mut self, reply: Reply<T>, result: Result<T, CoordinatorError>) {
        self.staged.push(Staged::Answer(Box::new(move |_| {
            let _ = reply.send(result);
        })));
    }
}

/// Sleeps, or for ever where there is nothing to wait for.
async fn sleep(until: Option<futures::future::BoxFuture<'static, ()>>) {
    match until {
        Some(until) => until.await,
        None => std::future::pending().await,
    }
}
