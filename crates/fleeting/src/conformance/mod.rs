//! The conformance kit: tests any plugin, in any language, with its own settings (fleeting.md 9).
//!
//! ```text
//! Plan (command, settings, limits) --run--> processes of the plugin, one after the other --> Report: a verdict per case
//! ```
//!
//! The kit is a host that looks closely: it starts the plugin in the ways hosts do, makes a few instances, reaches them,
//! removes them, and checks each answer. Whatever happens, it asks the plugin to remove what it made. It must tell where a
//! plugin is broken: each case has a plugin in the tests that it fails for, or warns of where hosts can live with that.
//!
//! - `cases`: their names; `subject`: a process; `book`: what snapshots may say, without I/O;
//! - `start`, `init`, `life`, `reach`, `end`: the cases by what they are about.

mod book;
mod cases;
mod end;
mod init;
mod life;
mod plan;
mod reach;
mod removal;
mod report;
mod start;
mod subject;
mod verdict;

pub use cases::{CASES, Case};
pub use plan::{Connect, Plan};
pub use report::Report;
pub use verdict::{Outcome, Verdict};

use verdict::Run;

/// Runs all cases; `tell` hears of each as it is done.
pub async fn run(plan: &Plan, tell: &mut (dyn FnMut(&Verdict) + Send)) -> Report {
    let mut run = Run::new(plan, tell);
    let before = async {
        start::run(&mut run).await;
        init::run(&mut run).await;
    };
    plan.stop.run_until_cancelled(before).await;
    if !plan.stop.is_cancelled() {
        life::run(&mut run).await;
    }
    if !plan.stop.is_cancelled() {
        plan.stop.run_until_cancelled(end::run(&mut run)).await;
    }
    run.finish()
}
