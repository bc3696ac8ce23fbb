//! Client for one repository of a registry (the OCI distribution specification).

use std::time::Duration;

use muster_job::is_loopback;
use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderMap, LINK};
use reqwest::redirect::Policy;
use reqwest::{RequestBuilder, Response, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::Mutex;
use url::Url;

use crate::auth::{self, Challenge};
use crate::body::read_body;
use crate::credentials::Credentials;
use crate::digest::{Digest, DigestError};
use crate::error::{RegistryError, ResponseError, is_transient_status};
use crate::idle::{self, SentBytes};
use crate::manifest::{Descriptor, INDEX_TYPES, Index, MANIFEST_TYPES, Manifest};
use crate::reference::Repository;
use crate::retry::{MAX_ATTEMPTS, wait};

const USER_AGENT: &str = concat!("muster/", env!("CARGO_PKG_VERSION"));
/// Maximum size in bytes of an index, a manifest or a page of a list. Registries should accept manifests of this size.
pub(super) const MAX_DOCUMENT_BYTES: u64 = 4 * 1024 * 1024;
/// Maximum number of pages of a list, with 1000 names each.
const MAX_PAGES: usize = 100;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
const MAX_REDIRECTS: usize = 5;

const MAX_ERROR_BYTES: u64 = 64 * 1024;
/// Maximum number of quoted characters of an error response.
const MAX_QUOTED_CHARS: usize = 200;

/// Tags of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TagList {
    /// The tags.
    Tags(Vec<String>),
    /// The registry does not list its tags. The repository may have tags nevertheless.
    Unlisted,
}

/// Client for one repository.
#[derive(Debug)]
pub struct Registry {
    http: reqwest::Client,
    repository: Repository,
    base: Url,
    credentials: Option<Credentials>,
    /// Value of `Authorization` after the last challenge. `None` before the first challenge.
    authorization: Mutex<Option<String>>,
}

impl Registry {
    /// Returns a client with the certificates of the system. Sends nothing yet.
    ///
    /// # Errors
    /// [`RegistryError::Name`] or [`RegistryError::Client`].
    pub fn new(repository: Repository, credentials: Option<Credentials>) -> Result<Self, RegistryError> {
        Self::with_client(repository, credentials, reqwest::Client::builder().http1_only())
    }

    /// Returns a client with settings for TLS. Sends nothing yet.
    ///
    /// Registries on the loopback interface are accessed with HTTP, others with HTTPS.
    ///
    /// # Errors
    /// [`RegistryError::Name`] or [`RegistryError::Client`].
    pub fn with_client(
        repository: Repository,
        credentials: Option<Credentials>,
        builder: reqwest::ClientBuilder,
    ) -> Result<Self, RegistryError> {
        let host = match repository.registry.as_str() {
            "docker.io" | "index.docker.io" => "registry-1.docker.io",
            other => other,
        };
        let scheme = if is_loopback(host) { "http" } else { "https" };
        let base = Url::parse(&format!("{scheme}://{host}/v2/"))
            .map_err(|source| RegistryError::Name { name: host.to_owned(), source })?;
        let policy = Policy::custom(|attempt| {
            let from_https = attempt.previous().iter().any(|url| url.scheme() == "https");
            if from_https && attempt.url().scheme() != "https" {
                attempt.error("redirect from https to an unencrypted address")
            } else if attempt.previous().len() > MAX_REDIRECTS {
                attempt.error("too many redirects")
            } else {
                attempt.follow()
            }
        });
        let http = builder
            .user_agent(USER_AGENT)
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(policy)
            // Decompressed bytes would have other digests.
            .no_gzip()
            .build()
            .map_err(RegistryError::Client)?;
        Ok(Self { http, repository, base, credentials, authorization: Mutex::default() })
    }

    /// Returns the repository.
    #[must_use]
    pub fn repository(&self) -> &Repository {
        &self.repository
    }

    /// Checks whether the registry accepts the credentials.
    ///
    /// # Errors
    /// [`RegistryError::Refused`] if the registry denies access, or another [`RegistryError`].
    pub async fn check_login(&self) -> Result<(), RegistryError> {
        self.get(&self.base.clone(), HeaderMap::new(), None).await.map(drop)
    }

    /// Lists the tags of the repository.
    ///
    /// # Errors
    /// [`RegistryError`]. If the registry refuses to list the tags, this is no error: the result is
    /// [`TagList::Unlisted`].
    pub async fn tags(&self) -> Result<TagList, RegistryError> {
        match self.list(self.url(&["tags", "list"])?, self.repository.to_string()).await {
            Err(RegistryError::Refused { .. } | RegistryError::Status { status: 405, .. }) => Ok(TagList::Unlisted),
            tags => tags.map(TagList::Tags),
        }
    }

