//! Secrets from OpenBao, and from servers that misbehave.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod openbao;
mod servers;

use std::time::Duration;

use muster_job::Secret;
use muster_secret_store::{Engine, VaultError, VaultOptions, VaultSecret, VaultServer, VaultSession};

/// Returns options without retries. The retry delay is short, for tests that enable retries.
pub(crate) fn options() -> VaultOptions {
    VaultOptions { max_retries: 0, retry_delay: Duration::from_millis(1), ..VaultOptions::default() }
}

/// Returns the field `password` at path `app`. Jobs read it with the ID token `jwt` and the role `ci`.
pub(crate) fn secret(url: &str, jwt: &str, engine: &str, mount: &str) -> VaultSecret {
    VaultSecret {
        server: VaultServer {
            url: url.to_owned(),
            namespace: String::new(),
            login_path: "auth/jwt/login".to_owned(),
            jwt: Secret::new(jwt),
            role: Some("ci".to_owned()),
        },
        engine: Engine { name: engine.to_owned(), path: mount.to_owned() },
        path: "app".to_owned(),
        field: "password".to_owned(),
    }
}

pub(crate) async fn fetch(options: &VaultOptions, secret: &VaultSecret) -> Result<String, VaultError> {
    let mut session = VaultSession::open(options).await?;
    session.fetch(secret).await.map(|value| value.expose().to_owned())
}
