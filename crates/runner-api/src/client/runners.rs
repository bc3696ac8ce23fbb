//! The calls about the runner itself (runner-api 1).

use http::{Method, StatusCode};
use serde_json::json;

use super::{Client, ClientError, observe, reply, send};
use crate::wire::{RegisterRequest, RunnerCredentials, TokenRequest};

const UNREGISTER: &str = "unregister";
const RESET: &str = "reset token";

impl Client {
    /// `POST /runners`: registers with a registration token.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn register(&self, request: &RegisterRequest) -> Result<RunnerCredentials, ClientError> {
        let call = self.json(Method::POST, "runners", request).header("RUNNER-TOKEN", &request.token);
        reply::decode("register", send("register", call).await?, &[StatusCode::CREATED]).await
    }

    /// `POST /runners/verify`: whether the token is that of a runner.
    ///
    /// # Errors
    /// [`ClientError::Forbidden`] for a token that is not.
    pub async fn verify(&self, request: &TokenRequest) -> Result<RunnerCredentials, ClientError> {
        let call = self.json(Method::POST, "runners/verify", request).header("RUNNER-TOKEN", &request.token);
        reply::decode("verify", send("verify", call).await?, &[StatusCode::OK]).await
    }

    /// `DELETE /runners`: the runner goes, with all its managers.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn unregister(&self, token: &str) -> Result<(), ClientError> {
        let call = self.json(Method::DELETE, "runners", &json!({ "token": token })).header("RUNNER-TOKEN", token);
        gone(send(UNREGISTER, call).await?).await
    }

    /// `DELETE /runners/managers`: this manager leaves, the runner stays.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn unregister_manager(&self, request: &TokenRequest) -> Result<(), ClientError> {
        let call = self.json(Method::DELETE, "runners/managers", request).header("RUNNER-TOKEN", &request.token);
        gone(send(UNREGISTER, call).await?).await
    }

    /// `POST /runners/reset_authentication_token`: a new token; the old one is worth nothing from then on.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn reset_token(&self, token: &str) -> Result<RunnerCredentials, ClientError> {
        let call = self.json(Method::POST, "runners/reset_authentication_token", &json!({ "token": token }));
        reply::decode(RESET, self.send(observe::RESET_TOKEN, RESET, call).await?, &[StatusCode::CREATED]).await
    }

    /// The same for the runner with this id, by a personal access token instead of the runner's.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn reset_token_with_pat(&self, runner: i64, pat: &str) -> Result<RunnerCredentials, ClientError> {
        let path = format!("runners/{runner}/reset_authentication_token");
        // GitLab's runner sends a JSON null here, and no other token.
        let call = self.json(Method::POST, &path, &serde_json::Value::Null).header("PRIVATE-TOKEN", pat);
        reply::decode(RESET, self.send(observe::RESET_TOKEN, RESET, call).await?, &[StatusCode::CREATED]).await
    }
}

async fn gone(response: reqwest::Response) -> Result<(), ClientError> {
    if response.status() == StatusCode::NO_CONTENT {
        return Ok(());
    }
    Err(reply::refusal(UNREGISTER, response).await)
}
