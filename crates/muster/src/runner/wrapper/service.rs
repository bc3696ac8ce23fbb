//! The gRPC service.

use std::time::Duration;

use rustix::process::Signal;
use tonic::{Request, Response, Status as Refusal};

use super::child::{Child, State};
use proto::process_wrapper_server::ProcessWrapper;
use proto::{
    CheckStatusRequest, InitForcefulShutdownRequest, InitGracefulShutdownRequest, ShutdownCallback, Status,
    StatusResponse,
};

/// The generated types.
#[expect(unreachable_pub, clippy::too_many_lines, reason = "generated")]
pub(super) mod proto {
    tonic::include_proto!("gitlab_com.gitlab_runner.runner_wrapper");
}

/// What a callback may take; it is tried a few times.
const CALLBACK_LIMIT: Duration = Duration::from_secs(30);
const CALLBACK_TRIES: u32 = 5;

/// The service of one process.
pub(super) struct Service {
    child: Child,
}

impl Service {
    pub(super) fn new(child: Child) -> Self {
        Self { child }
    }

    fn shut_down(&self, signal: Signal) -> Result<Response<StatusResponse>, Refusal> {
        match self.child.shut_down(signal) {
            Ok(state) => Ok(Response::new(answer(&state))),
            Err(error) => Err(Refusal::internal(format!("the runner cannot be asked to end: {error}"))),
        }
    }
}

#[tonic::async_trait]
impl ProcessWrapper for Service {
    async fn check_status(&self, _: Request<CheckStatusRequest>) -> Result<Response<StatusResponse>, Refusal> {
        Ok(Response::new(answer(&self.child.state())))
    }

    async fn init_graceful_shutdown(
        &self,
        request: Request<InitGracefulShutdownRequest>,
    ) -> Result<Response<StatusResponse>, Refusal> {
        let callback = request.into_inner().shutdown_callback.filter(|callback| !callback.url.is_empty());
        let callback = callback.map(prepared).transpose().map_err(Refusal::invalid_argument)?;
        tracing::info!("[WRAPPER] a graceful shutdown is asked for");
        let response = self.shut_down(Signal::QUIT)?;
        if let Some(callback) = callback {
            let mut states = self.child.states();
            // Its end is the process's end and a few tries; with the wrapper it ends too.
            tokio::spawn(async move {
                let stopped = states.wait_for(|state| matches!(state, State::Stopped { .. })).await.is_ok();
                if stopped {
                    call_back(&callback).await;
                }
            });
        }
        Ok(response)
    }

    async fn init_forceful_shutdown(
        &self,
        _: Request<InitForcefulShutdownRequest>,
    ) -> Result<Response<StatusResponse>, Refusal> {
        tracing::info!("[WRAPPER] a forceful shutdown is asked for");
        self.shut_down(Signal::TERM)
    }
}

fn answer(state: &State) -> StatusResponse {
    let (status, failure_reason) = match state {
        State::Running => (Status::Running, String::new()),
        State::InShutdown => (Status::InShutdown, String::new()),
        State::Stopped { failure, .. } => (Status::Stopped, failure.clone()),
    };
    StatusResponse { status: status.into(), failure_reason }
}

/// A request that is sent later.
struct Callback {
    client: reqwest::Client,
    request: reqwest::Request,
}

/// What is wrong with a callback is told now, not when it is too late.
fn prepared(callback: ShutdownCallback) -> Result<Callback, String> {
    let method = if callback.method.is_empty() { "POST" } else { &callback.method };
    let method = method.parse::<reqwest::Method>().map_err(|error| format!("method `{method}`: {error}"))?;
    let url = callback.url.parse::<reqwest::Url>().map_err(|error| format!("url `{}`: {error}", callback.url))?;
    let client = reqwest::Client::builder().timeout(CALLBACK_LIMIT).build().map_err(|error| error.to_string())?;
    let headers = callback.headers.iter();
    let request = headers.fold(client.request(method, url), |request, (name, value)| request.header(name, value));
    let request = request.build().map_err(|error| format!("the callback cannot be sent: {error}"))?;
    Ok(Callback { client, request })
}

async fn call_back(callback: &Callback) {
    let mut wait = Duration::from_secs(1);
    for attempt in 1..=CALLBACK_TRIES {
        // Without a body there is always a copy.
        let Some(request) = callback.request.try_clone() else { return };
        match callback.client.execute(request).await.and_then(reqwest::Response::error_for_status) {
            Ok(_) => return tracing::info!("[WRAPPER] told that the runner has ended"),
            Err(error) => {
                let error = error.without_url();
                tracing::error!(%error, attempt, "[WRAPPER] cannot tell that the runner has ended");
            }
        }
        if attempt < CALLBACK_TRIES {
            tokio::time::sleep(wait).await;
            wait *= 2;
        }
    }
}
