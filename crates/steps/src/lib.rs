//! Step files, expressions, the engine that executes a job's steps, and the processes that steps start.
//!
//! [`process::Processes`] terminates every process of a job (invariant J5). The output of steps is written only to
//! [`log::Log`] (invariant J6).

pub mod builtin;
pub mod bundled;
pub mod definition;
mod disk;
pub mod engine;
pub mod expression;
pub mod failure;
mod lines;
pub mod lock;
pub mod log;
pub mod process;
pub mod remote;
pub mod shell;
pub mod stop;
pub mod style;
mod value;
mod yaml;
