//! `muster fleet`: inspect and operate autoscaled instances, and simulate scaling policies.

use std::process::ExitCode;

use clap::Subcommand;
use muster_taskscaler::operator::OperatorAction;

use crate::ci::{self, ui};

mod explain;
mod operate;
pub(crate) mod query;
mod simulate;
mod status;
mod svg;

/// Inspect and operate autoscaled instances, and simulate scaling policies.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show the status of the fleet: groups, instances, slots and waiting jobs.
    ///
    /// Queries the manager at the `listen_address` of its configuration. If it does not answer, shows its state on disk.
    Status(Box<status::StatusArgs>),
    /// Explain why a job waits, or why an instance was created, kept or deleted.
    ///
    /// Prints a summary, then the related scaling decisions of the last day.
    Explain(Box<explain::ExplainArgs>),
    /// Cordon an instance: it keeps its running jobs and gets no new ones.
    ///
    /// The instance is kept until you run `uncordon` or `delete`, so that you can inspect it. The state survives manager
    /// restarts. Requires a running manager; run the command as root or as the manager's user.
    Cordon(Box<operate::OperateArgs>),
    /// Revert `cordon`, or a `drain` that still waits for jobs.
    ///
    /// The instance, or each instance of the group, gets jobs again once it is ready.
    #[command(mut_arg("name", operate::group_or_instance))]
    Uncordon(Box<operate::OperateArgs>),
    /// Drain an instance or a group: no new jobs, and deletion after the last running job.
    ///
    /// A drained group also creates no instances until you run `uncordon` on it. Its cordoned instances are kept.
    #[command(mut_arg("name", operate::group_or_instance))]
    Drain(Box<operate::OperateArgs>),
    /// Delete an instance immediately, including one that this manager did not create.
    Delete(Box<operate::DeleteArgs>),
    /// Simulate scaling policies on recorded or generated jobs, and compare waiting times and cost.
    ///
    /// Runs the engine that scales real fleets, but with a simulated cloud. Policy files are in TOML and have the keys of
    /// `[runners.autoscaler]`. Several policies are compared side by side, on the same jobs.
    Simulate(Box<simulate::SimulateArgs>),
}

pub(crate) fn run(command: Command) -> ExitCode {
    match command {
        Command::Status(args) => run_query(status::run(*args)),
        Command::Explain(args) => run_query(explain::run(*args)),
        Command::Cordon(args) => run_query(operate::run(*args, OperatorAction::Cordon)),
        Command::Uncordon(args) => run_query(operate::run(*args, OperatorAction::Uncordon)),
        Command::Drain(args) => run_query(operate::run(*args, OperatorAction::Drain)),
        Command::Delete(args) => run_query(operate::delete(*args)),
        Command::Simulate(args) => simulate::run(&args),
    }
}

fn run_query(work: impl Future<Output = ExitCode>) -> ExitCode {
    crate::logging::init_command("warn");
    crate::runtime::block_on_one_thread(work)
}

fn print_json(answer: &impl serde::Serialize) -> ExitCode {
    ci::print(ui::json(answer).as_bytes())
}