    /// Lists the repositories of the registry.
    ///
    /// # Errors
    /// [`RegistryError`], also if the registry does not list its repositories.
    pub async fn repositories(&self) -> Result<Vec<String>, RegistryError> {
        let url = self.base.join("_catalog");
        let url = url.map_err(|source| RegistryError::Name { name: self.repository.registry.clone(), source })?;
        self.list(url, format!("{}, which does not list its repositories", self.repository.registry)).await
    }

    /// Reads all pages of a list. If the list does not exist, the error names it with the text `content`.
    async fn list(&self, mut url: Url, content: String) -> Result<Vec<String>, RegistryError> {
        #[derive(Deserialize)]
        struct Page {
            #[serde(alias = "repositories")]
            tags: Option<Vec<String>>,
        }
        url.set_query(Some("n=1000"));
        let mut names = Vec::new();
        for _ in 0..MAX_PAGES {
            let response = self.get(&url, HeaderMap::new(), Some(content.clone())).await?;
            let next = next_page(&url, response.headers());
            let page: Page = parse(&url, &read_body(response, url.as_str(), MAX_DOCUMENT_BYTES).await?)?;
            names.extend(page.tags.unwrap_or_default());
            match next {
                Some(next) => url = next,
                None => return Ok(names),
            }
        }
        Err(RegistryError::invalid(&url, ResponseError::TooManyPages(MAX_PAGES)))
    }

    /// Fetches the index of a tag.
    ///
    /// # Errors
    /// [`RegistryError`], also if the tag points to a single image.
    pub async fn index(&self, tag: &str) -> Result<Index, RegistryError> {
        self.resolve(tag).await.map(|(_, index)| index)
    }

    /// Fetches the index of a tag or digest (`reference`). Returns the index with its digest.
    ///
    /// # Errors
    /// As for [`Registry::index`].
    pub async fn resolve(&self, reference: &str) -> Result<(Digest, Index), RegistryError> {
        let url = self.url(&["manifests", reference])?;
        let is_digest = reference.contains(':');
        let content = format!("{}{}{reference}", self.repository, if is_digest { '@' } else { ':' });
        let response =
            self.get(&url, accept_headers(&[&INDEX_TYPES[..], &MANIFEST_TYPES[..]].concat()), Some(content)).await?;
        let expected = response.headers().get("docker-content-digest").and_then(|value| value.to_str().ok());
        let expected = expected.map(str::to_owned);
        let body = read_body(response, url.as_str(), MAX_DOCUMENT_BYTES).await?;
        let digest = Digest::of(&body);
        if let Some(expected) = if is_digest { Some(reference.to_owned()) } else { expected } {
            verify(&url, &expected, digest)?;
        }
        let index = Index { bytes: body.len() as u64, ..parse(&url, &body)? };
        let is_index = INDEX_TYPES.contains(&index.media_type.as_str()) || !index.manifests.is_empty();
        if !is_index {
            return Err(RegistryError::invalid(&url, ResponseError::NotAnIndex));
        }
        Ok((digest, index))
    }

    /// Fetches the manifest of an index entry.
    ///
    /// # Errors
    /// [`RegistryError`], also if the content does not match its digest.
    pub async fn manifest(&self, entry: &Descriptor) -> Result<Manifest, RegistryError> {
        let url = self.url(&["manifests", &entry.digest])?;
        let response = self.get(&url, accept_headers(&MANIFEST_TYPES), Some(entry.digest.clone())).await?;
        let body = read_body(response, url.as_str(), MAX_DOCUMENT_BYTES).await?;
        verify(&url, &entry.digest, Digest::of(&body))?;
        parse(&url, &body)
    }

    pub(super) fn url(&self, parts: &[&str]) -> Result<Url, RegistryError> {
        let path = format!("{}/{}", self.repository.path, parts.join("/"));
        self.base.join(&path).map_err(|source| RegistryError::Name { name: path, source })
    }

    /// Sends a GET request with retries. If the requested content does not exist, the error names it with the text
    /// `content`.
    pub(super) async fn get(
        &self,
        url: &Url,
        headers: HeaderMap,
        content: Option<String>,
    ) -> Result<Response, RegistryError> {
        self.send(url, &|http| http.get(url.clone()).headers(headers.clone()), content).await
    }

    /// Sends a request with retries. If the requested content does not exist, the error names it with the text
    /// `content`. Without this text, the error names the repository.
    pub(super) async fn send(
        &self,
        url: &Url,
        request: &(dyn Fn(&reqwest::Client) -> RequestBuilder + Sync),
        content: Option<String>,
    ) -> Result<Response, RegistryError> {
        self.send_attempts(url, &|http, _| request(http), content, None, MAX_ATTEMPTS).await
    }

    /// Sends a request without retries, except after a login.
    ///
    /// `body_bytes` is the size of the body, if `request` counts sent bytes.
    pub(super) async fn send_once(
        &self,
        url: &Url,
        request: &(dyn Fn(&reqwest::Client, &SentBytes) -> RequestBuilder + Sync),
        body_bytes: Option<u64>,
    ) -> Result<Response, RegistryError> {
        self.send_attempts(url, request, None, body_bytes, 1).await
    }

