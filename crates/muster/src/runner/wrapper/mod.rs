//! `wrapper`: runs the runner as a child process, and lets fleet operators stop it over gRPC.

mod child;
mod listen;
mod service;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use child::{Child, RunnerProcessState};
use listen::Address;

/// Arguments of `gitlab-runner wrapper`.
#[derive(Debug, clap::Args)]
pub(crate) struct WrapperArgs {
    /// Address to listen on: unix:///PATH, or tcp://HOST:PORT, which has no authentication. [default: wrapper.sock in the user's runtime
    /// directory]
    #[arg(long, value_name = "URL", value_parser = listen::address)]
    grpc_listen: Option<Address>,
    /// Time for the runner to exit when the wrapper is stopped. Then the runner is killed.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = crate::flags::go_duration)]
    process_termination_timeout: Duration,
    /// Arguments of the runner, such as `run --config FILE`.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    arguments: Vec<OsString>,
}

#[derive(Debug, thiserror::Error)]
enum WrapperError {
    #[error("failed to choose a socket; set --grpc-listen to unix:///PATH")]
    NoSocket(#[source] muster_fleeting::host::NoRuntimeDirectory),
    #[error("failed to listen on {address}")]
    Listen { address: String, source: std::io::Error },
    #[error("failed to start the runner")]
    Spawn(#[source] std::io::Error),
    #[error("failed to install a signal handler")]
    Signals(#[source] std::io::Error),
    #[error("the gRPC server failed")]
    Serve(#[source] tonic::transport::Error),
}

pub(super) fn run(args: &WrapperArgs) -> ExitCode {
    crate::runtime::block_on_one_thread(async {
        match wrap(args).await {
            Ok(code) => code,
            Err(error) => super::error::exit_code(Err(error)),
        }
    })
}

/// Runs until the runner exits without a client's request, a signal arrives, or the gRPC server fails.
///
/// If the runner exits because a client requested it, the wrapper continues, and answers clients with `stopped`.
async fn wrap(args: &WrapperArgs) -> Result<ExitCode, WrapperError> {
    let address = match &args.grpc_listen {
        Some(address) => address.clone(),
        None => listen::default_address().map_err(WrapperError::NoSocket)?,
    };
    let incoming =
        listen::bind(&address).await.map_err(|source| WrapperError::Listen { address: address.to_string(), source })?;
    if let Address::Tcp(_) = address {
        tracing::warn!(
            %address,
            "[WRAPPER] TCP has no authentication, so any client that can connect can stop the runner; a Unix socket is safer"
        );
    }
    let mut terminate = signal(SignalKind::terminate()).map_err(WrapperError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(WrapperError::Signals)?;
    let child = Child::start(&args.arguments).map_err(WrapperError::Spawn)?;
    tracing::info!(pid = child.pid(), %address, "[WRAPPER] runner started");
    let stop = CancellationToken::new();
    let server = incoming.serve(service::Service::new(child.clone()), stop.clone());
    tokio::pin!(server);
    let mut states = child.states();
    let stop_signal = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    tokio::pin!(stop_signal);
    let code = loop {
        let state = states.borrow_and_update().clone();
        if let RunnerProcessState::Stopped { code, exit_requested: false, .. } = state {
            break code;
        }
        tokio::select! {
            () = &mut stop_signal => {
                tracing::info!("[WRAPPER] received a stop signal");
                break child.stop(args.process_termination_timeout).await;
            }
            changed = states.changed() => {
                if changed.is_err() {
                    break 1;
                }
            }
            result = &mut server => {
                child.stop(args.process_termination_timeout).await;
                result.map_err(WrapperError::Serve)?;
                break 1;
            }
        }
    };
    stop.cancel();
    Ok(ExitCode::from(code))
}
