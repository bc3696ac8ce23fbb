//! `reset-token`: new authentication tokens for runners, in place of the old ones.

use std::process::ExitCode;

use muster_config::Runner;
use muster_config::edit::{ConfigFile, EditError, NewToken};
use muster_job::short_token;
use muster_runner_api::client::ClientError;
use muster_runner_api::wire::RunnerCredentials;
use time::OffsetDateTime;

use super::select::{SelectArgs, same_url};
use crate::config_file::{ConfigError, client_of, tell_mode};

/// Arguments of `reset-token`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    select: SelectArgs,
    /// With --url: the runner with this id at the server.
    #[arg(short, long)]
    id: Option<i64>,
    /// Personal access token to use instead of the runner's old token.
    #[arg(long, value_name = "TOKEN")]
    pat: Option<String>,
    /// All runners of the file.
    #[arg(long)]
    all_runners: bool,
}

#[derive(Debug, thiserror::Error)]
enum ResetError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("say which runner: --name, --url with --id, or --all-runners")]
    NoSelector,
    #[error("could not find a runner with {0}; `gitlab-runner list` shows what there is")]
    NoMatch(String),
    #[error("failed to reset the authentication token of runner `{name}`")]
    Failed { name: String, source: ClientError },
    #[error("--pat needs the runner's id, and runner `{name}` has none in the file")]
    NoId { name: String },
    #[error(
        "runner `{name}` is not in the file any more; its token was not reset: \
         look at the file, and run the command again"
    )]
    Vanished { name: String },
    #[error("the token was not reset, since the file cannot be changed")]
    Unsaveable(#[from] EditError),
    #[error(
        "the server has reset the token of runner `{name}`, but the new one could not be saved and is lost; the old one \
         is void. Mend the file, then reset it once more with --pat, or make a new runner at the server and register it"
    )]
    Lost { name: String, source: EditError },
}

/// Runs the command.
pub(super) fn run(args: &Args) -> ExitCode {
    crate::runtime::block_on_one_thread(async { super::error::ended(reset(args).await) })
}

async fn reset(args: &Args) -> Result<(), ResetError> {
    tell_mode();
    let runners = args.select.config.load()?.runners;
    if args.all_runners {
        tracing::warn!("Resetting all runner authentication tokens");
        for runner in &runners {
            match one(args, runner).await {
                // What cannot be written now can be written no better for the next one.
                Err(error @ (ResetError::Unsaveable(_) | ResetError::Lost { .. })) => return Err(error),
                Err(error) => tracing::error!("{}", muster_job::error_chain(&error)),
                Ok(()) => {}
            }
        }
        return Ok(());
    }
    one(args, args.selected(&runners)?).await
}

/// The new token is in the file before anything else is asked: the old one is worth nothing any more.
async fn one(args: &Args, runner: &Runner) -> Result<(), ResetError> {
    let name = || runner.name.clone();
    let path = args.select.config.path();
    // Locked, and proven to be readable and to be saved, before the old token is given up.
    let mut file = ConfigFile::open(&path)?;
    file.check_writable()?;
    let gone = || ResetError::Vanished { name: name() };
    let index = super::change::find(&file, &path, runner, &runner.token).ok_or_else(gone)?;
    let credentials = ask(args, runner).await?;
    let new =
        NewToken::after_reset(&credentials.token, credentials.token_expires_at.as_deref(), OffsetDateTime::now_utc());
    let lost = |source| ResetError::Lost { name: name(), source };
    let told = file.set_token(index, &new).map_err(lost)?;
    file.save().map_err(lost)?;
    if let Some(told) = told {
        tracing::warn!("{told}");
    }
    let runner = short_token(new.token.expose());
    tracing::info!(runner, "Resetting runner authentication token... succeeded");
    Ok(())
}

async fn ask(args: &Args, runner: &Runner) -> Result<RunnerCredentials, ResetError> {
    let failed = |source| ResetError::Failed { name: runner.name.clone(), source };
    let client = client_of(runner).map_err(failed)?;
    match args.pat.as_deref().filter(|pat| !pat.is_empty()) {
        Some(_) if runner.id == 0 => Err(ResetError::NoId { name: runner.name.clone() }),
        Some(pat) => client.reset_token_with_pat(runner.id, pat).await.map_err(failed),
        None => client.reset_token(runner.token.expose()).await.map_err(failed),
    }
}

impl Args {
    fn selected<'a>(&self, runners: &'a [Runner]) -> Result<&'a Runner, ResetError> {
        let mut runners = runners.iter();
        match (self.select.name(), self.select.url(), self.id) {
            (Some(name), ..) => runners
                .find(|runner| runner.name == name)
                .ok_or_else(|| ResetError::NoMatch(format!("the name '{name}'"))),
            (None, Some(url), Some(id)) => runners
                .find(|runner| same_url(&runner.url, url) && runner.id == id)
                .ok_or_else(|| ResetError::NoMatch(format!("the URL {url} and the id {id}"))),
            _ => Err(ResetError::NoSelector),
        }
    }
}
