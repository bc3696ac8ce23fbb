//! The conformance kit: tests a plugin in any language with its own settings.
//! See docs/spec/fleeting.md, section 9.
//!
//! ```text
//! Plan (command, settings, timeouts) --run--> processes of the plugin, one after the other --> Report: a verdict per case
//! ```
//!
//! The kit is a strict host. It starts the plugin in the ways that hosts do, creates a few instances, connects to them, deletes them, and
//! checks each response. It always requests the deletion of the instances that it created, also after failed cases. For each case, the tests of
//! this crate run a plugin with a fault: the case fails, or warns if hosts tolerate the fault.
//!
//! - `cases` has the IDs and titles, `plugin_process` runs the plugin, `tracker` checks snapshots without I/O.
//! - `start`, `init`, `lifecycle`, `connections`, `removal` and `exit` have the cases, by topic.

mod cases;
mod connections;
mod exit;
mod init;
mod lifecycle;
mod plan;
mod plugin_process;
mod removal;
mod report;
mod start;
mod tracker;
mod verdict;

pub use cases::{CASES, Case};
pub use plan::{Connect, Plan};
pub use report::Report;
pub use verdict::{Outcome, Verdict};

use verdict::Run;

/// Runs all cases and calls `on_verdict` with each verdict.
pub async fn run(plan: &Plan, on_verdict: &mut (dyn FnMut(&Verdict) + Send)) -> Report {
    let mut run = Run::new(plan, on_verdict);
    let setup_cases = async {
        start::run(&mut run).await;
        init::run(&mut run).await;
    };
    plan.stop.run_until_cancelled(setup_cases).await;
    if !plan.stop.is_cancelled() {
        lifecycle::run(&mut run).await;
    }
    if !plan.stop.is_cancelled() {
        plan.stop.run_until_cancelled(exit::run(&mut run)).await;
    }
    run.finish()
}
