//! The event loop: one task that owns all state.
//!
//! ```text
//! wait for a command, a timer, a compiled child configuration or the expiry of artifacts
//!   -> read the pipelines that the command needs into memory
//!   -> process the command, and all other waiting commands, in memory   (answers are staged, not sent)
//!   -> assign ready jobs to held job requests
//!   -> write the batch in one transaction
//!   -> send the answers, publish the events, start compiling child configurations
//!   -> remove finished pipelines from memory
//! ```
//! If the write fails, answers that report a change become errors, and assignments and new pipelines are rolled back.
//! The rows stay marked as changed for the next write. No job is assigned until a write succeeds.

use std::sync::Arc;
use std::time::Duration;

use muster_job::invariants::{InvariantMonitor, JobSnapshot};
use muster_job::{JobId, PipelineId};
use muster_runner_api::service::{JobRequestAnswer, ServiceError};
use tokio::sync::{broadcast, mpsc};

use crate::artifacts::ArtifactLocks;
use crate::blobs::Blobs;
use crate::child_compiler::ChildCompiler;
use crate::clock::{Timestamp, engine_time, from_millis, to_millis};
use crate::command::{Command, Reply, ServiceReply};
use crate::error::{CoordinatorError, StoreError};
use crate::expiry::ArtifactExpiry;
use crate::facts::JobKind;
use crate::jwt::Signer;
use crate::keys::Keys;
use crate::long_polls::LongPolls;
use crate::options::Options;
use crate::queue::Queue;
use crate::residency::Residency;
use crate::schedule::{self, Target};
use crate::state::{CoordinatorState, Dirty, RestoredActions};
use crate::store::{Member, Store};
use crate::timers::{Timer, Timers};
use crate::views::Event;

const MAX_BATCH: usize = 128;
/// Delay before a failed write is repeated, unless a command comes first.
const FLUSH_RETRY_DELAY: Duration = Duration::from_secs(1);

pub(crate) struct Actor {
    pub(crate) options: Options,
    pub(crate) state: CoordinatorState,
    pub(crate) queue: Queue,
    pub(crate) long_polls: LongPolls,
    pub(crate) timers: Timers,
    pub(crate) keys: Keys,
    pub(crate) signer: Signer,
    pub(crate) blobs: Arc<dyn Blobs>,
    pub(crate) residency: Residency,
    pub(crate) expiry: ArtifactExpiry,
    pub(crate) children: ChildCompiler,
    pub(crate) staged: Vec<StagedReply>,
    pub(crate) storage_problem: Option<String>,
    store: Arc<dyn Store>,
    pub(crate) events: broadcast::Sender<Event>,
    invariants: InvariantMonitor,
}

type WriteResult<'a> = Result<(), &'a StoreError>;

