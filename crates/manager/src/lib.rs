//! The manager: requests jobs, leases environments, hands each job to an agent, and reports what came of it.
//!
//! ```text
//! requests (long polls, one lane each) --payload--> store (state.log) --> one actor per job:
//!   lower -> lease -> Run at the agent -> copy the agent's log to the coordinator -> report -> close
//! ```
//!
//! - [`lower`] is pure: payload in, plan of built-in steps out.
//! - [`state`] has the states of a job and their moves, [`store`] keeps them: recovery is the normal start path.
//! - [`job`] is the actor of one job; [`admission`] says who may ask for jobs, and when, [`requests`] does it;
//!   [`running`] bounds the jobs that run; [`failure`] says how an end is reported; [`observe`] tells metrics, logs and spans
//!   of it.
//! - [`reload`] notices changes of `config.toml`; [`rotation`] renews tokens. What the file says is `muster_config`'s.
//!
//! Invariants (life-of-a-job): J1 each job taken is reported, or found gone; J2 a job that an agent accepted is never
//! handed to an agent again; J3 the trace is the agent's log byte for byte, once; J4 never more jobs run than `concurrent`.

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

pub use admission::RunnerFigures;
pub use manager::{Control, Figures, Manager, ManagerError, Order, Quota};
pub use observe::labels;
pub use requests::info;
