//! The gRPC service of the wrapper.

use std::time::Duration;

use rustix::process::Signal;
use tonic::{Request, Response, Status as RpcError};

use super::child::{Child, RunnerProcessState};
use proto::process_wrapper_server::ProcessWrapper;
use proto::{
    CheckStatusRequest, InitForcefulShutdownRequest, InitGracefulShutdownRequest, ShutdownCallback, Status,
    StatusResponse,
};

#[expect(unreachable_pub, clippy::pedantic, reason = "generated")]
pub(super) mod proto {
    tonic::include_proto!("gitlab_com.gitlab_runner.runner_wrapper");
}

const CALLBACK_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_CALLBACK_ATTEMPTS: u32 = 5;

pub(super) struct Service {
    child: Child,
}

impl Service {
    pub(super) fn new(child: Child) -> Self {
        Self { child }
    }

    fn shut_down(&self, signal: Signal) -> Result<Response<StatusResponse>, RpcError> {
        match self.child.shut_down(signal) {
            Ok(state) => Ok(Response::new(status_response(&state))),
            Err(error) => Err(RpcError::internal(format!("failed to signal the runner: {error}"))),
        }
    }
}

#[tonic::async_trait]
impl ProcessWrapper for Service {
    async fn check_status(&self, _: Request<CheckStatusRequest>) -> Result<Response<StatusResponse>, RpcError> {
        Ok(Response::new(status_response(&self.child.state())))
    }

    async fn init_graceful_shutdown(
        &self,
        request: Request<InitGracefulShutdownRequest>,
    ) -> Result<Response<StatusResponse>, RpcError> {
        let callback = request.into_inner().shutdown_callback.filter(|callback| !callback.url.is_empty());
        let callback = callback
            .map(prepare_callback)
            .transpose()
            .map_err(|error| RpcError::invalid_argument(muster_job::error_chain(&error)))?;
        tracing::info!("[WRAPPER] graceful shutdown requested");
        let response = self.shut_down(Signal::QUIT)?;
        if let Some(callback) = callback {
            let mut states = self.child.states();
            // The task ends after the callback was sent, after the last attempt, or with the wrapper.
            tokio::spawn(async move {
                let stopped =
                    states.wait_for(|state| matches!(state, RunnerProcessState::Stopped { .. })).await.is_ok();
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
    ) -> Result<Response<StatusResponse>, RpcError> {
        tracing::info!("[WRAPPER] forceful shutdown requested");
        self.shut_down(Signal::TERM)
    }
}

fn status_response(state: &RunnerProcessState) -> StatusResponse {
    let (status, failure_reason) = match state {
        RunnerProcessState::Running => (Status::Running, String::new()),
        RunnerProcessState::InShutdown => (Status::InShutdown, String::new()),
        RunnerProcessState::Stopped { failure, .. } => (Status::Stopped, failure.clone()),
    };
    StatusResponse { status: status.into(), failure_reason }
}

/// HTTP request that the wrapper sends when the runner has exited.
struct Callback {
    client: reqwest::Client,
    request: reqwest::Request,
}

#[derive(Debug, thiserror::Error)]
enum CallbackError {
    #[error("`{0}` is not a valid HTTP method")]
    Method(String),
    #[error("`{url}` is not a valid URL")]
    Url { url: String, source: url::ParseError },
    #[error("failed to create the request")]
    Request(#[source] reqwest::Error),
}

/// Creates the HTTP request before the shutdown begins, so that the gRPC client gets an error if the request is
/// invalid.
fn prepare_callback(callback: ShutdownCallback) -> Result<Callback, CallbackError> {
    let method = if callback.method.is_empty() { "POST" } else { &callback.method };
    let method = method.parse::<reqwest::Method>().map_err(|_| CallbackError::Method(method.to_owned()))?;
    let url =
        callback.url.parse::<url::Url>().map_err(|source| CallbackError::Url { url: callback.url.clone(), source })?;
    let client =
        reqwest::Client::builder().http1_only().timeout(CALLBACK_TIMEOUT).build().map_err(CallbackError::Request)?;
    let headers = callback.headers.iter();
    let request = headers.fold(client.request(method, url), |request, (name, value)| request.header(name, value));
    let request = request.build().map_err(CallbackError::Request)?;
    Ok(Callback { client, request })
}

/// Sends the callback. Retries with exponential backoff.
async fn call_back(callback: &Callback) {
    let mut wait = Duration::from_secs(1);
    for attempt in 1..=MAX_CALLBACK_ATTEMPTS {
        // A request without a body can always be cloned.
        let Some(request) = callback.request.try_clone() else { return };
        match callback.client.execute(request).await.and_then(reqwest::Response::error_for_status) {
            Ok(_) => return tracing::info!("[WRAPPER] shutdown callback sent"),
            Err(error) => {
                let error = error.without_url();
                tracing::error!(%error, attempt, "[WRAPPER] failed to send the shutdown callback");
            }
        }
        if attempt < MAX_CALLBACK_ATTEMPTS {
            tokio::time::sleep(wait).await;
            wait *= 2;
        }
    }
}
