//! Steps of the custom executor. A driver, which consists of the operator's programs, runs generated scripts in an environment that only the
//! driver can reach (docs/spec/job-execution.md, section 6).
//!
//! ```text
//! driver/prepare: config_exec --> directories, shell, variables --> prepare_exec
//! driver/stage:   inputs of a built-in step --script--> file --> run_exec <file> <stage>
//! driver/cleanup: cleanup_exec, even if an earlier program failed or was stopped
//! ```
//!
//! The agent on the driver's machine runs these steps. No agent runs in the environment, where the scripts call `gitlab-runner` for caches
//! and artifacts. Each program has its own process group. A stop ends the program of the stage, but not the processes of the preparation.

mod cleanup;
mod leftovers;
mod output;
mod prepare;
mod program;
mod script;
mod session;
mod stage;
