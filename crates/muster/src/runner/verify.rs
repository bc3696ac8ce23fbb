//! `verify`: asks the server which runners are still theirs.

use std::process::ExitCode;

use futures::StreamExt as _;
use muster_manager::config::Runner;
use muster_manager::config::edit::EditError;
use muster_manager::lower::short_token;

use super::config::{ConfigArg, ConfigError, client_of, is_made_at_server, tell_mode, token_request};

/// Runners that are verified at the same time.
const AT_ONCE: usize = 8;

/// Arguments of `verify`. They have no variables of the environment, so that one that is set for something else selects
/// nothing.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    config: ConfigArg,
    /// Only the runners of this name.
    #[arg(short, long)]
    name: Option<String>,
    /// With --token: only runners with this URL; `*` is any.
    #[arg(short, long)]
    url: Option<String>,
    /// Only the runners with this token.
    #[arg(short, long)]
    token: Option<String>,
    /// Remove the runners that the server does not know any more from the file.
    #[arg(long)]
    delete: bool,
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
    let runners = args.config.load()?.runners;
    let is_selective = [&args.name, &args.url, &args.token].into_iter().any(|given| filled(given).is_some());
    let selected: Vec<Runner> = runners.into_iter().filter(|runner| !is_selective || args.selects(runner)).collect();
    if is_selective && selected.is_empty() {
        return Err(VerifyError::NoMatch);
    }
    let system_id = args.config.system_id();
    let checks = selected.iter().map(|runner| is_dead(runner, &system_id));
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
    Ok(super::change::remove(&args.config.path(), &dead)?)
}

/// Only a refusal of the token means that the runner is gone; whatever else goes wrong says nothing of it.
async fn is_dead(runner: &Runner, system_id: &str) -> bool {
    let short = short_token(runner.token.expose());
    let request = token_request(runner.token.expose(), system_id);
    let answer = match client_of(runner) {
        Ok(client) => client.verify(&request).await,
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
        let url = filled(&self.url);
        let by_token = filled(&self.token).is_some_and(|token| {
            runner.token.expose() == token && url.is_none_or(|url| url == "*" || url == runner.url)
        });
        by_token || filled(&self.name).is_some_and(|name| runner.name == name)
    }
}

fn filled(text: &Option<String>) -> Option<&str> {
    text.as_deref().filter(|text| !text.is_empty())
}
