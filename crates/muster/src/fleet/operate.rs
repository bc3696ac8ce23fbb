//! `muster fleet drain`, `resume` and `remove`: what an operator does by hand, told to the manager at work over its socket.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use muster_executor::ExecutorError;
use muster_executor::host::operator_socket_path;
use muster_taskscaler::operator::{Act, Answer, Order, VERSION};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

use super::ask::{AskError, instances};
use crate::ci::{self, ui};
use crate::config_file::ConfigArg;
use crate::flags;

/// For an answer of a manager.
const ANSWER_LIMIT: Duration = Duration::from_secs(25);
/// Characters of a reason.
const REASON_MAX: usize = 1000;
/// Bytes of an answer.
const ANSWER_MAX_BYTES: u64 = 1 << 20;

/// On what, and of which manager.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// An instance's name at the provider, or a group's, as `muster fleet status` shows them.
    name: String,
    /// In this group, where several have an instance of this name.
    #[arg(long, value_name = "NAME")]
    group: Option<String>,
    /// Of this runner, where several have a group or an instance of this name.
    #[arg(long, value_name = "NAME")]
    runner: Option<String>,
    /// Why; it is kept with the decision.
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    reason: Option<String>,
    #[command(flatten)]
    config: ConfigArg,
    /// The manager that works in this state directory.
    #[arg(long, value_name = "DIR", value_parser = flags::path())]
    state_dir: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// As [`Args`], with what only a removal can be.
#[derive(Debug, clap::Args)]
pub(crate) struct RemoveArgs {
    #[command(flatten)]
    args: Args,
    /// Do not wait for its jobs: they are given up, and their machine is removed under them.
    #[arg(long)]
    now: bool,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
enum OperateError {
    #[error(transparent)]
    Ask(#[from] AskError),
    #[error(transparent)]
    Socket(#[from] ExecutorError),
    #[error(
        "no manager with instances works on {}: start it, or name its state directory with --state-dir", directory.display()
    )]
    Nobody { directory: PathBuf, source: io::Error },
    #[error("only root and the user that the manager runs as may do that; its socket is {}", socket.display())]
    NotAllowed { socket: PathBuf, source: io::Error },
    #[error("the manager at {} did not answer; it may have done it: see `muster fleet status`", socket.display())]
    Silent { socket: PathBuf, source: io::Error },
}

/// A reason that can be kept with each decision.
fn reason(text: &str) -> Result<String, String> {
    let length = text.chars().count();
    if length > REASON_MAX {
        return Err(format!("it has {length} characters; write at most {REASON_MAX}"));
    }
    Ok(text.to_owned())
}

pub(super) async fn remove(args: RemoveArgs) -> ExitCode {
    run(args.args, Act::Remove { now: args.now }).await
}

pub(super) async fn run(args: Args, act: Act) -> ExitCode {
    let answer = match told(&args, act).await {
        Ok(answer) => answer,
        Err(error) => {
            ui::report(&error);
            return ExitCode::from(2);
        }
    };
    let printed = if args.json {
        super::print_json(&answer)
    } else if answer.done {
        ci::print(format!("{}\n", ui::plain(&answer.text)).as_bytes())
    } else {
        ui::note(&ui::plain(&answer.text));
        ExitCode::SUCCESS
    };
    if answer.done { printed } else { ExitCode::FAILURE }
}

async fn told(args: &Args, act: Act) -> Result<Answer, OperateError> {
    // A manager at work goes on without its file, and answers all the same.
    let (state, missing) = match flags::filled(&args.state_dir) {
        Some(directory) => (directory, None),
        None => {
            let path = args.config.path();
            let path = std::path::absolute(&path).unwrap_or(path);
            (crate::runner::state_dir(&path).ok_or(AskError::NoStateDir)?, Some(path).filter(|path| !path.exists()))
        }
    };
    let order = Order {
        version: VERSION,
        act,
        name: args.name.clone(),
        runner: args.runner.clone(),
        group: args.group.clone(),
        who: ["SUDO_USER", "USER", "LOGNAME"].into_iter().find_map(|name| std::env::var(name).ok()),
        why: args.reason.clone(),
    };
    let socket = operator_socket_path(&instances(&state))?;
    let stream = UnixStream::connect(&socket).await.map_err(|source| match (source.kind(), missing) {
        (io::ErrorKind::PermissionDenied, _) => OperateError::NotAllowed { socket: socket.clone(), source },
        (_, Some(path)) => AskError::NoSuchConfiguration(path).into(),
        _ => OperateError::Nobody { directory: state.clone(), source },
    })?;
    let answer = tokio::time::timeout(ANSWER_LIMIT, converse(stream, &order)).await;
    let answer = answer.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    answer.map_err(|source| silent(&socket, source))
}

fn silent(socket: &Path, source: io::Error) -> OperateError {
    OperateError::Silent { socket: socket.to_owned(), source }
}

async fn converse(mut stream: UnixStream, order: &Order) -> io::Result<Answer> {
    let (read, mut write) = stream.split();
    let mut line = serde_json::to_vec(order)?;
    line.push(b'\n');
    write.write_all(&line).await?;
    let mut answer = Vec::new();
    BufReader::new(read.take(ANSWER_MAX_BYTES)).read_until(b'\n', &mut answer).await?;
    Ok(serde_json::from_slice(&answer)?)
}
