//! The state machine of pipelines: decides which job starts when, as a pure function of events.
//!
//! The engine implements docs/spec/pipeline-yaml.md, section 5, without I/O, clock or async code. The coordinator's
//! event loop passes [`Event`]s to [`Engine::apply`] and carries out the returned [`Action`]s:
//!
//! ```text
//!  compiled pipeline --Graph::new--> PipelineCreated --+
//!  runner API ---- JobAssigned, JobFinished, ... ------+--> Engine --> Action: JobStatusChanged, CreateRetry,
//!  users --------- Play, Cancel, RetryJob -------------+              PipelineStatusChanged      (to the store)
//!  timers -------- TimerFired -------------------------+              Enqueue, CancelOnRunner,
//!                                                                     StartTimer, CreateChild    (to the outside)
//! ```
//!
//! Usage
//! - Create one engine per project, and apply one event at a time. A [`JobRef`] identifies one record of a job. The
//!   caller maps each record to a `JobId`; a retry is a new record with a new ID.
//! - Store all actions of one event in one transaction, with [`Engine::job`] for each job that an action names, before any action
//!   is carried out outside the store and before the event is acknowledged. Of a record that [`Action::CreateRetry`] replaces, only
//!   the last status is needed.
//! - After a restart, [`Engine::restore`] repeats actions that may not have been carried out. Carrying out an action
//!   must therefore be idempotent.
//! - A repeated or late event is rejected ([`RejectedEvent`]) and changes nothing.
//!
//! Invariants
//! - No job waits indefinitely: if no job is pending, running, scheduled or waiting for a child, every job is complete or manual, or
//!   waits for a blocking manual job.
//! - A job becomes pending once per record, and once more each time it is requeued.
//! - The same events lead to the same actions, on any machine, before and after a restart.
//! - The end of a job takes time in proportion to the jobs that it makes ready. A whole pipeline takes time linear in jobs, needs and
//!   stages.

mod cancel;
mod children;
mod composite;
mod engine;
mod event;
mod finish;
mod graph;
mod groups;
mod path;
mod pipelines;
mod propagate;
mod restore;
mod retry;
mod select;
mod state;

pub use engine::Engine;
pub use event::{
    Action, Child, Event, JobRef, JobState, Outcome, PipelineOptions, RejectedEvent, ResourceMode, Target,
};
pub use graph::{Graph, GraphError};
pub use path::{RunInterval, critical_path, priority};
pub use restore::{RestoreError, StoredPipeline};
pub use select::{UnknownJob, select};
