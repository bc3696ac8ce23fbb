//! The runner manager: requests jobs, leases execution environments, gives each job to an agent, and reports its result.
//!
//! ```text
//! requests (long polls, one lane each) --payload--> store (state.log) --> one actor per job:
//!   lease -> lower -> Run at the agent -> copy the agent's log to the coordinator -> report -> close
//! ```
//!
//! - [`lower`] is pure: it turns a payload into a plan of built-in steps.
//! - [`state`] has the states of a job and their transitions. [`store`] stores them in `state.log`. Recovery is the normal start path.
//! - [`job`] is the actor of one job. [`admission`] decides which runner may request jobs, and when. [`requests`] sends the requests.
//!   [`running`] limits the number of running jobs. [`failure`] turns outcomes into updates. [`observe`] records metrics, logs and spans.
//! - [`reload`] detects changes of `config.toml`. [`rotation`] renews tokens. The crate `muster_config` reads the file.
//!
//! The numbers of invariants (J1 to J6) and rules (R1 to R6) in this crate are the numbers in `docs/spec/life-of-a-job.md`. For the manager
//! they mean: J1 each job that was received is reported, unless the coordinator no longer expects it; J2 a job whose first user command
//! may have started is never given to another agent; J3 the trace is the agent's log byte for byte, once; J4 no job starts while
//! `concurrent` jobs are running, or `limit` jobs of its runner; J5 no lease of a job remains after its clean-up; J6 no message of the
//! manager contains a secret.

mod admission;
mod client;
pub mod clock;
mod failure;
mod job;
pub mod lower;
mod manager;
mod observe;
pub mod reload;
mod requests;
pub mod rotation;
mod running;
pub mod state;
pub mod store;

pub use admission::RunnerStats;
pub use manager::{Control, ControlCommand, Manager, ManagerError, ManagerStats, RunLimits};
pub use observe::labels;
pub use requests::info;
