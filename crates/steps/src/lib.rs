//! Step files, references and expressions, the engine that executes a tree of steps under their policies, and the processes that
//! steps start.
//!
//! Invariants (J5 and J6 are those of ARCHITECTURE.md): [`process::Processes`] knows all processes of a job and terminates every one of
//! them (J5). The output of steps is written only to [`log::Log`] (J6).

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
