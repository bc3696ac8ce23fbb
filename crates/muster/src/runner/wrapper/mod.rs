//! `wrapper`: runs the runner as a child, and lets a fleet's operator stop it over gRPC (runner-api 8).

mod child;
mod listen;
mod service;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use child::{Child, State};
use listen::Address;

/// Arguments of `wrapper`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where to listen: unix:///PATH, or tcp://HOST:PORT, which has no authentication. [default: wrapper.sock in this user's
    /// runtime directory]
    #[arg(long, value_name = "URL", value_parser = listen::address)]
    grpc_listen: Option<Address>,
    /// How long the runner may take to end when the wrapper is asked to end; then it is killed.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = crate::flags::go_duration)]
    process_termination_timeout: Duration,
    /// The runner's own arguments, such as `run --config FILE`.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    arguments: Vec<OsString>,
}

#[derive(Debug, thiserror::Error)]
enum WrapperError {
    #[error("cannot choose a socket; name one with --grpc-listen unix:///PATH")]
    NoSocket(#[source] muster_fleeting::host::NoRuntimeDirectory),
    #[error("cannot listen at {address}")]
    Listen { address: String, source: std::io::Error },
    #[error("cannot start the runner")]
    Spawn(#[source] std::io::Error),
    #[error("cannot watch for signals")]
    Signals(#[source] std::io::Error),
    #[error("the gRPC server ended")]
    Serve(#[source] tonic::transport::Error),
}

/// Runs the command.
pub(super) fn run(args: &Args) -> ExitCode {
    crate::runtime::block_on_one_thread(async {
        match wrap(args).await {
            Ok(code) => code,
            Err(error) => super::error::ended(Err(error)),
        }
    })
}

/// Until the runner has ended by itself, or this process is asked to end. After a shutdown that was asked for over gRPC
/// the wrapper goes on answering `stopped`: whoever asked for it ends it then.
async fn wrap(args: &Args) -> Result<ExitCode, WrapperError> {
    let address = match &args.grpc_listen {
        Some(address) => address.clone(),
        None => listen::default_address().map_err(WrapperError::NoSocket)?,
    };
    let incoming =
        listen::bind(&address).await.map_err(|source| WrapperError::Listen { address: address.to_string(), source })?;
    if let Address::Tcp(_) = address {
        tracing::warn!(
            %address,
            "[WRAPPER] TCP is without authentication: whoever can connect can stop the runner; prefer a unix socket"
        );
    }
    let mut terminate = signal(SignalKind::terminate()).map_err(WrapperError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(WrapperError::Signals)?;
    let child = Child::start(&args.arguments).map_err(WrapperError::Spawn)?;
    tracing::info!(pid = child.pid(), %address, "[WRAPPER] the runner is started");
    let stop = CancellationToken::new();
    let server = incoming.serve(service::Service::new(child.clone()), stop.clone());
    tokio::pin!(server);
    let mut states = child.states();
    let asked = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    tokio::pin!(asked);
    let code = loop {
        let state = states.borrow_and_update().clone();
        if let State::Stopped { code, asked: false, .. } = state {
            break code;
        }
        tokio::select! {
            () = &mut asked => {
                tracing::info!("[WRAPPER] asked to end");
                break child.end(args.process_termination_timeout).await;
            }
            changed = states.changed() => {
                if changed.is_err() {
                    break 1;
                }
            }
            served = &mut server => {
                child.end(args.process_termination_timeout).await;
                served.map_err(WrapperError::Serve)?;
                break 1;
            }
        }
    };
    stop.cancel();
    Ok(ExitCode::from(code))
}
