//! Docker's credentials: `config.json` in `DOCKER_CONFIG` or `~/.docker`, and credential helpers.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::credentials::{Credentials, CredentialsError, HelperError};

/// Key of Docker Hub, from a time when it was the only registry.
const HUB_KEY: &str = "https://index.docker.io/v1/";
/// User name which means that the secret is an identity token.
const TOKEN_USER: &str = "<token>";
/// Timeout of a credential helper, which may prompt the user.
const HELPER_TIMEOUT: Duration = Duration::from_secs(120);

/// Docker's configuration file.
#[derive(Debug, Clone)]
pub struct DockerConfig {
    path: PathBuf,
}

impl DockerConfig {
    /// Uses the file of this environment: in `DOCKER_CONFIG`, or else in `~/.docker`.
    ///
    /// # Errors
    /// [`CredentialsError::NoHome`].
    pub fn from_environment() -> Result<Self, CredentialsError> {
        let set = |key| std::env::var_os(key).filter(|value| !value.is_empty()).map(PathBuf::from);
        let directory = set("DOCKER_CONFIG").or_else(|| set("HOME").map(|home| home.join(".docker")));
        Ok(Self::in_directory(&directory.ok_or(CredentialsError::NoHome)?))
    }

    /// Uses the file in a directory.
    #[must_use]
    pub fn in_directory(directory: &Path) -> Self {
        Self { path: directory.join("config.json") }
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn read(&self) -> Result<Map<String, Value>, CredentialsError> {
        let path = || self.path.clone();
        let text = match std::fs::read(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Map::new()),
            Err(source) => return Err(CredentialsError::File { path: path(), operation: "read", source }),
        };
        if text.iter().all(u8::is_ascii_whitespace) {
            return Ok(Map::new());
        }
        match serde_json::from_slice(&text) {
            Ok(Value::Object(config)) => Ok(config),
            Ok(_) => Err(CredentialsError::Content { path: path(), what: "not a JSON object".to_owned() }),
            Err(source) => Err(CredentialsError::Json { path: path(), source }),
        }
    }

    /// Returns the credentials for a registry, if there are any.
    ///
    /// # Errors
    /// [`CredentialsError`].
    pub async fn get(&self, registry: &str) -> Result<Option<Credentials>, CredentialsError> {
        let config = self.read()?;
        let key = key(registry);
        if let Some(helper) = helper(&config, &key) {
            return self
                .call_helper(&helper, "get", key.as_bytes())
                .await
                .map(|output| output.as_deref().and_then(parse_helper_response));
        }
        let Some(auths) = config.get("auths").and_then(Value::as_object) else { return Ok(None) };
        let entry = auths
            .iter()
            .find(|(name, _)| **name == key)
            .or_else(|| auths.iter().find(|(name, _)| is_same_registry(name, &key)));
        let Some((_, entry)) = entry else { return Ok(None) };
        let text = |name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default();
        if !text("identitytoken").is_empty() {
            let password = text("identitytoken").to_owned();
            return Ok(Some(Credentials { username: String::new(), password, is_identity_token: true }));
        }
        if !text("username").is_empty() {
            return Ok(Some(Credentials::new(text("username"), text("password"))));
        }
        if text("auth").is_empty() {
            return Ok(None);
        }
        let decoded = STANDARD.decode(text("auth").trim()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        match decoded.as_deref().and_then(|text| text.split_once(':')) {
            Some((username, password)) => Ok(Some(Credentials::new(username, password.trim_end_matches('\0')))),
            None => Err(CredentialsError::Content {
                path: self.path.clone(),
                what: format!("auths.{key}.auth is not NAME:PASSWORD in base64"),
            }),
        }
    }

    /// Stores credentials for a registry.
    /// Uses its credential helper if one is configured, or else the file, which only its owner can read. The rest of the file is kept.
    ///
    /// # Errors
    /// [`CredentialsError`].
    pub async fn put(&self, registry: &str, credentials: &Credentials) -> Result<(), CredentialsError> {
        let mut config = self.read()?;
        let key = key(registry);
        if let Some(helper) = helper(&config, &key) {
            let entry = json!({"ServerURL": key, "Username": credentials.username, "Secret": credentials.password});
            return self.call_helper(&helper, "store", entry.to_string().as_bytes()).await.map(drop);
        }
        let auths = config.entry("auths").or_insert_with(|| json!({}));
        let Some(auths) = auths.as_object_mut() else {
            let what = "auths is not a JSON object".to_owned();
            return Err(CredentialsError::Content { path: self.path.clone(), what });
        };
        auths.retain(|name, _| *name == key || !is_same_registry(name, &key));
        let auth = STANDARD.encode(format!("{}:{}", credentials.username, credentials.password));
        auths.insert(key, json!({ "auth": auth }));
        self.write(&config).map_err(|source| CredentialsError::File {
            path: self.path.clone(),
            operation: "write",
            source,
        })
    }

    /// Replaces the file atomically. Other users can never read it.
    fn write(&self, config: &Map<String, Value>) -> std::io::Result<()> {
        // If the file is a symbolic link, its target is replaced.
        let path = std::fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone());
        let directory = path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(directory)?;
        let mut new = tempfile::Builder::new()
            .prefix(".config.json.")
            .permissions(std::fs::Permissions::from_mode(0o600))
            .tempfile_in(directory)?;
        new.write_all(serde_json::to_string_pretty(config)?.as_bytes())?;
        new.as_file().sync_all()?;
        new.persist(&path).map_err(|error| error.error)?;
        File::open(directory)?.sync_all()
    }

