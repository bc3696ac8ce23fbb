//! `unregister`: removes runners from the server and from the file.
//!
//! If a runner was created on the server, the server deletes only the entry of this manager.

use std::process::ExitCode;

use muster_config::edit::{ConfigFile, EditError};
use muster_config::{Config, Runner};
use muster_job::short_token;
use muster_runner_api::client::ClientError;

use super::select::{SelectArgs, non_empty, same_url};
use crate::config_file::{ConfigError, is_created_at_server, log_system_or_user_mode, token_request, version_info};

/// Arguments of `gitlab-runner unregister`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("url", |url| url.env("CI_SERVER_URL").hide_env_values(true)))]
pub(crate) struct UnregisterArgs {
    #[command(flatten)]
    select: SelectArgs,
    /// Runner with this token.
    #[arg(short, long, env = "CI_SERVER_TOKEN", hide_env_values = true)]
    token: Option<String>,
    #[command(flatten)]
    tls: super::tls::TlsArgs,
    /// All runners of the file. Runners that cannot be unregistered are kept in the file.
    #[arg(long)]
    all_runners: bool,
}

#[derive(Debug, thiserror::Error)]
enum UnregisterError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("no runner selected; set --name, --token, or --all-runners")]
    NoSelector,
    #[error("could not find a runner with {0}; run `gitlab-runner list` to see all runners")]
    NoMatch(String),
    #[error("failed to unregister runner `{name}`; it is kept in the file")]
    Failed { name: String, source: ClientError },
    #[error("no runner was unregistered, because the configuration file cannot be changed")]
    NotWritable(#[source] EditError),
    #[error(transparent)]
    Save(#[from] EditError),
}

pub(super) fn run(args: &UnregisterArgs) -> ExitCode {
    crate::runtime::block_on_one_thread(async { super::error::exit_code(unregister(args).await) })
}

async fn unregister(args: &UnregisterArgs) -> Result<(), UnregisterError> {
    log_system_or_user_mode();
    let config = args.select.config.load()?;
    let mut unregistered = Vec::new();
    if args.all_runners {
        tracing::warn!("Unregistering all runners");
        if !config.runners.is_empty() {
            check_writable(args)?;
        }
        for runner in &config.runners {
            match unregister_one(args, &config, runner).await {
                Ok(()) => unregistered.push(runner.clone()),
                Err(error) => tracing::error!(%error, "Failed to unregister runner {}", runner.name),
            }
        }
    } else {
        let runner = args.selected(&config.runners)?.clone();
        let name = runner.name.clone();
        check_writable(args)?;
        unregister_one(args, &config, &runner).await.map_err(|source| UnregisterError::Failed { name, source })?;
        unregistered.push(runner);
    }
    Ok(super::change::remove(&args.select.config.path(), &unregistered)?)
}

/// Checks that the file can be saved. Otherwise, it would keep runners that the server has deleted.
fn check_writable(args: &UnregisterArgs) -> Result<(), UnregisterError> {
    ConfigFile::open(&args.select.config.path())
        .and_then(|file| file.check_writable())
        .map_err(UnregisterError::NotWritable)
}

async fn unregister_one(args: &UnregisterArgs, config: &Config, runner: &Runner) -> Result<(), ClientError> {
    let token = runner.token.expose();
    let client = args.tls.client_of(runner)?;
    if is_created_at_server(token) {
        let request = token_request(token, &args.select.config.system_id(), version_info(config, runner));
        client.unregister_manager(&request).await?;
    } else {
        client.unregister(token).await?;
    }
    tracing::info!(runner = short_token(token), "Unregistering runner from GitLab succeeded");
    Ok(())
}

impl UnregisterArgs {
    fn selected<'a>(&self, runners: &'a [Runner]) -> Result<&'a Runner, UnregisterError> {
        let (name, token, url) = (self.select.name(), non_empty(&self.token), self.select.url());
        if name.is_none() && token.is_none() {
            return Err(UnregisterError::NoSelector);
        }
        let found = runners.iter().find(|runner| {
            name.is_none_or(|name| runner.name == name)
                && token.is_none_or(|token| runner.token.expose() == token)
                && url.is_none_or(|url| same_url(&runner.url, url))
        });
        found.ok_or_else(|| {
            let mut criteria = Vec::new();
            criteria.extend(name.map(|name| format!("the name '{name}'")));
            criteria.extend(token.map(|token| format!("the token '{}'", short_token(token))));
            criteria.extend(url.map(|url| format!("the URL {url}")));
            UnregisterError::NoMatch(criteria.join(" and "))
        })
    }
}
