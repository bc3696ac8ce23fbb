//! `verify`: asks the server which runners are still theirs.

use std::process::ExitCode;

use clap::builder::Resettable;
use futures::StreamExt as _;
use muster_config::Runner;
use muster_config::edit::EditError;
use muster_job::short_token;
use muster_runner_api::wire::TokenRequest;

use super::select::{SelectArgs, filled};
use super::tls::TlsArgs;
use crate::config_file::{ConfigError, info, is_made_at_server, tell_mode, token_request};

/// Runners that are verified at the same time.
const AT_ONCE: usize = 8;

/// Arguments of `verify`. They have no variables of the environment, so that one that is set for something else selects
/// nothing.
#[derive(Debug, clap::Args)]
#[command(mut_args(without_variable))]
pub(crate) struct Args {
    #[command(flatten)]
    select: SelectArgs,
    #[command(flatten)]
    tls: TlsArgs,
    /// Only the runners with this token; with --url `*` at any server.
    #[arg(short, long)]
    token: Option<String>,
    /// Remove the runners that the server does not know any more from the file.
    #[arg(long)]
    delete: bool,
}

/// Certificates are flags only, too.
fn without_variable(argument: clap::Arg) -> clap::Arg {
    if argument.get_id().as_str().starts_with("tls_") { argument.env(Resettable::Reset) } else { argument }
}

#[derive(Debug, thiserror::Error)]
enum VerifyError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("no runner matches the filtering parameters; `gitlab-runner list` shows what there is")]
    NoMatch,
    #[error("failed to verify {0}: with --delete they are removed from the file")]
    Dead(String),
    #[error(transparent)]
    Save(#[from] EditError),
}

/// Runs the command.
pub(super) fn run(args: &Args) -> ExitCode {
    crate::runtime::block_on_one_thread(async { super::error::ended(verify(args).await) })
}

async fn verify(args: &Args) -> Result<(), VerifyError> {
    tell_mode();
    let config = args.select.config.load()?;
    let given = [args.select.name(), args.select.url(), filled(&args.token)];
    let is_selective = given.into_iter().any(|given| given.is_some());
    let selects = |runner: &&Runner| !is_selective || args.selects(runner);
    let selected: Vec<Runner> = config.runners.iter().filter(selects).cloned().collect();
    if is_selective && selected.is_empty() {
        return Err(VerifyError::NoMatch);
    }
    let system_id = args.select.config.system_id();
    let request = |runner: &Runner| token_request(runner.token.expose(), &system_id, info(&config, runner));
    let requests: Vec<TokenRequest> = selected.iter().map(request).collect();
    let checks = selected.iter().zip(&requests).map(|(runner, request)| is_dead(args, runner, request));
    let dead: Vec<bool> = futures::stream::iter(checks).buffered(AT_ONCE).collect().await;
    let dead: Vec<Runner> =
        selected.into_iter().zip(dead).filter(|(_, dead)| *dead).map(|(runner, _)| runner).collect();
    if dead.is_empty() {
        return Ok(());
    }
    if !args.delete {
        let names: Vec<String> = dead.iter().map(|runner| format!("`{}`", runner.name)).collect();
        return Err(VerifyError::Dead(names.join(", ")));
    }
    Ok(super::change::remove(&args.select.config.path(), &dead)?)
}

/// Only a refusal of the token means that the runner is gone; whatever else goes wrong says nothing of it.
async fn is_dead(args: &Args, runner: &Runner, request: &TokenRequest) -> bool {
    let short = short_token(runner.token.expose());
    let answer = match args.tls.client_of(runner) {
        Ok(client) => client.verify(request).await,
        Err(error) => Err(error),
    };
    let made_at_server = is_made_at_server(runner.token.expose());
    match answer {
        Ok(_) => {
            let word = if made_at_server { "is valid" } else { "is alive" };
            tracing::info!(runner = short, runner_name = runner.name, "Verifying runner... {word}");
            false
        }
        Err(error) if error.is_unknown_token() => {
            let word = if made_at_server { "is not valid" } else { "is removed" };
            tracing::error!(runner = short, runner_name = runner.name, %error, "Verifying runner... {word}");
            true
        }
        Err(error) => {
            tracing::error!(runner = short, runner_name = runner.name, %error, "Verifying runner... failed");
            false
        }
    }
}

impl Args {
    /// The name fits, or the token does and the URL does not contradict.
    fn selects(&self, runner: &Runner) -> bool {
        let fits = |url: &str| url == "*" || url == runner.url;
        let by_token = filled(&self.token)
            .is_some_and(|token| runner.token.expose() == token && self.select.url().is_none_or(fits));
        by_token || self.select.name().is_some_and(|name| runner.name == name)
    }
}
