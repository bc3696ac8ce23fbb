//! HTTP requests to one server.

use std::time::Duration;

use muster_job::Secret;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue, LOCATION};
use reqwest::{Method, StatusCode};
use serde_json::Value;
use url::Url;

use crate::VaultError;

const MAX_ANSWER_BYTES: usize = 4 * 1024 * 1024;
/// Maximum length of each text of the server in an error.
const MAX_TEXT_CHARS: usize = 500;
const NAMESPACE: HeaderName = HeaderName::from_static("x-vault-namespace");
const TOKEN: HeaderName = HeaderName::from_static("x-vault-token");
/// Vault may require this header as protection against server-side request forgery.
const REQUEST: HeaderName = HeaderName::from_static("x-vault-request");

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    /// [`Value::Null`] if the content is not JSON.
    pub(crate) body: Value,
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        let errors = self.body.get("errors").and_then(Value::as_array).into_iter().flatten();
        let errors: Vec<String> = errors.filter_map(Value::as_str).map(one_line).collect();
        let status = format!("status code {}", self.status.as_u16());
        if errors.is_empty() { status } else { format!("{status}: {}", errors.join(", ")) }
    }
}

/// Returns the text in one line, shortened, and without control characters, which could change the log of the job.
fn one_line(text: &str) -> String {
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    text.chars().take(MAX_TEXT_CHARS).collect()
}

#[derive(Debug)]
pub(crate) struct Transport {
    pub(crate) client: reqwest::Client,
    pub(crate) base: Url,
    pub(crate) namespace: String,
    pub(crate) timeout: Duration,
    pub(crate) max_retries: u32,
    pub(crate) retry_delay: Duration,
}

impl Transport {
    pub(crate) fn url(&self) -> String {
        self.base.as_str().trim_end_matches('/').to_owned()
    }

    pub(crate) async fn send(
        &self,
        method: &Method,
        path: &str,
        token: Option<&Secret>,
        body: Option<&Value>,
    ) -> Result<Answer, VaultError> {
        let target = self.target(path)?;
        let (mut retries, mut delay) = (0, self.retry_delay);
        loop {
            match self.send_once(method, target.clone(), token, body).await {
                Err(error) if error.is_external() && retries < self.max_retries => {
                    tracing::warn!(error = muster_job::error_chain(&error), "failed to fetch a secret, retrying");
                }
                answer => return answer,
            }
            tokio::time::sleep(delay).await;
            (retries, delay) = (retries + 1, delay * 2);
        }
    }

    fn target(&self, path: &str) -> Result<Url, VaultError> {
        let mut target = self.base.clone();
        let segments = target.path_segments_mut().map(|mut segments| {
            segments.pop_if_empty().push("v1").extend(path.split('/').filter(|segment| !segment.is_empty()));
        });
        segments.map_err(|()| VaultError::Url(self.url()))?;
        Ok(target)
    }

    /// Follows one redirect, because a standby server redirects to the active server.
    async fn send_once(
        &self,
        method: &Method,
        target: Url,
        token: Option<&Secret>,
        body: Option<&Value>,
    ) -> Result<Answer, VaultError> {
        let mut response = self.request(method, target.clone(), token, body).await?;
        if let Some(next) = self.redirect(&target, &response)? {
            response = self.request(method, next.clone(), token, body).await?;
            if let Some(target) = self.redirect(&next, &response)? {
                let reason = "which is a second redirect";
                return Err(VaultError::Redirect { url: self.url(), target: target.into(), reason });
            }
        }
        let status = response.status();
        let mut content = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.failed(&error))? {
            content.extend_from_slice(&chunk);
            if content.len() > MAX_ANSWER_BYTES {
                let reason = format!("it is longer than {} MiB", MAX_ANSWER_BYTES / (1024 * 1024));
                return Err(VaultError::Answer { url: self.url(), reason });
            }
        }
        let answer = Answer { status, body: serde_json::from_slice(&content).unwrap_or_default() };
        // 501 is not repeated: the server does not have the feature. 412 means that a standby server lags behind.
        let is_unavailable = status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED;
        if is_unavailable || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::PRECONDITION_FAILED) {
            return Err(VaultError::Unavailable { url: self.url(), answer: answer.text() });
        }
        Ok(answer)
    }

    async fn request(
        &self,
        method: &Method,
        target: Url,
        token: Option<&Secret>,
        body: Option<&Value>,
    ) -> Result<reqwest::Response, VaultError> {
        let mut headers = HeaderMap::new();
        headers.insert(REQUEST, HeaderValue::from_static("true"));
        if !self.namespace.is_empty() {
            let namespace = HeaderValue::from_str(&self.namespace);
            headers.insert(NAMESPACE, namespace.map_err(|_| VaultError::Namespace(self.namespace.clone()))?);
        }
        if let Some(token) = token {
            let mut value = self.token_header(token)?;
            value.set_sensitive(true);
            headers.insert(TOKEN, value);
        }
        let mut request = self.client.request(method.clone(), target).headers(headers);
        if let Some(body) = body {
            request = request.json(body);
        }
        request.send().await.map_err(|error| self.failed(&error))
    }

    fn token_header(&self, token: &Secret) -> Result<HeaderValue, VaultError> {
        let reason = || "the server's token is not a valid HTTP header".to_owned();
        HeaderValue::from_str(token.expose()).map_err(|_| VaultError::Answer { url: self.url(), reason: reason() })
    }

    /// Returns `None` if the response is not a redirect.
    fn redirect(&self, from: &Url, response: &reqwest::Response) -> Result<Option<Url>, VaultError> {
        if !matches!(response.status().as_u16(), 301 | 302 | 307 | 308) {
            return Ok(None);
        }
        let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let refused = |reason| VaultError::Redirect { url: self.url(), target: one_line(location), reason };
        let target = from.join(location).map_err(|_| refused("which is not a valid URL"))?;
        match (from.scheme(), target.scheme()) {
            (_, "https") | ("http", "http") => Ok(Some(target)),
            _ => Err(refused("which would send the job's tokens without encryption")),
        }
    }

    fn failed(&self, error: &reqwest::Error) -> VaultError {
        if error.is_timeout() {
            return VaultError::Timeout { url: self.url(), timeout: self.timeout };
        }
        // The outer messages repeat the URL.
        let causes = std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
        let reason = causes.last().map(ToString::to_string).unwrap_or_default();
        VaultError::Unreachable { url: self.url(), reason }
    }
}
