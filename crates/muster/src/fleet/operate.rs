//! `muster fleet cordon`, `uncordon`, `drain` and `delete`: sends a request to the running manager's operator socket.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use muster_executor::ExecutorError;
use muster_executor::host::operator_socket_path;
use muster_taskscaler::operator::{OperatorAction, OperatorReply, OperatorRequest, VERSION};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

use super::query::{QueryError, ledger_directory};
use crate::ci::{self, ui};
use crate::config_file::ConfigArg;
use crate::flags;

const REPLY_TIMEOUT: Duration = Duration::from_secs(25);
const MAX_REASON_CHARS: usize = 1000;
const MAX_REPLY_BYTES: u64 = 1 << 20;

/// Target of the operation, and its manager.
#[derive(Debug, clap::Args)]
pub(crate) struct OperateArgs {
    /// ID of the instance, as shown by `muster fleet status`.
    name: String,
    /// Group of the instance, if the ID is not unique.
    #[arg(long, value_name = "NAME")]
    group: Option<String>,
    /// Runner that the instance or group belongs to, if its name is not unique.
    #[arg(long, value_name = "NAME")]
    runner: Option<String>,
    /// Reason, shown in `muster fleet status` and `explain`.
    #[arg(long, value_name = "TEXT", value_parser = parse_reason)]
    reason: Option<String>,
    #[command(flatten)]
    config: ConfigArg,
    /// State directory of the manager.
    #[arg(long, value_name = "DIR", value_parser = flags::path())]
    state_dir: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Changes the help of the argument for commands that also accept a group.
pub(super) fn group_or_instance(name: clap::Arg) -> clap::Arg {
    name.help("ID of an instance, or name of a group, as shown by `muster fleet status`")
}

/// Arguments of `muster fleet delete`.
#[derive(Debug, clap::Args)]
pub(crate) struct DeleteArgs {
    #[command(flatten)]
    args: OperateArgs,
    /// Delete the instance even if jobs run on it. These jobs fail or are rescheduled.
    #[arg(long)]
    force: bool,
}

#[derive(Debug, thiserror::Error)]
enum OperateError {
    #[error(transparent)]
    Query(#[from] QueryError),
    #[error(transparent)]
    Socket(#[from] ExecutorError),
    #[error(
        "no running manager with instances uses the state directory {}; start the manager, or set its state directory with --state-dir", directory.display()
    )]
    NoManager { directory: PathBuf, source: io::Error },
    #[error("permission denied for manager socket {}; run the command as root or as the manager's user", socket.display())]
    NotAllowed { socket: PathBuf, source: io::Error },
    #[error("the manager at {} did not answer, but may have carried out the request; check `muster fleet status`", socket.display())]
    NoReply { socket: PathBuf, source: io::Error },
}

#[derive(Debug, thiserror::Error)]
#[error("the reason has {length} characters; the maximum is {MAX_REASON_CHARS}")]
struct ReasonError {
    length: usize,
}

fn parse_reason(text: &str) -> Result<String, ReasonError> {
    let length = text.chars().count();
    if length > MAX_REASON_CHARS {
        return Err(ReasonError { length });
    }
    Ok(text.to_owned())
}

pub(super) async fn delete(args: DeleteArgs) -> ExitCode {
    run(args.args, OperatorAction::Delete { force: args.force }).await
}

pub(super) async fn run(args: OperateArgs, action: OperatorAction) -> ExitCode {
    let answer = match send_request(&args, action).await {
        Ok(answer) => answer,
        Err(error) => {
            ui::report(&error);
            return ExitCode::from(2);
        }
    };
    let printed = if args.json {
        super::print_json(&answer)
    } else if answer.ok {
        ci::print(format!("{}\n", ui::plain(&answer.message)).as_bytes())
    } else {
        ui::note(&ui::plain(&answer.message));
        ExitCode::SUCCESS
    };
    if answer.ok { printed } else { ExitCode::FAILURE }
}

async fn send_request(args: &OperateArgs, action: OperatorAction) -> Result<OperatorReply, OperateError> {
    // A missing configuration file is an error only if no manager answers, because a running manager does not need it.
    let (state, missing_config) = match flags::non_empty(&args.state_dir) {
        Some(directory) => (directory, None),
        None => {
            let path = args.config.path();
            let path = std::path::absolute(&path).unwrap_or(path);
            (crate::runner::state_dir(&path).ok_or(QueryError::NoStateDir)?, Some(path).filter(|path| !path.exists()))
        }
    };
    let request = OperatorRequest {
        version: VERSION,
        action,
        name: args.name.clone(),
        runner: args.runner.clone(),
        group: args.group.clone(),
        user: ["SUDO_USER", "USER", "LOGNAME"].into_iter().find_map(|name| std::env::var(name).ok()),
        reason: args.reason.clone(),
    };
    let socket = operator_socket_path(&ledger_directory(&state))?;
    let stream = UnixStream::connect(&socket).await.map_err(|source| match (source.kind(), missing_config) {
        (io::ErrorKind::PermissionDenied, _) => OperateError::NotAllowed { socket: socket.clone(), source },
        (_, Some(path)) => QueryError::NoSuchConfiguration(path).into(),
        _ => OperateError::NoManager { directory: state.clone(), source },
    })?;
    let answer = tokio::time::timeout(REPLY_TIMEOUT, exchange(stream, &request)).await;
    let answer = answer.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    answer.map_err(|source| no_reply(&socket, source))
}

fn no_reply(socket: &Path, source: io::Error) -> OperateError {
    OperateError::NoReply { socket: socket.to_owned(), source }
}

async fn exchange(mut stream: UnixStream, request: &OperatorRequest) -> io::Result<OperatorReply> {
    let (read, mut write) = stream.split();
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    write.write_all(&line).await?;
    let mut answer = Vec::new();
    BufReader::new(read.take(MAX_REPLY_BYTES)).read_until(b'\n', &mut answer).await?;
    Ok(serde_json::from_slice(&answer)?)
}
