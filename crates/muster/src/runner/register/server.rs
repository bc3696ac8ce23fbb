//! What `register` says to the server, and takes back if it comes to nothing.

use muster_job::Secret;
use muster_manager::lower::short_token;
use muster_runner_api::client::{Client, ClientError};
use muster_runner_api::wire::{RegisterRequest, RunnerCredentials};

use super::args::ServerArgs;
use crate::runner::config::{info, is_made_at_server, token_request};

/// What the server knows of this runner since now.
pub(super) struct Known {
    /// The server.
    pub(super) client: Client,
    /// The runner's authentication token.
    pub(super) token: Secret,
    /// This manager.
    pub(super) system_id: String,
}

impl Known {
    /// Takes it back: the manager, where the runner was made at the server, else the runner.
    pub(super) async fn undo(self) {
        let token = self.token.expose();
        let undone = if is_made_at_server(token) {
            self.client.unregister_manager(&token_request(token, &self.system_id)).await
        } else {
            self.client.unregister(token).await
        };
        let runner = short_token(token);
        match undone {
            Ok(()) => tracing::info!(runner, "Unregistering runner from GitLab succeeded"),
            Err(error) => tracing::error!(
                runner,
                %error,
                "the runner was registered at the server and cannot be removed there; remove it by hand"
            ),
        }
    }
}

/// Asks whether the token is valid.
pub(super) async fn verify(client: &Client, token: &str, system_id: &str) -> Result<RunnerCredentials, ClientError> {
    let runner = short_token(token);
    let answer = client.verify(&token_request(token, system_id)).await;
    match &answer {
        Ok(_) => tracing::info!(runner, "Verifying runner... is valid"),
        Err(error) if error.is_unknown_token() => tracing::error!(runner, %error, "Verifying runner... is not valid"),
        Err(error) => tracing::error!(runner, %error, "Verifying runner... failed"),
    }
    answer
}

/// Registers with a registration token.
pub(super) async fn register(
    client: &Client,
    token: &str,
    name: &str,
    answers: &ServerArgs,
) -> Result<RunnerCredentials, ClientError> {
    let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let request = RegisterRequest {
        token: token.to_owned(),
        info: info(),
        description: some(name),
        maintenance_note: some(&answers.maintenance_note),
        tag_list: some(&answers.tag_list),
        run_untagged: answers.run_untagged || answers.tag_list.is_empty(),
        locked: answers.locked,
        access_level: some(&answers.access_level),
        maximum_timeout: Some(answers.maximum_timeout).filter(|seconds| *seconds != 0),
        paused: answers.paused,
    };
    let runner = short_token(token);
    let answer = client.register(&request).await;
    match &answer {
        Ok(_) => tracing::info!(runner, "Registering runner... succeeded"),
        Err(error) if error.is_unknown_token() => {
            tracing::error!(runner, %error, "Registering runner... forbidden (check registration token)");
        }
        Err(error) => tracing::error!(runner, %error, "Registering runner... failed"),
    }
    answer
}
