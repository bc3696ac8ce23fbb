//! Requests of `register` to the server, and their reversal if the registration fails.

use muster_job::Secret;
use muster_job::short_token;
use muster_runner_api::client::{Client, ClientError};
use muster_runner_api::wire::{RegisterRequest, RunnerCredentials, TokenRequest, VersionInfo};

use super::args::ServerArgs;
use crate::config_file::{is_created_at_server, token_request};

#[derive(Clone)]
pub(super) struct Server {
    pub(super) client: Client,
    pub(super) system_id: String,
    /// Description of this manager in the requests. It depends on the settings of the entry.
    pub(super) info: VersionInfo,
}

pub(super) struct RegisteredRunner {
    pub(super) server: Server,
    pub(super) token: Secret,
}

impl RegisteredRunner {
    /// Unregisters only the manager if the runner was created on the server, or else the runner.
    pub(super) async fn undo(self) {
        let token = self.token.expose();
        let result = if is_created_at_server(token) {
            self.server.client.unregister_manager(&self.server.token_request(token)).await
        } else {
            self.server.client.unregister(token).await
        };
        let runner = short_token(token);
        match result {
            Ok(()) => tracing::info!(runner, "Unregistering runner from GitLab succeeded"),
            Err(error) => tracing::error!(
                runner,
                %error,
                "failed to delete the registered runner on the server; delete it manually"
            ),
        }
    }
}

impl Server {
    fn token_request(&self, token: &str) -> TokenRequest {
        token_request(token, &self.system_id, self.info.clone())
    }

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

    pub(super) async fn register(
        &self,
        token: &str,
        name: &str,
        args: &ServerArgs,
    ) -> Result<RunnerCredentials, ClientError> {
        let non_empty = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let request = RegisterRequest {
            token: token.to_owned(),
            info: self.info.clone(),
            description: non_empty(name),
            maintenance_note: non_empty(&args.maintenance_note),
            tag_list: non_empty(&args.tag_list),
            run_untagged: args.run_untagged || args.tag_list.is_empty(),
            locked: args.locked,
            access_level: non_empty(&args.access_level),
            maximum_timeout: Some(args.maximum_timeout).filter(|seconds| *seconds != 0),
            paused: args.paused,
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
