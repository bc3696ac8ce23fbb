//! The conformance kit: tests a plugin, written in any language, with settings for this plugin.
//! See docs/spec/fleeting.md, section 9.
//!
//! ```text
//! Plan (command, settings, timeouts) --run--> processes of the plugin, one after the other --> Report: a verdict per case
//! ```
//!
//! The kit is a strict host: it starts the plugin, creates, uses and deletes instances, and checks each response. It
//! always requests the deletion of the instances that it created, also after failed cases.

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
