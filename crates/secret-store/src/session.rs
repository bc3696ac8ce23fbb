use std::time::Duration;

use muster_job::Secret;
use reqwest::{Method, StatusCode};
use serde_json::{Map, Value, json};
use url::Url;

use crate::transport::{Answer, Transport};
use crate::{VaultError, VaultOptions, VaultSecret, VaultServer};

/// Fetches the secrets of one job. Logs in once per server, namespace, login path, ID token and role.
#[derive(Debug)]
pub struct VaultSession {
    client: reqwest::Client,
    timeout: Duration,
    max_retries: u32,
    retry_delay: Duration,
    logins: Vec<(VaultServer, Secret)>,
}

impl VaultSession {
    /// Prepares a session without contacting a server.
    ///
    /// # Errors
    /// [`VaultError`] if the files that `options` names cannot be used.
    pub async fn open(options: &VaultOptions) -> Result<Self, VaultError> {
        let VaultOptions { timeout, max_retries, retry_delay, .. } = *options;
        Ok(Self { client: options.client().await?, timeout, max_retries, retry_delay, logins: Vec::new() })
    }

    /// Returns the value of a secret's field. A value that is not a string is returned as JSON.
    ///
    /// # Errors
    /// [`VaultError`] if the server cannot be reached, refuses the job, or has no such field.
    pub async fn fetch(&mut self, secret: &VaultSecret) -> Result<Secret, VaultError> {
        let path = secret.api_path()?;
        let server = self.transport(&secret.server)?;
        let token = self.log_in_once(&server, &secret.server).await?;
        let answer = server.send(&Method::GET, &path, Some(&token), None).await?;
        let namespace = namespace_text(&secret.server);
        let missing = |missing| VaultError::NotFound { url: server.url(), missing, namespace: namespace.clone() };
        match answer.status {
            StatusCode::NOT_FOUND => return Err(missing(format!("nothing at {path}"))),
            status if !status.is_success() => {
                let (url, answer, role) = (server.url(), answer.text(), role_text(&secret.server));
                return Err(VaultError::Read { url, path, role, namespace, answer });
            }
            _ => {}
        }
        match secret.fields(&answer).and_then(|fields| fields.get(&secret.field)) {
            None | Some(Value::Null) => Err(missing(format!("no field `{}` at {path}", secret.field))),
            Some(Value::String(text)) => Ok(Secret::new(text)),
            Some(value) => Ok(Secret::new(value.to_string())),
        }
    }

    fn transport(&self, server: &VaultServer) -> Result<Transport, VaultError> {
        let mut base: Url = server.url.parse().map_err(|_| VaultError::Url(server.url.clone()))?;
        // Messages show the URL, so it must not contain a login. Vault does not use one.
        let has_login = !base.username().is_empty() || base.password().is_some();
        if !matches!(base.scheme(), "http" | "https") || has_login {
            let shown = if has_login { format!("{}://[masked]", base.scheme()) } else { server.url.clone() };
            return Err(VaultError::Url(shown));
        }
        base.set_query(None);
        base.set_fragment(None);
        let Self { timeout, max_retries, retry_delay, .. } = *self;
        let (client, namespace) = (self.client.clone(), server.namespace.clone());
        Ok(Transport { client, base, namespace, timeout, max_retries, retry_delay })
    }

    /// Returns the token of an earlier login, or logs in.
    async fn log_in_once(&mut self, server: &Transport, login: &VaultServer) -> Result<Secret, VaultError> {
        if let Some((_, token)) = self.logins.iter().find(|(known, _)| known == login) {
            return Ok(token.clone());
        }
        let body = match &login.role {
            Some(role) => json!({ "jwt": login.jwt.expose(), "role": role }),
            None => json!({ "jwt": login.jwt.expose() }),
        };
        let answer = server.send(&Method::POST, &login.login_path, None, Some(&body)).await?;
        if !answer.status.is_success() {
            return Err(VaultError::Login {
                url: server.url(),
                path: login.login_path.clone(),
                role: role_text(login),
                namespace: namespace_text(login),
                answer: answer.text(),
            });
        }
        let token = answer.body.pointer("/auth/client_token").and_then(Value::as_str);
        let token = token.filter(|token| !token.is_empty()).map(Secret::new).ok_or_else(|| VaultError::Answer {
            url: server.url(),
            reason: format!("the answer to the login at {} has no token", login.login_path),
        })?;
        self.logins.push((login.clone(), token.clone()));
        Ok(token)
    }
}

impl VaultSecret {
    fn api_path(&self) -> Result<String, VaultError> {
        let data = match self.engine.name.as_str() {
            "kv-v2" => "/data",
            "kv-v1" | "generic" => "",
            other => return Err(VaultError::Engine(other.to_owned())),
        };
        let (engine, path) = (self.engine.path.trim_matches('/'), self.path.trim_matches('/'));
        Ok(format!("{engine}{data}/{path}"))
    }

    fn fields<'a>(&self, answer: &'a Answer) -> Option<&'a Map<String, Value>> {
        let data = answer.body.get("data")?;
        let data = if self.engine.name == "kv-v2" { data.get("data")? } else { data };
        data.as_object()
    }
}

fn role_text(server: &VaultServer) -> String {
    server.role.as_ref().map_or_else(|| "the default role".to_owned(), |role| format!("the role `{role}`"))
}

fn namespace_text(server: &VaultServer) -> String {
    if server.namespace.is_empty() { String::new() } else { format!(" in the namespace `{}`", server.namespace) }
}
