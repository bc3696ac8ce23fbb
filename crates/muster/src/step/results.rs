//! `muster step results`: shows the steps of a finished job from its result tree.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use muster_agent_api::result::StepNode;

use super::show;
use crate::ci::ui;

/// Arguments of `muster step results`.
#[derive(Debug, clap::Args)]
pub(crate) struct ResultsArgs {
    /// Result tree: a file that `run --results` or `debug --results` wrote, or the output of `muster ci show RUN JOB --results`.
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

pub(super) fn run(args: &ResultsArgs) -> ExitCode {
    match read_tree(&args.file) {
        Ok(tree) => {
            ui::out(&show::result(&tree, 0));
            ExitCode::SUCCESS
        }
        Err(error) => super::fail(error),
    }
}

/// Reads a result tree. The error is a message for the user.
pub(super) fn read_tree(path: &Path) -> Result<StepNode, String> {
    let name = path.display();
    let text = std::fs::read(path).map_err(|error| format!("failed to read {name}: {error}"))?;
    serde_json::from_slice(&text).map_err(|error| {
        format!("{name} is not a valid result tree: {error}; write one with `muster step run --results` or `muster ci show --results`")
    })
}