    async fn send_attempts(
        &self,
        url: &Url,
        request: &(dyn Fn(&reqwest::Client, &SentBytes) -> RequestBuilder + Sync),
        content: Option<String>,
        body_bytes: Option<u64>,
        max_attempts: u32,
    ) -> Result<Response, RegistryError> {
        let (mut is_authorized, mut attempts) = (false, 0);
        loop {
            // Only the registry may get the credentials.
            let is_own = url.origin() == self.base.origin();
            let authorization = if is_own { self.authorization.lock().await.clone() } else { None };
            // The previous connection may still count bytes, so each attempt needs its own counter.
            let sent = SentBytes::new(body_bytes);
            let mut request = request(&self.http, &sent);
            if let Some(authorization) = authorization {
                request = request.header(AUTHORIZATION, authorization);
            }
            attempts += 1;
            let response = match idle::send(request, url.as_str(), &sent).await {
                Ok(response) => response,
                Err(error) if attempts < max_attempts && error.is_transient() => {
                    wait(attempts).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            match response.status() {
                status if status.is_success() => return Ok(response),
                StatusCode::UNAUTHORIZED if is_own && !is_authorized => {
                    is_authorized = true;
                    self.authorize(url, response.headers()).await?;
                }
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                    return Err(self.refused(url, &response.status().to_string()));
                }
                StatusCode::NOT_FOUND => {
                    let name = content.unwrap_or_else(|| self.repository.to_string());
                    return Err(RegistryError::NotFound { url: url.into(), name });
                }
                status if attempts < max_attempts && is_transient_status(status.as_u16()) => wait(attempts).await,
                status => {
                    let body = read_body(response, url.as_str(), MAX_ERROR_BYTES).await.unwrap_or_default();
                    let body = String::from_utf8_lossy(&body).trim().chars().take(MAX_QUOTED_CHARS).collect();
                    return Err(RegistryError::Status { url: url.into(), status: status.as_u16(), body });
                }
            }
        }
    }

    async fn authorize(&self, url: &Url, headers: &HeaderMap) -> Result<(), RegistryError> {
        let authorization = match (auth::challenge(headers), &self.credentials) {
            (Some(Challenge::Bearer { realm, service, scope }), credentials) => {
                // `check_login` requests the base URL, which needs no scope.
                let pull_scope = (*url != self.base).then(|| format!("repository:{}:pull", self.repository.path));
                let scope = scope.or(pull_scope);
                let challenge = (realm.as_str(), service.as_deref(), scope.as_deref());
                let plain = self.base.scheme() == "http";
                auth::fetch_bearer(&self.http, &self.repository.registry, plain, challenge, credentials.as_ref())
                    .await?
            }
            (Some(Challenge::Basic), Some(credentials)) => auth::basic(credentials),
            (Some(Challenge::Basic), None) => {
                return Err(self.refused(url, "a login is required, but no credentials are configured"));
            }
            (None, _) => return Err(self.refused(url, "unsupported authentication method")),
        };
        *self.authorization.lock().await = Some(authorization);
        Ok(())
    }

    fn refused(&self, url: &Url, reason: &str) -> RegistryError {
        let user = self.credentials.as_ref().map(|credentials| format!(", as {:?}", credentials.username));
        let reason = format!("{reason}{}", user.unwrap_or_default());
        RegistryError::Refused { url: url.into(), registry: self.repository.registry.clone(), reason }
    }
}

fn parse<T: DeserializeOwned>(url: &Url, body: &[u8]) -> Result<T, RegistryError> {
    serde_json::from_slice(body).map_err(|error| RegistryError::invalid(url.as_str(), error))
}

pub(super) async fn parse_body<T: DeserializeOwned>(response: Response, url: &Url) -> Result<T, RegistryError> {
    parse(url, &read_body(response, url.as_str(), MAX_DOCUMENT_BYTES).await?)
}

pub(super) fn verify(url: &Url, expected: &str, found: Digest) -> Result<(), RegistryError> {
    let expected: Digest =
        expected.parse().map_err(|error: DigestError| RegistryError::invalid(url.as_str(), error))?;
    if expected == found {
        return Ok(());
    }
    Err(RegistryError::Digest { url: url.into(), expected: expected.to_string(), found: found.to_string() })
}

pub(super) fn accept_headers(types: &[&str]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for value in types.iter().filter_map(|media_type| media_type.parse().ok()) {
        headers.append(ACCEPT, value);
    }
    headers
}

/// Returns the URL of the next page, if it has the same origin.
fn next_page(url: &Url, headers: &HeaderMap) -> Option<Url> {
    let link = headers.get(LINK)?.to_str().ok()?;
    let (target, rest) = link.strip_prefix('<')?.split_once('>')?;
    if !rest.contains("next") {
        return None;
    }
    url.join(target).ok().filter(|next| next.origin() == url.origin() && next != url)
}
