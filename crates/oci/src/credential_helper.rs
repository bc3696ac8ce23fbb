//! Credential helpers: programs `docker-credential-<name>`.

use std::ffi::OsString;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::credentials::{Credentials, HelperError};

const HUB_KEY: &str = "https://index.docker.io/v1/";
/// User name by which a helper shows that the secret is an identity token.
const TOKEN_USER: &str = "<token>";
/// Timeout of a credential helper, which may prompt the user.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Maximum number of characters of a helper's message in an error.
const MAX_MESSAGE: usize = 200;

/// A credential helper.
#[derive(Debug, Clone)]
pub struct CredentialHelper {
    program: String,
    search_path: Option<OsString>,
}

impl CredentialHelper {
    /// Returns the helper `docker-credential-<name>`.
    ///
    /// # Errors
    /// [`HelperError::Name`] if the name is empty, or has characters other than ASCII letters, digits, `-`, `_` and
    /// `.`.
    pub fn new(name: &str) -> Result<Self, HelperError> {
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)) {
            return Err(HelperError::Name);
        }
        Ok(Self { program: format!("docker-credential-{name}"), search_path: None })
    }

    /// Searches for the program in these directories instead of `PATH`. They also become the program's `PATH`.
    #[must_use]
    pub fn with_search_path(mut self, directories: impl Into<OsString>) -> Self {
        self.search_path = Some(directories.into());
        self
    }

    /// Returns the credentials for a registry, if the helper has them.
    pub async fn get(&self, registry: &str) -> Result<Option<Credentials>, HelperError> {
        let output = self.call("get", key(registry).as_bytes()).await?;
        output.map(|output| parse_response(&output).ok_or(HelperError::Response)).transpose().map(Option::flatten)
    }

    /// Stores the credentials for a registry.
    pub async fn store(&self, registry: &str, credentials: &Credentials) -> Result<(), HelperError> {
        let entry =
            json!({"ServerURL": key(registry), "Username": credentials.username, "Secret": credentials.password});
        self.call("store", entry.to_string().as_bytes()).await.map(drop)
    }

    /// Calls the helper. `None` means that `get` found no credentials.
    async fn call(&self, verb: &str, input: &[u8]) -> Result<Option<Vec<u8>>, HelperError> {
        let mut command = Command::new(&self.program);
        command.arg(verb).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        if let Some(directories) = &self.search_path {
            command.env("PATH", directories);
        }
        let mut child = command.spawn().map_err(HelperError::Run)?;
        let work = async {
            if let Some(mut stdin) = child.stdin.take() {
                // An error is ignored here, because the exit status shows whether the helper succeeded.
                let _ = stdin.write_all(input).await;
            }
            child.wait_with_output().await
        };
        let output = tokio::time::timeout(TIMEOUT, work)
            .await
            .map_err(|_| HelperError::Timeout { verb: verb.to_owned(), timeout: TIMEOUT })?
            .map_err(HelperError::Run)?;
        if output.status.success() {
            return Ok(Some(output.stdout));
        }
        let text = String::from_utf8_lossy(if output.stdout.is_empty() { &output.stderr } else { &output.stdout });
        if verb == "get" && text.contains("credentials not found") {
            return Ok(None);
        }
        let message = text.trim().chars().take(MAX_MESSAGE).collect();
        Err(HelperError::Failed { verb: verb.to_owned(), status: output.status, message })
    }
}

/// Parses a response. The outer `None` means that it is invalid, and the inner `None` that it has no credentials.
fn parse_response(response: &[u8]) -> Option<Option<Credentials>> {
    let response: Value = serde_json::from_slice(response).ok()?;
    let text = |name: &str| response.get(name).and_then(Value::as_str).map(str::to_owned);
    let (username, password) = (text("Username")?, text("Secret")?);
    let is_identity_token = username == TOKEN_USER;
    let username = if is_identity_token { String::new() } else { username };
    Some((!password.is_empty()).then_some(Credentials { username, password, is_identity_token }))
}

/// Returns the key of a registry for configuration files and helpers.
pub(crate) fn key(registry: &str) -> String {
    match registry {
        "docker.io" | "index.docker.io" | "registry-1.docker.io" => HUB_KEY.to_owned(),
        other => other.to_owned(),
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    fn helper(script: &str) -> (tempfile::TempDir, CredentialHelper) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("docker-credential-test");
        muster_test_prerequisites::create_program(&file, format!("#!/bin/sh\n{script}\n"));
        let path = format!("{}:/usr/bin:/bin", dir.path().display());
        (dir, CredentialHelper::new("test").unwrap().with_search_path(path))
    }

    #[tokio::test]
    async fn helper_gets_the_registry_on_its_input_and_returns_credentials() {
        let (_dir, helper) = helper(r#"read -r server; printf '{"Username":"u","Secret":"%s"}' "$1 $server""#);
        let found = helper.get("r.example:5000").await.unwrap().unwrap();
        assert_eq!((found.username.as_str(), found.password.as_str()), ("u", "get r.example:5000"));
        let hub = helper.get("docker.io").await.unwrap().unwrap();
        assert_eq!(hub.password, "get https://index.docker.io/v1/");
    }

    #[tokio::test]
    async fn identity_token_has_no_user_name() {
        let (_dir, helper) = helper(r#"echo '{"Username":"<token>","Secret":"t"}'"#);
        let found = helper.get("r.example").await.unwrap().unwrap();
        assert_eq!((found.username.as_str(), found.is_identity_token), ("", true));
    }

    #[tokio::test]
    async fn missing_credentials_are_not_an_error_but_other_failures_are() {
        let (_dir, none) = helper("echo 'credentials not found in native keychain'; exit 1");
        assert_eq!(none.get("r.example").await.unwrap(), None);
        let (_dir, broken) = helper("echo 'the keychain is locked'; exit 1");
        let error = broken.get("r.example").await.unwrap_err().to_string();
        assert!(error.contains("the keychain is locked"), "{error}");
        let (_dir, nonsense) = helper("echo '[]'");
        assert!(matches!(nonsense.get("r.example").await, Err(HelperError::Response)));
    }

    #[test]
    fn name_with_a_path_is_rejected() {
        for name in ["", "../evil", "a/b", "a b"] {
            assert!(matches!(CredentialHelper::new(name), Err(HelperError::Name)), "{name:?}");
        }
    }
}
