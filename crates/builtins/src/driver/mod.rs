//! Steps of the custom executor: a driver, which consists of the operator's programs, runs generated scripts in an environment that only the
//! driver knows (docs/spec/job-execution.md, section 6).
//!
//! ```text
//! driver/prepare: config_exec --> directories, shell, variables --> prepare_exec
//! driver/stage:   inputs of a built-in step --script--> file --> run_exec <file> <stage>
//! driver/cleanup: cleanup_exec, even if an earlier program failed or was stopped
//! ```
//!
//! The agent beside the driver runs these steps. No agent runs in the environment: there, the scripts call `gitlab-runner` for caches and
//! artifacts. Each program has its own process group. A stop ends the program of the stage, but not what the preparation has started.

mod cleanup;
mod leftovers;
mod prepare;
mod program;
mod script;
mod session;
mod stage;
