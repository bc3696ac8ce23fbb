//! `muster ci`: runs a repository's pipeline here and now.

use std::process::ExitCode;

/// Arguments of `muster ci`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

/// Runs the subcommand.
pub(crate) fn run(_args: Args) -> ExitCode {
    ExitCode::from(2)
}
