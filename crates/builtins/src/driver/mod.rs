//! Steps of the custom executor. A driver, which is a set of the operator's programs, runs generated scripts in its
//! environment (docs/spec/job-execution.md, section 6).
//!
//! ```text
//! driver/prepare: config_exec --> directories, shell, variables --> prepare_exec
//! driver/stage:   inputs of a built-in step --script--> file --> run_exec <file> <stage>
//! driver/cleanup: cleanup_exec, even if an earlier program failed or was stopped
//! ```
//!
//! The agent runs on the driver's machine. Each program has its own process group, so a stopped stage does not end
//! processes of the preparation.

mod cleanup;
mod leftovers;
mod output;
mod prepare;
mod program;
mod script;
mod session;
mod stage;
