//! `verify`: asks the server which runners still exist.

use std::process::ExitCode;

use clap::builder::Resettable;
use futures::StreamExt as _;
use muster_config::Runner;
use muster_config::edit::EditError;
use muster_job::short_token;
use muster_runner_api::wire::TokenRequest;

use super::select::{SelectArgs, non_empty};
use super::tls::TlsArgs;
use crate::config_file::{ConfigError, is_created_at_server, log_system_or_user_mode, token_request, version_info};

const MAX_CONCURRENT: usize = 8;

/// Arguments of `gitlab-runner verify`.
///
/// Only `--config` has an environment variable, so that a variable for another purpose does not select runners.
#[derive(Debug, clap::Args)]
#[command(mut_args(without_variable))]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    select: SelectArgs,
    #[command(flatten)]
    tls: TlsArgs,
    /// Only verify the runners with this token, and with the URL of --url unless it is `*`.
    #[arg(short, long)]
    token: Option<String>,
    /// Remove from the file the runners that the server no longer knows.
    #[arg(long)]
    delete: bool,
}

fn without_variable(argument: clap::Arg) -> clap::Arg {
    if argument.get_id().as_str().starts_with("tls_") { argument.env(Resettable::Reset) } else { argument }
}

#[derive(Debug, thiserror::Error)]
enum VerifyError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("no runner matches the filtering parameters; run `gitlab-runner list` to see all runners")]
    NoMatch,
    #[error("--url selects a runner only together with --token; add --token, or select the runner with --name")]
    UrlAlone,
    #[error("failed to verify {0}; use --delete to remove them from the file")]
    UnknownRunners(String),
    #[error(transparent)]
    Save(#[from] EditError),
}

pub(super) fn run(args: &VerifyArgs) -> ExitCode {
    crate::runtime::block_on_one_thread(async { super::error::exit_code(verify(args).await) })
}

async fn verify(args: &VerifyArgs) -> Result<(), VerifyError> {
    log_system_or_user_mode();
    let config = args.select.config.load()?;
    let filters = [args.select.name(), args.select.url(), non_empty(&args.token)];
    if matches!(filters, [None, Some(_), None]) {
        return Err(VerifyError::UrlAlone);
    }
    let is_selective = filters.into_iter().any(|filter| filter.is_some());
    let selects = |runner: &&Runner| !is_selective || args.selects(runner);
    let selected: Vec<Runner> = config.runners.iter().filter(selects).cloned().collect();
    if is_selective && selected.is_empty() {
        return Err(VerifyError::NoMatch);
    }
    let system_id = args.select.config.system_id();
    let request = |runner: &Runner| token_request(runner.token.expose(), &system_id, version_info(&config, runner));
    let requests: Vec<TokenRequest> = selected.iter().map(request).collect();
    let checks = selected.iter().zip(&requests).map(|(runner, request)| is_unknown_to_server(args, runner, request));
    let unknown: Vec<bool> = futures::stream::iter(checks).buffered(MAX_CONCURRENT).collect().await;
    let unknown: Vec<Runner> =
        selected.into_iter().zip(unknown).filter(|(_, unknown)| *unknown).map(|(runner, _)| runner).collect();
    if unknown.is_empty() {
        return Ok(());
    }
    if !args.delete {
        let names: Vec<String> = unknown.iter().map(|runner| format!("`{}`", runner.name)).collect();
        return Err(VerifyError::UnknownRunners(names.join(", ")));
    }
    Ok(super::change::remove(&args.select.config.path(), &unknown)?)
}

/// Returns whether the server rejects the token because the runner was deleted. Returns false for other errors, such as
/// a lost connection.
async fn is_unknown_to_server(args: &VerifyArgs, runner: &Runner, request: &TokenRequest) -> bool {
    let short = short_token(runner.token.expose());
    let answer = match args.tls.client_of(runner) {
        Ok(client) => client.verify(request).await,
        Err(error) => Err(error),
    };
    let created_at_server = is_created_at_server(runner.token.expose());
    match answer {
        Ok(_) => {
            let result = if created_at_server { "is valid" } else { "is alive" };
            tracing::info!(runner = short, runner_name = runner.name, "Verifying runner... {result}");
            false
        }
        Err(error) if error.is_unknown_token() => {
            let result = if created_at_server { "is not valid" } else { "is removed" };
            tracing::error!(runner = short, runner_name = runner.name, %error, "Verifying runner... {result}");
            true
        }
        Err(error) => {
            tracing::error!(runner = short, runner_name = runner.name, %error, "Verifying runner... failed");
            false
        }
    }
}

impl VerifyArgs {
    fn selects(&self, runner: &Runner) -> bool {
        let matches_url = |url: &str| url == "*" || url == runner.url;
        let by_token = non_empty(&self.token)
            .is_some_and(|token| runner.token.expose() == token && self.select.url().is_none_or(matches_url));
        by_token || self.select.name().is_some_and(|name| runner.name == name)
    }
}
