//! `list`: logs the runners of the configuration, one per line.

use std::process::ExitCode;

use muster_telemetry::logs::UNREDACTED_TARGET;

use crate::config_file::ConfigArg;

/// Arguments of `gitlab-runner list`.
#[derive(Debug, clap::Args)]
pub(crate) struct ListRunnersArgs {
    #[command(flatten)]
    config: ConfigArg,
}

/// As in gitlab-runner, an invalid configuration is only a warning.
pub(super) fn run(args: &ListRunnersArgs) -> ExitCode {
    match args.config.load() {
        Ok(config) => {
            tracing::info!(ConfigFile = %args.config.path().display(), "Listing configured runners");
            for runner in &config.runners {
                // This command shows tokens on purpose.
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
        Err(error) => super::error::log_first_line(&error.to_string(), |first| tracing::warn!("{first}")),
    }
    ExitCode::SUCCESS
}
