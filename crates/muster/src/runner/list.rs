//! `list`: tells the runners of the configuration, one line of the log for each.

use std::process::ExitCode;

use muster_telemetry::logs::UNREDACTED_TARGET;

use crate::config_file::ConfigArg;

/// Arguments of `list`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    config: ConfigArg,
}

/// Runs the command. A file that cannot be used is a warning and no failure: so it is in gitlab-runner.
pub(super) fn run(args: &Args) -> ExitCode {
    match args.config.load() {
        Ok(config) => {
            tracing::info!(ConfigFile = %args.config.path().display(), "Listing configured runners");
            for runner in &config.runners {
                // The token is what this command is asked for.
                tracing::info!(
                    target: UNREDACTED_TARGET,
                    Executor = runner.executor,
                    Token = runner.token.expose(),
                    URL = runner.url,
                    "{}",
                    runner.name
                );
            }
        }
        Err(error) => super::error::tell(&error.to_string(), |first| tracing::warn!("{first}")),
    }
    ExitCode::SUCCESS
}
