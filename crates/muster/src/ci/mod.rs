//! `muster ci`: runs a repository's pipeline locally, and shows pipelines and past runs.
//!
//! ```text
//! arguments, ci.toml, git --prepare--> snapshot + context --pipeline::compile--> list, graph, lint, explain
//!                                                                    \--run--> coordinator + manager --> show, shell
//! ```
//! The subcommands share `prepare` (from a directory to a compiled pipeline), `state` (directories of past runs) and
//! `ui` (all output).
//!
//! Invariant: only `muster ci vendor` and `show --extract` write to the user's repository.

mod args;
mod clean;
mod config;
mod config_check;
mod context;
mod defaults;
mod error;
mod explain;
mod git_facts;
mod gitlab_ci_local;
mod graph;
mod lint;
mod list;
mod pins;
mod predefined;
mod prepare;
mod read;
mod record;
mod run;
mod select;
mod shell;
mod show;
mod state;
pub(crate) mod step_lists;
mod svg;
mod trash;
pub(crate) mod ui;
mod variables;
mod vendor;

use std::process::ExitCode;

pub(crate) use args::CiArgs;
use args::Command;
pub(crate) use defaults::with_defaults;
pub(crate) use error::CiError;
pub(crate) use run::{Interrupts, adopt_orphans, end_descendants};

/// Default log filter: only events on which a user may need to act.
///
/// Most logs of the coordinator are off: they would report the requests that the end of a run interrupts.
const LOG: &str = "error,muster_runner_api=off,muster_coordinator=off,muster_coordinator::includes=warn,muster_source=warn,muster::ci=warn";

pub(crate) fn run(args: CiArgs) -> ExitCode {
    crate::logging::init_command(LOG);
    crate::runtime::block_on(async {
        match dispatch(args).await {
            Ok(code) => report_output_error(code),
            Err(error) => {
                ui::report(&error);
                error.exit_status().into()
            }
        }
    })
}

/// Prints a text, and returns the exit code: failure if the output could not be written.
pub(crate) fn print(text: &[u8]) -> ExitCode {
    // A write error is reported by `report_output_error`.
    let _ = ui::out_raw_while_read(text);
    report_output_error(ExitCode::SUCCESS)
}

/// Prints a styled text as [`print`] does. Colors are removed unless stdout is a terminal.
pub(crate) fn print_styled(text: &str) -> ExitCode {
    ui::out(text);
    report_output_error(ExitCode::SUCCESS)
}

/// Reports an error of writing stdout, and turns success into failure in that case.
pub(crate) fn report_output_error(code: ExitCode) -> ExitCode {
    let Some(error) = ui::output_error() else { return code };
    let problem = CiError::Output(error);
    ui::report(&problem);
    if code == ExitCode::SUCCESS { problem.exit_status().into() } else { code }
}

/// Returns the exit code of a command, and reports its error. `Ok(true)` means that the command succeeded.
pub(crate) fn exit_code<E: std::error::Error>(result: Result<bool, E>) -> ExitCode {
    report_output_error(match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            ui::report(&error);
            ExitCode::FAILURE
        }
    })
}

async fn dispatch(args: CiArgs) -> Result<ExitCode, CiError> {
    let status = match args.into_command() {
        Command::Run(args) => run::run(args).await,
        Command::List(args) => list::list(args).await,
        Command::Graph(args) => graph::graph(args).await,
        Command::Lint(args) => lint::lint(args).await,
        Command::Explain(args) => explain::explain(args).await,
        Command::Vendor(args) => vendor::vendor(args).await,
        Command::Show(args) => show::show(args).await,
        Command::Shell(args) => return shell::shell(args).await,
        Command::Clean(args) => clean::clean(&args),
    };
    status.map(ExitCode::from)
}
