//! `muster ci`: runs a repository's pipeline here and now, and answers questions about it.
//!
//! ```text
//! arguments, ci.toml, git --prepare--> snapshot + context --pipeline::compile--> list, graph, lint, explain
//!                                                                    \--run--> coordinator + manager --> show, shell
//! ```
//! Each subcommand is a module. What they share: `args`, `prepare` (from a folder to a compiled pipeline), `state`
//! (folders of past runs), `ui` (how things look).
//!
//! Invariant: whatever happens, the user's repository is as it was, and no process of ours is left.

mod args;
mod clean;
mod config;
mod context;
mod defaults;
mod error;
mod explain;
mod git_facts;
mod graph;
mod lint;
mod list;
mod peer_files;
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
mod svg;
pub(crate) mod ui;
mod variables;
mod vendor;

use std::process::ExitCode;

pub(crate) use args::Args;
use args::Command;
pub(crate) use defaults::with_defaults;
pub(crate) use error::CiError;
pub(crate) use run::{Interrupts, adopt_orphans, end_descendants};

/// What is logged beside what the commands themselves say: what a user may have to act on. The coordinator and its routes are
/// quiet: a call that is held when the run ends is no news, and what cannot be stored is told as an event.
const LOG: &str = "error,muster_runner_api=off,muster_coordinator=off,muster_coordinator::includes=warn,muster_source=warn,muster::ci=warn";

/// Runs the subcommand.
pub(crate) fn run(args: Args) -> ExitCode {
    crate::logging::of_command(LOG);
    crate::runtime::block_on(async {
        match dispatch(args).await {
            Ok(code) => with_output(code),
            Err(error) => {
                ui::report(&error);
                error.exit_status().into()
            }
        }
    })
}

/// Prints a text that another command made, and says what the process ends with.
pub(crate) fn print(text: &[u8]) -> ExitCode {
    // Where it breaks off nothing is left to do; why is told below.
    let _ = ui::out_raw_while_read(text);
    with_output(ExitCode::SUCCESS)
}

/// As [`print`], for text whose colours are for terminals only.
pub(crate) fn print_styled(text: &str) -> ExitCode {
    ui::out(text);
    with_output(ExitCode::SUCCESS)
}

/// Tells that the output was not written, if so: what looks complete would not be, so that success is none.
pub(crate) fn with_output(code: ExitCode) -> ExitCode {
    let Some(error) = ui::output_error() else { return code };
    let problem = CiError::Output(error);
    ui::report(&problem);
    if code == ExitCode::SUCCESS { problem.exit_status().into() } else { code }
}

async fn dispatch(args: Args) -> Result<ExitCode, CiError> {
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
