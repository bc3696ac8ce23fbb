//! Domain types that most crates share.
//!
//! The crate does no I/O and has no async code. Some messages of `runner-api` and `agent-api` contain its types in their serde format.

mod duration;
mod error_chain;
mod expand;
mod export_kind;
mod failure;
mod go_platform;
mod id;
mod identifier;
pub mod invariants;
mod loopback;
pub mod mask;
mod path;
mod report;
mod short_token;
mod status;
mod step_policy;
mod step_reference;
mod url;
mod variable;

pub use duration::{GoDuration, go_duration, milliseconds};
pub use error_chain::error_chain;
pub use expand::{expand, expand_within};
pub use export_kind::ExportKind;
pub use failure::{FailureReason, TerminationCause};
pub use go_platform::{go_architecture, go_architecture_of, go_os};
pub use id::{Attempt, JobId, PipelineId, ProjectId, RunnerId};
pub use identifier::is_identifier;
pub use loopback::is_loopback;
pub use path::is_below;
pub use report::report_format;
pub use short_token::short_token;
pub use status::{InvalidTransition, JobEvent, JobStatus};
pub use step_policy::{PolicyRule, PolicyViolation, StepLimits, StepPolicy, matches_pattern};
pub use step_reference::{REPLACEABLE_BUILTINS, StepReference};
pub use url::{without_user_info, without_user_info_and_query};
pub use variable::{Secret, Variable};
