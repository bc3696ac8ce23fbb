//! The domain's words as types, shared by every room: ids, states and their legal moves, variables, reasons,
//! and what a trace must not show ([`mask`]).
//!
//! No I/O and no async here, and no wire formats: `runner-api` and `agent-api` convert at their edge.
//!
//! Invariants: an illegal move of a state is a typed refusal, never a silent change; a [`Secret`] never prints its value.

mod expand;
mod failure;
mod go_duration;
mod id;
pub mod invariants;
pub mod mask;
mod short_token;
mod status;
mod variable;

pub use expand::{expand, expand_within};
pub use failure::{EndCause, FailureReason};
pub use go_duration::{GoDuration, go_duration};
pub use id::{Attempt, JobId, PipelineId, ProjectId, RunnerId};
pub use short_token::short_token;
pub use status::{IllegalMove, JobEvent, JobStatus};
pub use variable::{Secret, Variable};
