//! Docker's credentials: `config.json` in `DOCKER_CONFIG` or `~/.docker`, and credential helpers.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use crate::credential_helper::{CredentialHelper, key};
use crate::credentials::{Credentials, CredentialsError, HelperError};
use crate::reference::Repository;

/// Docker's configuration file.
#[derive(Debug, Clone)]
pub struct DockerConfig {
    path: PathBuf,
}

impl DockerConfig {
    /// Returns the file in `DOCKER_CONFIG`, or else in `~/.docker`.
    ///
    /// # Errors
    /// [`CredentialsError::NoHome`].
    pub fn from_environment() -> Result<Self, CredentialsError> {
        let variable = |key| std::env::var_os(key).filter(|value| !value.is_empty()).map(PathBuf::from);
        let directory = variable("DOCKER_CONFIG").or_else(|| variable("HOME").map(|home| home.join(".docker")));
        Ok(Self::in_directory(&directory.ok_or(CredentialsError::NoHome)?))
    }

    /// Returns the file in a directory.
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
            Ok(_) => Err(CredentialsError::Content { path: path(), problem: "not a JSON object".to_owned() }),
            Err(source) => Err(CredentialsError::Json { path: path(), source }),
        }
    }

    /// Returns the stored credentials for a registry, if there are any.
    pub async fn get(&self, registry: &str) -> Result<Option<Credentials>, CredentialsError> {
        let config = self.read()?;
        let key = key(registry);
        if let Some(helper) = configured_helper(&config, &key) {
            let failed = |error| self.helper_failed(&helper, error);
            return CredentialHelper::new(&helper).map_err(failed)?.get(&key).await.map_err(failed);
        }
        entry_credentials(&config, &[&key]).map_err(|problem| self.invalid(problem))
    }

    /// Stores credentials for a registry with its credential helper, or else in the file, which only the owner can
    /// read.
    ///
    /// In the file, only the entries of the registry itself are replaced, not those of single repositories.
    pub async fn put(&self, registry: &str, credentials: &Credentials) -> Result<(), CredentialsError> {
        let mut config = self.read()?;
        let key = key(registry);
        if let Some(helper) = configured_helper(&config, &key) {
            let failed = |error| self.helper_failed(&helper, error);
            return CredentialHelper::new(&helper).map_err(failed)?.store(&key, credentials).await.map_err(failed);
        }
        let auths = config.entry("auths").or_insert_with(|| json!({}));
        let Some(auths) = auths.as_object_mut() else {
            return Err(self.invalid("auths is not a JSON object".to_owned()));
        };
        auths.retain(|name, _| *name == key || !is_spelling_of(name, &key));
        let auth = STANDARD.encode(format!("{}:{}", credentials.username, credentials.password));
        auths.insert(key, json!({ "auth": auth }));
        self.write(&config).map_err(|source| CredentialsError::File {
            path: self.path.clone(),
            operation: "write",
            source,
        })
    }

    /// Replaces the file atomically, without access for other users.
    fn write(&self, config: &Map<String, Value>) -> std::io::Result<()> {
        // If the file is a symbolic link, its target is replaced.
        let path = std::fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone());
        let directory = path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(directory)?;
        muster_files::replace(&path, 0o600, serde_json::to_string_pretty(config)?.as_bytes())
    }

    fn invalid(&self, problem: String) -> CredentialsError {
        CredentialsError::Content { path: self.path.clone(), problem }
    }

    fn helper_failed(&self, name: &str, error: HelperError) -> CredentialsError {
        CredentialsError::Helper { helper: name.to_owned(), config: self.path.clone(), source: Box::new(error) }
    }
}

/// Returns the credentials for a repository from the text of a configuration file. Credential helpers are not called.
///
/// An entry for the repository takes precedence over one for its registry.
///
/// # Errors
/// A description of the problem.
pub fn credentials_in(text: &str, repository: &Repository) -> Result<Option<Credentials>, String> {
    if text.trim().is_empty() {
        return Ok(None);
    }
    let config: Value = serde_json::from_str(text).map_err(|error| format!("not valid JSON: {error}"))?;
    let config = config.as_object().ok_or("not a JSON object")?;
    entry_credentials(config, &[&repository.to_string(), &key(&repository.registry)])
}

/// Returns the credentials of the first key with an entry. The last key is a registry. If no key has an entry, an entry
/// with another spelling of the registry, such as a URL, is used.
fn entry_credentials(config: &Map<String, Value>, keys: &[&str]) -> Result<Option<Credentials>, String> {
    let Some(auths) = config.get("auths").and_then(Value::as_object) else { return Ok(None) };
    let exact = keys.iter().find_map(|key| Some((*key, auths.get(*key)?)));
    let registry = || {
        let key = *keys.last()?;
        auths.iter().find(|(name, _)| is_same_registry(name, key)).map(|(_, entry)| (key, entry))
    };
    let Some((key, entry)) = exact.or_else(registry) else { return Ok(None) };
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
        None => Err(format!("auths.{key}.auth is not NAME:PASSWORD in base64")),
    }
}

/// Returns whether two names have the same registry, regardless of scheme and path.
fn is_same_registry(name: &str, key: &str) -> bool {
    host_and_path(name).0 == host_and_path(key).0
}

/// Returns whether a name is the registry of the key, such as `https://HOST/v1/`, and not a repository at this registry.
fn is_spelling_of(name: &str, key: &str) -> bool {
    is_same_registry(name, key) && matches!(host_and_path(name).1.trim_end_matches('/'), "" | "v1" | "v2")
}

fn host_and_path(name: &str) -> (&str, &str) {
    let name = name.trim_start_matches("https://").trim_start_matches("http://");
    name.split_once('/').unwrap_or((name, ""))
}

fn configured_helper(config: &Map<String, Value>, key: &str) -> Option<String> {
    let registry_helper = config.get("credHelpers").and_then(|helpers| helpers.get(key));
    let helper = registry_helper.or_else(|| config.get("credsStore"))?.as_str()?;
    Some(helper.to_owned()).filter(|helper| !helper.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn login_replaces_only_the_spellings_of_its_registry() {
        let dir = tempfile::tempdir().unwrap();
        let config = DockerConfig::in_directory(dir.path());
        for (registry, others, replaced) in [
            (
                "r.example",
                &["r.example/group/project", "https://r.example/group", "other.example"][..],
                &["r.example", "r.example/", "https://r.example", "http://r.example/v2/", "r.example/v1"][..],
            ),
            ("docker.io", &["https://index.docker.io/group/app"], &["index.docker.io", "https://index.docker.io/v1/"]),
        ] {
            let auths: Map<String, Value> = others
                .iter()
                .chain(replaced)
                .map(|name| ((*name).to_owned(), json!({"auth": "b2xkOm9sZA=="})))
                .collect();
            std::fs::write(config.path(), json!({"auths": auths}).to_string()).unwrap();
            config.put(registry, &Credentials::new("new", "word")).await.unwrap();
            let mut kept: Vec<String> = config.read().unwrap()["auths"].as_object().unwrap().keys().cloned().collect();
            kept.retain(|name| *name != key(registry));
            kept.sort();
            let mut expected = others.to_vec();
            expected.sort_unstable();
            assert_eq!(kept, expected);
            assert_eq!(config.get(registry).await.unwrap().unwrap().username, "new");
        }
    }
}
