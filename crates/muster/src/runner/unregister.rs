//! `unregister`: takes runners, or this manager of them, from the server and from the file.

use std::process::ExitCode;

use muster_config::edit::{ConfigFile, EditError};
use muster_config::{Config, Runner};
use muster_job::short_token;
use muster_runner_api::client::ClientError;

use super::select::{SelectArgs, filled, same_url};
use crate::config_file::{ConfigError, info, is_made_at_server, tell_mode, token_request};

/// Arguments of `unregister`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("url", |url| url.env("CI_SERVER_URL").hide_env_values(true)))]
pub(crate) struct Args {
    #[command(flatten)]
    select: SelectArgs,
    /// The runner with this token.
    #[arg(short, long, env = "CI_SERVER_TOKEN", hide_env_values = true)]
    token: Option<String>,
    #[command(flatten)]
    tls: super::tls::TlsArgs,
    /// All runners of the file; those that cannot be unregistered stay in it.
    #[arg(long)]
    all_runners: bool,
}

#[derive(Debug, thiserror::Error)]
enum UnregisterError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("say which runner: --name, --token, or --all-runners")]
    NoSelector,
    #[error("could not find a runner with {0}; `gitlab-runner list` shows what there is")]
    NoMatch(String),
    #[error("failed to unregister runner `{name}`; it stays in the file")]
    Failed { name: String, source: ClientError },
    #[error("nothing was unregistered, since the file cannot be changed")]
    Unsaveable(#[source] EditError),
    #[error(transparent)]
    Save(#[from] EditError),
}

/// Runs the command.
pub(super) fn run(args: &Args) -> ExitCode {
    crate::runtime::block_on_one_thread(async { super::error::ended(unregister(args).await) })
}

async fn unregister(args: &Args) -> Result<(), UnregisterError> {
    tell_mode();
    let config = args.select.config.load()?;
    let mut gone = Vec::new();
    if args.all_runners {
        tracing::warn!("Unregistering all runners");
        if !config.runners.is_empty() {
            prove(args)?;
        }
        for runner in &config.runners {
            match one(args, &config, runner).await {
                Ok(()) => gone.push(runner.clone()),
                Err(error) => tracing::error!(%error, "Failed to unregister runner {}", runner.name),
            }
        }
    } else {
        let runner = args.selected(&config.runners)?.clone();
        let name = runner.name.clone();
        prove(args)?;
        one(args, &config, &runner).await.map_err(|source| UnregisterError::Failed { name, source })?;
        gone.push(runner);
    }
    Ok(super::change::remove(&args.select.config.path(), &gone)?)
}

/// Whether the file can be saved: a runner that the server has forgotten must not stay in it.
fn prove(args: &Args) -> Result<(), UnregisterError> {
    ConfigFile::open(&args.select.config.path())
        .and_then(|file| file.check_writable())
        .map_err(UnregisterError::Unsaveable)
}

async fn one(args: &Args, config: &Config, runner: &Runner) -> Result<(), ClientError> {
    let token = runner.token.expose();
    let client = args.tls.client_of(runner)?;
    if is_made_at_server(token) {
        let request = token_request(token, &args.select.config.system_id(), info(config, runner));
        client.unregister_manager(&request).await?;
    } else {
        client.unregister(token).await?;
    }
    tracing::info!(runner = short_token(token), "Unregistering runner from GitLab succeeded");
    Ok(())
}

impl Args {
    /// The first runner that is all that was said.
    fn selected<'a>(&self, runners: &'a [Runner]) -> Result<&'a Runner, UnregisterError> {
        let (name, token, url) = (self.select.name(), filled(&self.token), self.select.url());
        if name.is_none() && token.is_none() {
            return Err(UnregisterError::NoSelector);
        }
        let found = runners.iter().find(|runner| {
            name.is_none_or(|name| runner.name == name)
                && token.is_none_or(|token| runner.token.expose() == token)
                && url.is_none_or(|url| same_url(&runner.url, url))
        });
        found.ok_or_else(|| {
            let mut words = Vec::new();
            words.extend(name.map(|name| format!("the name '{name}'")));
            words.extend(token.map(|token| format!("the token '{}'", short_token(token))));
            words.extend(url.map(|url| format!("the URL {url}")));
            UnregisterError::NoMatch(words.join(" and "))
        })
    }
}
