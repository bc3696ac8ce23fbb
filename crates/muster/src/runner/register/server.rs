//! What `register` says to the server, and takes back if it comes to nothing.

use muster_job::Secret;
use muster_job::short_token;
use muster_runner_api::client::{Client, ClientError};
use muster_runner_api::wire::{RegisterRequest, RunnerCredentials, TokenRequest, VersionInfo};

use super::args::ServerArgs;
use crate::config_file::{is_made_at_server, token_request};

/// The server, and who speaks to it.
#[derive(Clone)]
pub(super) struct Server {
    pub(super) client: Client,
    /// This manager.
    pub(super) system_id: String,
    /// What it can do, as far as the entry says by now.
    pub(super) info: VersionInfo,
}

/// What the server knows of this runner since now.
pub(super) struct Known {
    pub(super) server: Server,
    /// The runner's authentication token.
    pub(super) token: Secret,
}

impl Known {
    /// Takes it back: the manager, where the runner was made at the server, else the runner.
    pub(super) async fn undo(self) {
        let token = self.token.expose();
        let undone = if is_made_at_server(token) {
            self.server.client.unregister_manager(&self.server.token_request(token)).await
        } else {
            self.server.client.unregister(token).await
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

impl Server {
    fn token_request(&self, token: &str) -> TokenRequest {
        token_request(token, &self.system_id, self.info.clone())
    }

    /// Asks whether the token is valid.
    pub(super) async fn verify(&self, token: &str) -> Result<RunnerCredentials, ClientError> {
        let runner = short_token(token);
        let answer = self.client.verify(&self.token_request(token)).await;
        match &answer {
            Ok(_) => tracing::info!(runner, "Verifying runner... is valid"),
            Err(error) if error.is_unknown_token() => {
                tracing::error!(runner, %error, "Verifying runner... is not valid")
            }
            Err(error) => tracing::error!(runner, %error, "Verifying runner... failed"),
        }
        answer
    }

    /// Registers with a registration token.
    pub(super) async fn register(
        &self,
        token: &str,
        name: &str,
        answers: &ServerArgs,
    ) -> Result<RunnerCredentials, ClientError> {
        let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let request = RegisterRequest {
            token: token.to_owned(),
            info: self.info.clone(),
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
        let answer = self.client.register(&request).await;
        match &answer {
            Ok(_) => tracing::info!(runner, "Registering runner... succeeded"),
            Err(error) if error.is_unknown_token() => {
                tracing::error!(runner, %error, "Registering runner... forbidden (check registration token)");
            }
            Err(error) => tracing::error!(runner, %error, "Registering runner... failed"),
        }
        answer
    }
}
