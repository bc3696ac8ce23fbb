//! `reset-token`: replaces the authentication tokens of runners.

use std::process::ExitCode;

use muster_config::Runner;
use muster_config::edit::{ConfigFile, EditError, NewToken};
use muster_job::short_token;
use muster_runner_api::client::ClientError;
use muster_runner_api::wire::RunnerCredentials;
use time::OffsetDateTime;

use super::select::{SelectArgs, same_url};
use crate::config_file::{ConfigError, client_of, log_system_or_user_mode};

/// Arguments of `gitlab-runner reset-token`.
#[derive(Debug, clap::Args)]
pub(crate) struct ResetTokenArgs {
    #[command(flatten)]
    select: SelectArgs,
    /// With --url: runner with this ID on the server.
    #[arg(short, long)]
    id: Option<i64>,
    /// Personal access token to use instead of the runner's old token.
    #[arg(long, value_name = "TOKEN")]
    pat: Option<String>,
    /// Reset the tokens of all runners in the file.
    #[arg(long)]
    all_runners: bool,
}

#[derive(Debug, thiserror::Error)]
enum ResetError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("no runner selected; set --name, --url with --id, or --all-runners")]
    NoSelector,
    #[error("could not find a runner with {0}; run `gitlab-runner list` to see all runners")]
    NoMatch(String),
    #[error("failed to reset the authentication token of runner `{name}`")]
    Failed { name: String, source: ClientError },
    #[error("--pat requires the runner's ID, but runner `{name}` has none in the file")]
    NoId { name: String },
    #[error(
        "runner `{name}` was removed from the file meanwhile, so its token was not reset; \
             check the file, and run the command again"
    )]
    RemovedMeanwhile { name: String },
    #[error("the token was not reset, because the configuration file cannot be changed")]
    NotWritable(#[from] EditError),
    #[error(
        "the server has reset the token of runner `{name}`, but the new token could not be saved, and the old one is invalid; \
             fix the file, then reset the token again with --pat, or create a new runner on the server and register it"
    )]
    TokenLost { name: String, source: EditError },
}

pub(super) fn run(args: &ResetTokenArgs) -> ExitCode {
    crate::runtime::block_on_one_thread(async { super::error::exit_code(reset(args).await) })
}

async fn reset(args: &ResetTokenArgs) -> Result<(), ResetError> {
    log_system_or_user_mode();
    let runners = args.select.config.load()?.runners;
    if args.all_runners {
        tracing::warn!("Resetting all runner authentication tokens");
        for runner in &runners {
            match reset_one(args, runner).await {
                // The file cannot be written for the next runner either.
                Err(error @ (ResetError::NotWritable(_) | ResetError::TokenLost { .. })) => return Err(error),
                Err(error) => tracing::error!("{}", muster_job::error_chain(&error)),
                Ok(()) => {}
            }
        }
        return Ok(());
    }
    reset_one(args, args.selected(&runners)?).await
}

/// Saves the new token immediately, because the server no longer accepts the old token.
async fn reset_one(args: &ResetTokenArgs, runner: &Runner) -> Result<(), ResetError> {
    let name = || runner.name.clone();
    let path = args.select.config.path();
    // The file is checked before the request, because a new token that cannot be saved is lost.
    let mut file = ConfigFile::open(&path)?;
    file.check_writable()?;
    let removed = || ResetError::RemovedMeanwhile { name: name() };
    let index = super::change::find(&file, &path, runner, &runner.token).ok_or_else(removed)?;
    let credentials = request_reset(args, runner).await?;
    let new =
        NewToken::after_reset(&credentials.token, credentials.token_expires_at.as_deref(), OffsetDateTime::now_utc());
    let lost = |source| ResetError::TokenLost { name: name(), source };
    let warning = file.set_token(index, &new).map_err(lost)?;
    file.save().map_err(lost)?;
    if let Some(warning) = warning {
        tracing::warn!("{warning}");
    }
    let runner = short_token(new.token.expose());
    tracing::info!(runner, "Resetting runner authentication token... succeeded");
    Ok(())
}

async fn request_reset(args: &ResetTokenArgs, runner: &Runner) -> Result<RunnerCredentials, ResetError> {
    let failed = |source| ResetError::Failed { name: runner.name.clone(), source };
    let client = client_of(runner).map_err(failed)?;
    match args.pat.as_deref().filter(|pat| !pat.is_empty()) {
        Some(_) if runner.id == 0 => Err(ResetError::NoId { name: runner.name.clone() }),
        Some(pat) => client.reset_token_with_pat(runner.id, pat).await.map_err(failed),
        None => client.reset_token(runner.token.expose()).await.map_err(failed),
    }
}

impl ResetTokenArgs {
    fn selected<'a>(&self, runners: &'a [Runner]) -> Result<&'a Runner, ResetError> {
        let mut runners = runners.iter();
        match (self.select.name(), self.select.url(), self.id) {
            (Some(name), ..) => runners
                .find(|runner| runner.name == name)
                .ok_or_else(|| ResetError::NoMatch(format!("the name '{name}'"))),
            (None, Some(url), Some(id)) => runners
                .find(|runner| same_url(&runner.url, url) && runner.id == id)
                .ok_or_else(|| ResetError::NoMatch(format!("the URL {url} and the ID {id}"))),
            _ => Err(ResetError::NoSelector),
        }
    }
}
