//! `muster step results`: shows the steps of a finished job from its result tree.

use std::path::PathBuf;
use std::process::ExitCode;

use muster_agent_api::result::StepNode;

use super::show;
use crate::ci::ui;

/// Arguments of `muster step results`.
#[derive(Debug, clap::Args)]
pub(crate) struct ResultsArgs {
    /// File that `run --results` or `debug --results` wrote.
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Runs `muster step results`.
pub(super) fn run(args: &ResultsArgs) -> ExitCode {
    let path = args.file.display();
    let text = match std::fs::read(&args.file) {
        Ok(text) => text,
        Err(error) => return super::fail(format!("failed to read {path}: {error}")),
    };
    match serde_json::from_slice::<StepNode>(&text) {
        Ok(tree) => {
            ui::out(&show::result(&tree, 0));
            ExitCode::SUCCESS
        }
        Err(error) => super::fail(format!(
            "{path} is not a valid result tree: {error}; write one with `muster step run --results`"
        )),
    }
}
