//! Decides which job's turn it is: the state machine of pipelines (pipeline-yaml 5), as a pure function of events.
//!
//! No I/O, no clock, no async. The shell (the coordinator's event loop) feeds [`Event`]s with the time into
//! [`Engine::apply`] and carries out the [`Action`]s it gets back:
//!
//! ```text
//!  compiled pipeline --Graph::new--> PipelineCreated --+
//!  runner API ---- JobTaken, JobFinished, JobGivenBack-+--> Engine --> Action: JobStatusChanged, CreateRetry,
//!  people -------- Play, Cancel, RetryJob -------------+              PipelineStatusChanged      (to the store)
//!  timers -------- TimerFired -------------------------+              Enqueue, CancelOnRunner,
//!                                                                     StartTimer, CreateChild    (to the outside)
//! ```
//!
//! How to drive it
//! - One engine per project, one event at a time. A job is named by [`JobRef`]: pipeline, place in the compiled list,
//!   number of the record. The shell keeps which `JobId` that is; a retry is a new record with a new id.
//! - Store all actions of one event in one transaction, with [`Engine::job`] for each job that an action names, before
//!   anything goes to the outside or the event is acknowledged. The record that a [`Action::CreateRetry`] replaces
//!   needs no more than its last status.
//! - After a restart, [`Engine::restore`] makes the same engine from the rows and repeats what may not have reached the
//!   outside. So actions to the outside can come twice, and carrying them out must be idempotent.
//! - A repeated or late event is refused ([`Refusal`]) and changes nothing.
//!
//! Invariants
//! - No job is stuck: when nothing is pending, running, waiting for a child or scheduled, every job is complete or manual,
//!   or waits for a blocking manual job.
//! - A job becomes pending once per record (and once more each time it is given back).
//! - The same events give the same actions, on any machine, before and after a restart.
//! - The end of a job costs time in proportion to what it wakes; a whole pipeline is linear in jobs, needs and stages.

mod cancel;
mod children;
mod composite;
mod engine;
mod event;
mod finish;
mod graph;
mod groups;
mod path;
mod restore;
mod retry;
mod select;
mod settle;
mod state;

pub use engine::Engine;
pub use event::{Action, Child, Event, JobRef, JobState, Outcome, PipelineOptions, Refusal, ResourceMode, Target};
pub use graph::{Graph, GraphError};
pub use path::{Span, critical_path, priority};
pub use restore::{RestoreError, StoredPipeline};
pub use select::{UnknownJob, select};
