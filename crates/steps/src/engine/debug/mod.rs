//! Debugger of a job: pauses the engine before and after steps, shows the paused step, and runs commands in its environment.
//!
//! ```text
//! client --breakpoints, resume--> Debugger <--pause, next event-- engine, in the task of the job
//!        <--------states---------          --commands, resume--->
//! ```
//!
//! The task of the job waits at a breakpoint and runs the commands, so a cancel or a timeout ends the pause and the
//! command. The time of a pause does not count toward timeouts. A pause ends if no debugger is attached for
//! [`DebugOptions::attach_timeout_ms`](muster_agent_api::development::DebugOptions::attach_timeout_ms).

mod command;
mod pause;
mod state;

pub(super) use command::{CommandContext, run_command};
pub use command::{CommandEvent, CommandOutput};
pub(super) use pause::{PauseEvent, PausePoint, Verdict};
pub(super) use state::StepState;
pub use state::{Attached, DebugError, Debugger, PauseInfo, Resume, Snapshot};
