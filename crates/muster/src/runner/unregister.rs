//! `unregister`: takes runners, or this manager of them, from the server and from the file.

use std::process::ExitCode;

use muster_manager::config::Runner;
use muster_manager::config::edit::EditError;
use muster_manager::lower::short_token;
use muster_runner_api::client::{Client, ClientError, TlsFiles};
use url::Url;

use super::config::{ConfigArg, ConfigError, client_of, is_made_at_server, tell_mode, token_request};

/// Arguments of `unregister`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    config: ConfigArg,
    /// The runner of this name.
    #[arg(short, long)]
    name: Option<String>,
    /// The runner with this token.
    #[arg(short, long, env = "CI_SERVER_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// With --name or --token: the runner with this URL.
    #[arg(short, long, env = "CI_SERVER_URL", hide_env_values = true)]
    url: Option<String>,
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
    #[error(transparent)]
    Save(#[from] EditError),
}

/// Runs the command.
pub(super) fn run(args: &Args) -> ExitCode {
    crate::runtime::block_on_one_thread(async { super::error::ended(unregister(args).await) })
}

async fn unregister(args: &Args) -> Result<(), UnregisterError> {
    tell_mode();
    let runners = args.config.load()?.runners;
    let mut gone = Vec::new();
    if args.all_runners {
        tracing::warn!("Unregistering all runners");
        for runner in runners {
            match one(args, &runner).await {
                Ok(()) => gone.push(runner),
                Err(error) => tracing::error!(%error, "Failed to unregister runner {}", runner.name),
            }
        }
    } else {
        let runner = args.select(runners)?;
        let name = runner.name.clone();
        one(args, &runner).await.map_err(|source| UnregisterError::Failed { name, source })?;
        gone.push(runner);
    }
    Ok(super::change::remove(&args.config.path(), &gone)?)
}

async fn one(args: &Args, runner: &Runner) -> Result<(), ClientError> {
    let token = runner.token.expose();
    let client = args.client(runner)?;
    if is_made_at_server(token) {
        client.unregister_manager(&token_request(token, &args.config.system_id())).await?;
    } else {
        client.unregister(token).await?;
    }
    tracing::info!(runner = short_token(token), "Unregistering runner from GitLab succeeded");
    Ok(())
}

impl Args {
    /// The first runner that is all that was said.
    fn select(&self, runners: Vec<Runner>) -> Result<Runner, UnregisterError> {
        let filled = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let (name, token, url) = (filled(&self.name), filled(&self.token), filled(&self.url));
        if name.is_none() && token.is_none() {
            return Err(UnregisterError::NoSelector);
        }
        let same_url = |one: &str, other: &str| one.trim_end_matches('/') == other.trim_end_matches('/');
        let found = runners.into_iter().find(|runner| {
            name.as_ref().is_none_or(|name| runner.name == *name)
                && token.as_ref().is_none_or(|token| runner.token.expose() == token)
                && url.as_ref().is_none_or(|url| same_url(&runner.url, url))
        });
        found.ok_or_else(|| {
            let mut words = Vec::new();
            words.extend(name.map(|name| format!("the name '{name}'")));
            words.extend(token.map(|token| format!("the token '{}'", short_token(&token))));
            words.extend(url.map(|url| format!("the URL {url}")));
            UnregisterError::NoMatch(words.join(" and "))
        })
    }

    /// With the certificates of the flags, where there are any.
    fn client(&self, runner: &Runner) -> Result<Client, ClientError> {
        let tls = TlsFiles::from(&self.tls);
        if tls.is_empty() {
            return client_of(runner);
        }
        let url = Url::parse(&runner.url).map_err(|error| ClientError::Setup(format!("`{}`: {error}", runner.url)))?;
        Client::with_tls(&url, &tls)
    }
}
