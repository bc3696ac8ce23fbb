//! The runner manager: requests jobs, leases execution environments, gives each job to an agent, and reports its result.
//!
//! ```text
//! requests (long polls, each with its own idempotency key) --payload--> store (state.log) --> one actor per job:
//!   lease -> lower -> Run at the agent -> copy the agent's log to the coordinator -> report -> close
//! ```
//!
//! - [`lower`] turns a payload into a plan of built-in steps. [`state`] has the states of a job, and [`store`] keeps them in `state.log`.
//! - [`job`] is the actor of one job. [`admission`] decides which runner may request jobs, and when. [`requests`] sends the requests.
//! - [`running`] limits the number of running jobs. [`failure`] turns outcomes into updates. [`observe`] records metrics, logs and spans.
//! - [`reload`] detects changes of `config.toml`. [`rotation`] renews tokens.
//!
//! The invariants J1 to J6 and the rules R1 to R6 are those of `docs/spec/life-of-a-job.md`.

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
