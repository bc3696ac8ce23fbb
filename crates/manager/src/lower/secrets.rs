//! The secrets that the manager fetches for a job (docs/spec/runner-api.md, section 2.5.11).

use std::collections::BTreeMap;

use muster_agent_api::builtin::Prepare;
use muster_agent_api::plan::{Call, Step};
use muster_job::{FailureReason, Secret, Variable};
use muster_runner_api::payload::JobPayload;
use muster_secret_store::{Engine, VaultError, VaultSecret, VaultServer};
use serde::Deserialize;
use serde_json::Value;

use super::variables::Variables;
use super::{JobContext, LowerError, settings, with_variables};

/// Only login method that GitLab uses for HashiCorp Vault.
const LOGIN_METHOD: &str = "jwt";
/// Payload key for HashiCorp Vault or OpenBao.
const VAULT: &str = "vault";
/// Payload key for GitLab Secrets Manager.
const GITLAB: &str = "gitlab_secrets_manager";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SecretRequests {
    pub(crate) list: Vec<SecretRequest>,
    pub(crate) attempts: u32,
    /// First and longest wait between two attempts.
    pub(crate) retry_wait_ms: (u64, u64),
    /// Whether a missing secret fails the job. Otherwise its variable is empty.
    pub(crate) missing_fails: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SecretRequest {
    name: String,
    /// Whether the variable contains the path of a file.
    file: bool,
    pub(crate) secret: VaultSecret,
}

impl SecretRequest {
    pub(crate) fn variable(&self, value: &Secret) -> Variable {
        Variable { file: self.file, raw: true, ..Variable::secret(&self.name, value.expose()) }
    }

    pub(crate) fn error(&self, error: &VaultError) -> LowerError {
        let message = format!("failed to resolve the secret `{}`: {}", self.name, muster_job::error_chain(error));
        if error.is_external() {
            return LowerError::of_reason(FailureReason::RunnerExternalDependencyFailure, message);
        }
        LowerError::configuration(message)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PayloadSecret {
    file: Option<bool>,
    vault: Option<HashicorpVault>,
    gitlab_secrets_manager: Option<GitlabManager>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct HashicorpVault {
    server: HashicorpServer,
    engine: Option<Engine>,
    path: Option<String>,
    field: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct HashicorpServer {
    url: Option<String>,
    namespace: Option<String>,
    auth: HashicorpAuth,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct HashicorpAuth {
    name: Option<String>,
    path: Option<String>,
    data: Option<BTreeMap<String, Value>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct GitlabManager {
    server: GitlabServer,
    engine: Option<Engine>,
    path: Option<String>,
    field: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct GitlabServer {
    url: Option<String>,
    namespace: Option<String>,
    inline_auth: InlineAuth,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct InlineAuth {
    path: Option<String>,
    auth_mount: Option<String>,
    jwt: Option<String>,
    role: Option<String>,
}

/// Fails if Muster does not support a provider, or a secret is incomplete.
pub(crate) fn requests(payload: &JobPayload, context: &JobContext) -> Result<SecretRequests, LowerError> {
    check_providers(&payload.secrets)?;
    with_variables(payload, context, |payload, _, _, variables, flags| {
        let read = |(name, secret): (&String, &Value)| {
            let invalid = |reason: String| {
                LowerError::configuration(format!("the secret `{name}` of the job is not valid: {reason}"))
            };
            let secret: PayloadSecret =
                PayloadSecret::deserialize(secret).map_err(|error| invalid(error.to_string()))?;
            let (file, PayloadSecret { vault, gitlab_secrets_manager, .. }) = (secret.file.unwrap_or(true), secret);
            let secret = match (vault, gitlab_secrets_manager) {
                (Some(vault), _) => vault.request(variables),
                (None, Some(manager)) => manager.request(),
                (None, None) => Err("it has no provider".to_owned()),
            };
            Ok(SecretRequest { name: name.clone(), file, secret: secret.map_err(invalid)? })
        };
        Ok(SecretRequests {
            list: payload.secrets.iter().map(read).collect::<Result<_, LowerError>>()?,
            attempts: settings::secrets_attempts(variables),
            retry_wait_ms: settings::retry_wait_ms(flags),
            missing_fails: flags.is_on("FF_SECRET_RESOLVING_FAILS_IF_MISSING"),
        })
    })
}

impl HashicorpVault {
    fn request(self, variables: &Variables) -> Result<VaultSecret, String> {
        let expand = |text: &Option<String>| text.as_deref().map(|text| variables.expand(text)).unwrap_or_default();
        let HashicorpServer { url, namespace, auth } = self.server;
        let method = expand(&auth.name);
        if method != LOGIN_METHOD {
            return Err(format!("`{method}` is not a supported login method of Vault; use {LOGIN_METHOD}"));
        }
        let data = |name: &str| {
            let text = match auth.data.as_ref()?.get(name)? {
                Value::Null => return None,
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            Some(variables.expand(&text)).filter(|text| !text.is_empty())
        };
        let jwt = data("jwt").ok_or("it has no ID token; add `id_tokens:` to the job, and `token:` to the secret")?;
        let engine = self.engine.unwrap_or_else(|| Engine { name: String::new(), path: String::new() });
        Ok(VaultSecret {
            server: VaultServer {
                url: expand(&url),
                namespace: expand(&namespace),
                login_path: format!("auth/{}/login", expand(&auth.path).trim_matches('/')),
                jwt: Secret::new(jwt),
                role: data("role"),
            },
            engine: Engine { name: variables.expand(&engine.name), path: variables.expand(&engine.path) },
            path: expand(&self.path),
            field: expand(&self.field),
        })
    }
}

impl GitlabManager {
    /// Expands nothing, because GitLab's names may contain `$`.
    fn request(self) -> Result<VaultSecret, String> {
        let GitlabServer { url, namespace, inline_auth } = self.server;
        let InlineAuth { path, auth_mount, jwt, role } = inline_auth;
        let mount = auth_mount.unwrap_or_default();
        let login_path = path.filter(|path| !path.is_empty());
        let login_path = login_path.unwrap_or_else(|| format!("auth/{}/login", mount.trim_matches('/')));
        let jwt = jwt.filter(|jwt| !jwt.is_empty()).ok_or("the server sent no ID token")?;
        Ok(VaultSecret {
            server: VaultServer {
                url: url.unwrap_or_default(),
                namespace: namespace.unwrap_or_default(),
                login_path,
                jwt: Secret::new(jwt),
                role: role.filter(|role| !role.is_empty()),
            },
            engine: self.engine.unwrap_or_else(|| Engine { name: String::new(), path: String::new() }),
            path: self.path.unwrap_or_default(),
            field: self.field.unwrap_or_default(),
        })
    }
}

/// `None` means that the job has no secrets.
pub(super) fn step(payload: &JobPayload) -> Option<Step> {
    if payload.secrets.is_empty() {
        return None;
    }
    let lines = payload.secrets.iter().flat_map(|(name, secret)| {
        [
            format!("Resolving secret \"{name}\"..."),
            format!("Using \"{}\" secret resolver...", provider(secret).unwrap_or_default()),
        ]
    });
    let prepare = Prepare { lines: lines.collect(), ..Prepare::default() };
    Some(Step::new("resolve_secrets", "Resolving secrets", Call::builtin(&prepare)))
}

pub(super) fn check_fetched(payload: &JobPayload, context: &JobContext) -> Result<(), LowerError> {
    check_providers(&payload.secrets)?;
    let is_missing = |name: &&String| context.secrets.iter().all(|fetched| fetched.key != **name);
    match payload.secrets.keys().find(is_missing) {
        Some(name) => Err(LowerError::configuration(format!("the secret `{name}` of the job was not fetched"))),
        None => Ok(()),
    }
}

fn check_providers(secrets: &BTreeMap<String, Value>) -> Result<(), LowerError> {
    let unsupported: Vec<String> = secrets
        .iter()
        .filter(|(_, secret)| !matches!(provider(secret), Some(VAULT | GITLAB)))
        .map(|(name, secret)| format!("`{name}` from {}", provider(secret).unwrap_or("an unknown provider")))
        .collect();
    if unsupported.is_empty() {
        return Ok(());
    }
    Err(LowerError::configuration(format!(
        "this version of Muster fetches secrets from HashiCorp Vault, OpenBao and GitLab Secrets Manager only, but the job needs {}; \
         move such secrets to one of these, or pass them as masked variables",
        unsupported.join(", ")
    )))
}

fn provider(secret: &Value) -> Option<&str> {
    let mut keys = secret.as_object()?.iter().filter(|(_, value)| !value.is_null()).map(|(key, _)| key.as_str());
    keys.find(|key| !matches!(*key, "file" | "token"))
}