pub(crate) enum StagedReply {
    /// Function that gets the result of the write, and sends an answer.
    Answer(Box<dyn FnOnce(WriteResult<'_>) + Send>),
    /// A new pipeline, which is canceled if its write fails.
    Pipeline { id: PipelineId, reply: Reply<PipelineId> },
    /// The assignment of a job. If it cannot be delivered, the job returns to the queue.
    Assignment {
        job: JobId,
        /// Number of the assignment.
        assignment: u32,
        answer: JobRequestAnswer,
        reply: ServiceReply<JobRequestAnswer>,
    },
}

/// A change that was not stored, or whose answer was not delivered.
enum LostChange {
    /// The assignment of a job, with its number.
    Assignment(JobId, u32),
    Pipeline(PipelineId),
}

impl Actor {
    /// Creates an actor, and carries out `actions` that the previous process may have left.
    pub(crate) fn new(
        options: Options,
        store: Arc<dyn Store>,
        (state, actions): (CoordinatorState, RestoredActions),
        (keys, signer): (Keys, Signer),
        (blobs, locks): (Arc<dyn Blobs>, ArtifactLocks),
        events: broadcast::Sender<Event>,
    ) -> Self {
        let max_finished = options.limits.finished_in_memory;
        let mut actor = Self {
            residency: Residency::new(Arc::clone(&store), locks.clone(), max_finished),
            expiry: ArtifactExpiry::new(Arc::clone(&store), Arc::clone(&blobs), locks),
            children: ChildCompiler::new(Arc::clone(&blobs)),
            options,
            state,
            queue: Queue::new(),
            long_polls: LongPolls::default(),
            timers: Timers::default(),
            keys,
            signer,
            blobs,
            staged: Vec::new(),
            storage_problem: None,
            store,
            events,
            invariants: InvariantMonitor::default(),
        };
        actor.arm_timers_of_running_jobs();
        for (project, actions) in actions {
            actor.carry_out(project, &actions);
        }
        actor
    }

    /// Runs until the shutdown command, or until all handles are dropped.
    pub(crate) async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        self.expiry.query(self.now());
        self.commit().await;
        loop {
            let next_timer = self.timers.next_due().map(|at| self.options.clock.sleep_until(at));
            // All branches are cancel-safe: nothing is lost if another branch completes first.
            let command = tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => Some(command),
                    None => break,
                },
                (bridge, result) = self.children.next() => {
                    self.on_child_compiled(bridge, result);
                    None
                }
                step = self.expiry.step() => {
                    self.on_artifact_expiry(step);
                    None
                }
                () = sleep(next_timer) => None,
            };
            if self.ingest(command, &mut commands).await {
                break;
            }
            self.commit().await;
        }
        commands.close();
        self.children.stop().await;
        self.expiry.stop().await;
        // Close the long polls before the last batch, so that it assigns no jobs.
        self.close_long_polls();
        self.commit().await;
        if let Err(error) = self.store.close().await {
            tracing::warn!(%error, "failed to close the database; its write-ahead log is replayed at the next start");
        }
    }

    /// Processes at most [`MAX_BATCH`] commands, starting with `first`, and the due timers. Returns whether to stop.
    async fn ingest(&mut self, first: Option<Command>, commands: &mut mpsc::Receiver<Command>) -> bool {
        let (mut next, mut count) = (first, 0);
        while let Some(command) = next.take() {
            if matches!(command, Command::Shutdown) {
                return true;
            }
            match self.load_pipelines_for(&command).await {
                Ok(()) => self.handle(command),
                Err(error) => {
                    tracing::error!(%error, "failed to read the rows that a command needs");
                    command.answer_store_error(&error);
                }
            }
            count += 1;
            if count < MAX_BATCH {
                next = commands.try_recv().ok();
            }
        }
        // Assign jobs before timers answer long polls without a job.
        self.dispatch().await;
        self.shed_long_polls();
        let now = self.now();
        while let Some(timer) = self.timers.pop_due(now) {
            self.on_timer(timer);
        }
        false
    }

    /// Assigns jobs, writes the batch and sends the answers. Repeats this if an answer could not be delivered, or if
    /// the database can be written again.
    async fn commit(&mut self) {
        loop {
            let was_failing = self.storage_problem.is_some();
            self.dispatch().await;
            self.residency.update_open_marks(&mut self.state);
            let written = self.write().await;
            let lost = self.send_replies(written.as_ref().err());
            let all_delivered = lost.is_empty();
            for change in lost {
                self.roll_back(change);
            }
            if let Err(error) = written {
                self.storage_failed(&error);
                self.evict();
                return;
            }
            self.start_child_pipelines().await;
            // Jobs were not assigned while writes failed. After a recovery, the next iteration assigns them.
            let recovered = self.storage_problem.is_none() && was_failing;
            if all_delivered && !recovered {
                self.evict();
                return;
            }
        }
    }

    /// Reads into memory the pipelines that a command needs.
    async fn load_pipelines_for(&mut self, command: &Command) -> Result<(), StoreError> {
        for member in command.members(&self.keys) {
            self.admit(member).await?;
        }
        if let Command::RequestJob { request, .. } = command
            && let Some(job) = self.earlier_assignment(request)
        {
            while let Some(pipeline) = self.missing_upstream(job) {
                self.admit(Member::Pipeline(pipeline)).await?;
            }
        }
        Ok(())
    }

    /// Reads all pipelines that share a root with `member` into memory, unless they are already there.
    pub(crate) async fn admit(&mut self, member: Member) -> Result<(), StoreError> {
        let now = engine_time(self.now());
        for (project, actions) in self.residency.admit(&mut self.state, member, now).await? {
            self.carry_out(project, &actions);
        }
        Ok(())
    }

    /// Removes finished pipelines from memory, with their timers and invariant records.
    fn evict(&mut self) {
        let invariants = &mut self.invariants;
        self.residency.evict(&mut self.state, |state, root| {
            for row in state.hierarchy(root).flat_map(|pipeline| state.jobs_of(pipeline.id)) {
                invariants.forget(row.id);
            }
        });
        let jobs = &self.state.jobs;
        self.timers.prune(jobs.len(), |job| jobs.contains_key(&job));
    }

    async fn write(&mut self) -> Result<(), StoreError> {
        let changes = self.state.changes();
        if changes.is_empty() {
            return Ok(());
        }
        self.store.write(&changes).await?;
        let dirty = self.state.mark_written();
        if self.storage_problem.take().is_some() {
            tracing::info!("database can be written again");
            let _ = self.events.send(Event::StorageProblem(None));
        }
        self.check_invariants(&dirty);
        self.publish(&dirty);
        Ok(())
    }

    fn check_invariants(&mut self, dirty: &Dirty) {
        let written = dirty.jobs.iter().filter_map(|job| self.state.jobs.get(job));
        for row in written.filter(|row| row.kind == JobKind::Script) {
            let snapshot =
                JobSnapshot { status: row.status(), assignment: row.detail.assignment, is_active: row.detail.accepted };
            if let Err(violation) = self.invariants.record(row.id, snapshot) {
                tracing::error!(%violation, "invariant violated (this is a bug, please report it)");
                debug_assert!(false, "{violation}");
            }
        }
    }

    fn publish(&self, dirty: &Dirty) {
        if self.events.receiver_count() == 0 {
            return;
        }
        // Ignore errors of sending: they only mean that the last receiver was dropped meanwhile.
        for pipeline in &dirty.new_pipelines {
            self.publish_pipeline(*pipeline);
        }
        for job in &dirty.jobs {
            if let Some(view) = self.state.job_view(*job) {
                let _ = self.events.send(Event::JobChanged(Arc::new(view)));
            }
        }
        for pipeline in dirty.pipelines.difference(&dirty.new_pipelines) {
            self.publish_pipeline(*pipeline);
        }
    }

    fn publish_pipeline(&self, pipeline: PipelineId) {
        if let Some(row) = self.state.pipelines.get(&pipeline) {
            let summary = crate::views::summary(row, self.storage_problem.as_deref());
            let _ = self.events.send(Event::PipelineChanged(Arc::new(summary)));
        }
    }

    /// Sends the staged answers. Returns the changes to roll back, because they were not stored or not delivered.
    fn send_replies(&mut self, failure: Option<&StoreError>) -> Vec<LostChange> {
        let mut lost = Vec::new();
        for staged in std::mem::take(&mut self.staged) {
            match (staged, failure) {
                (StagedReply::Answer(send), None) => send(Ok(())),
                (StagedReply::Answer(send), Some(error)) => send(Err(error)),
                (StagedReply::Pipeline { id, reply }, None) => {
                    let _ = reply.send(Ok(id));
                }
                (StagedReply::Pipeline { id, reply }, Some(error)) => {
                    let _ = reply.send(Err(error.clone().into()));
                    lost.push(LostChange::Pipeline(id));
                }
                (StagedReply::Assignment { job, assignment, answer, reply }, None) => {
                    if reply.send(Ok(answer)).is_err() {
                        lost.push(LostChange::Assignment(job, assignment));
                    }
                }
                (StagedReply::Assignment { job, assignment, reply, .. }, Some(error)) => {
                    let _ = reply.send(Err(ServiceError::from(error.clone())));
                    lost.push(LostChange::Assignment(job, assignment));
                }
            }
        }
        lost
    }

    fn roll_back(&mut self, lost: LostChange) {
        match lost {
            LostChange::Assignment(job, assignment) => self.requeue(job, assignment),
            LostChange::Pipeline(id) => {
                let target = Target::Pipeline(id);
                if let Err(rejection) = self.apply_event(id, schedule::Event::Cancel { target }) {
                    tracing::debug!(pipeline = %id, %rejection, "pipeline that was not stored has already ended");
                }
            }
        }
    }

    fn storage_failed(&mut self, error: &StoreError) {
        if self.storage_problem.is_none() {
            let directory = self.options.dir.display();
            let text = format!("{error} (`{directory}`); jobs wait until the database can be written again");
            tracing::error!(%error, "failed to write the database; no jobs are assigned until a write succeeds");
            self.storage_problem = Some(text.clone());
            let _ = self.events.send(Event::StorageProblem(Some(text)));
        }
        self.timers.add(self.now() + FLUSH_RETRY_DELAY, Timer::Flush);
    }

    /// Returns the current time in whole milliseconds, the precision of stored times.
    pub(crate) fn now(&self) -> Timestamp {
        from_millis(to_millis(self.options.clock.now()))
    }

    pub(crate) fn reply<T: Send + 'static>(&mut self, reply: Reply<T>, result: Result<T, CoordinatorError>) {
        self.staged.push(StagedReply::Answer(Box::new(move |written| {
            let answer = result.and_then(|value| written.map(|()| value).map_err(|error| error.clone().into()));
            // The caller may have stopped waiting. The command takes effect anyway.
            let _ = reply.send(answer);
        })));
    }

    pub(crate) fn service_reply<T: Send + 'static>(&mut self, reply: ServiceReply<T>, result: Result<T, ServiceError>) {
        self.staged.push(StagedReply::Answer(Box::new(move |written| {
            let answer = result.and_then(|value| written.map(|()| value).map_err(|error| error.clone().into()));
            let _ = reply.send(answer);
        })));
    }

    /// Stages an answer that is sent even if the write fails.
    pub(crate) fn reply_read_only<T: Send + 'static>(&mut self, reply: Reply<T>, result: Result<T, CoordinatorError>) {
        self.staged.push(StagedReply::Answer(Box::new(move |_| {
            let _ = reply.send(result);
        })));
    }
}

/// Waits until the future `until` completes, or indefinitely if it is `None`.
async fn sleep(until: Option<futures::future::BoxFuture<'static, ()>>) {
    match until {
        Some(until) => until.await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