    /// Calls a credential helper. Returns `None` if it has no credentials.
    async fn call_helper(&self, name: &str, verb: &str, input: &[u8]) -> Result<Option<Vec<u8>>, CredentialsError> {
        let failed = |error| CredentialsError::Helper {
            helper: name.to_owned(),
            config: self.path.clone(),
            source: Box::new(error),
        };
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)) {
            return Err(failed(HelperError::Name));
        }
        let mut command = Command::new(format!("docker-credential-{name}"));
        command.arg(verb).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().map_err(|error| failed(HelperError::Run(error)))?;
        let work = async {
            if let Some(mut stdin) = child.stdin.take() {
                // A helper that does not read its input reports an error by its exit status.
                let _ = stdin.write_all(input).await;
            }
            child.wait_with_output().await
        };
        let output = tokio::time::timeout(HELPER_TIMEOUT, work)
            .await
            .map_err(|_| failed(HelperError::Timeout { verb: verb.to_owned(), timeout: HELPER_TIMEOUT }))?
            .map_err(|error| failed(HelperError::Run(error)))?;
        if output.status.success() {
            return Ok(Some(output.stdout));
        }
        let text = String::from_utf8_lossy(if output.stdout.is_empty() { &output.stderr } else { &output.stdout });
        if verb == "get" && text.contains("credentials not found") {
            return Ok(None);
        }
        let message = text.trim().chars().take(200).collect();
        Err(failed(HelperError::Failed { verb: verb.to_owned(), status: output.status, message }))
    }
}

/// Parses a helper's response.
fn parse_helper_response(response: &[u8]) -> Option<Credentials> {
    let response: Value = serde_json::from_slice(response).ok()?;
    let text = |name: &str| response.get(name).and_then(Value::as_str).map(str::to_owned);
    let (username, password) = (text("Username")?, text("Secret").filter(|secret| !secret.is_empty())?);
    let is_identity_token = username == TOKEN_USER;
    Some(Credentials {
        username: if is_identity_token { String::new() } else { username },
        password,
        is_identity_token,
    })
}

/// Returns the key of a registry in the file.
fn key(registry: &str) -> String {
    match registry {
        "docker.io" | "index.docker.io" | "registry-1.docker.io" => HUB_KEY.to_owned(),
        other => other.to_owned(),
    }
}

/// Returns whether a name and a key denote the same registry. Old entries have a scheme and a path.
fn is_same_registry(name: &str, key: &str) -> bool {
    let host = |text: &str| {
        let text = text.trim_start_matches("https://").trim_start_matches("http://");
        text.split('/').next().unwrap_or_default().to_owned()
    };
    host(name) == host(key)
}

fn helper(config: &Map<String, Value>, key: &str) -> Option<String> {
    let of_this = config.get("credHelpers").and_then(|helpers| helpers.get(key));
    let helper = of_this.or_else(|| config.get("credsStore"))?.as_str()?;
    Some(helper.to_owned()).filter(|helper| !helper.is_empty())
}
