//! Calls about the runner (docs/spec/runner-api.md, section 1).

use http::{Method, StatusCode};
use serde_json::json;

use super::{Client, ClientError, observe, reply, send};
use crate::wire::{RegisterRequest, RunnerCredentials, TokenRequest};

const UNREGISTER: &str = "unregister";
const RESET: &str = "reset token";

impl Client {
    /// Registers a runner with a registration token (`POST /runners`).
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn register(&self, request: &RegisterRequest) -> Result<RunnerCredentials, ClientError> {
        let call = self.json(Method::POST, "runners", request).header("RUNNER-TOKEN", &request.token);
        reply::decode("register", send("register", call).await?, &[StatusCode::CREATED]).await
    }

    /// Checks that the token belongs to a runner (`POST /runners/verify`).
    ///
    /// # Errors
    /// [`ClientError`]: [`ClientError::Forbidden`] for an unknown token.
    pub async fn verify(&self, request: &TokenRequest) -> Result<RunnerCredentials, ClientError> {
        let call = self.json(Method::POST, "runners/verify", request).header("RUNNER-TOKEN", &request.token);
        reply::decode("verify", send("verify", call).await?, &[StatusCode::OK]).await
    }

    /// Deletes the runner with all its managers (`DELETE /runners`).
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn unregister(&self, token: &str) -> Result<(), ClientError> {
        let call = self.json(Method::DELETE, "runners", &json!({ "token": token })).header("RUNNER-TOKEN", token);
        expect_deleted(send(UNREGISTER, call).await?).await
    }

    /// Deletes this manager, but not the runner (`DELETE /runners/managers`).
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn unregister_manager(&self, request: &TokenRequest) -> Result<(), ClientError> {
        let call = self.json(Method::DELETE, "runners/managers", request).header("RUNNER-TOKEN", &request.token);
        expect_deleted(send(UNREGISTER, call).await?).await
    }

    /// Replaces the token (`POST /runners/reset_authentication_token`).
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn reset_token(&self, token: &str) -> Result<RunnerCredentials, ClientError> {
        let call = self.json(Method::POST, "runners/reset_authentication_token", &json!({ "token": token }));
        reply::decode(RESET, self.send(observe::RESET_TOKEN, RESET, call).await?, &[StatusCode::CREATED]).await
    }

    /// Replaces the token of the runner with this ID. A personal access token authorizes the call.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn reset_token_with_pat(&self, runner: i64, pat: &str) -> Result<RunnerCredentials, ClientError> {
        let path = format!("runners/{runner}/reset_authentication_token");
        // As in gitlab-runner, the body is JSON null, and no runner token is sent.
        let call = self.json(Method::POST, &path, &serde_json::Value::Null).header("PRIVATE-TOKEN", pat);
        reply::decode(RESET, self.send(observe::RESET_TOKEN, RESET, call).await?, &[StatusCode::CREATED]).await
    }
}

async fn expect_deleted(response: reqwest::Response) -> Result<(), ClientError> {
    if response.status() == StatusCode::NO_CONTENT {
        return Ok(());
    }
    Err(reply::refusal(UNREGISTER, response).await)
}
