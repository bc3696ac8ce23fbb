//! HTTP client for the manager's own requests to the stores.

use std::time::Duration;

use async_trait::async_trait;
use http::uri::Scheme;
use http_body_util::BodyExt as _;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse, HttpService,
};
use object_store::{BackoffConfig, ClientOptions, RetryConfig};

use crate::CacheStoreError;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_ANSWER_BYTES: u64 = 32 << 20;

/// Few retries, because a job waits for its credentials.
pub(crate) fn retries() -> RetryConfig {
    let backoff =
        BackoffConfig { init_backoff: Duration::from_millis(100), max_backoff: Duration::from_secs(1), base: 2.0 };
    RetryConfig { backoff, max_retries: 2, retry_timeout: Duration::from_secs(8) }
}

#[derive(Debug, Clone)]
pub(crate) struct Transport {
    /// For URLs with TLS. Uses the proxies of the environment.
    proxied: reqwest::Client,
    /// For URLs without TLS. Uses no proxy, through which the metadata services of machines cannot be reached.
    direct: reqwest::Client,
}

impl Transport {
    pub(crate) fn new() -> Result<Self, CacheStoreError> {
        let client =
            || reqwest::Client::builder().http1_only().connect_timeout(CONNECT_TIMEOUT).timeout(REQUEST_TIMEOUT);
        Ok(Self {
            proxied: client().build().map_err(CacheStoreError::Client)?,
            direct: client().no_proxy().build().map_err(CacheStoreError::Client)?,
        })
    }

    pub(crate) async fn send(&self, request: HttpRequest) -> Result<http::Response<Vec<u8>>, HttpError> {
        self.send_limited(request, MAX_ANSWER_BYTES).await
    }

    /// Fails if the answer is longer than `max_bytes`.
    async fn send_limited(&self, request: HttpRequest, max_bytes: u64) -> Result<http::Response<Vec<u8>>, HttpError> {
        let (parts, body) = request.into_parts();
        let client = if parts.uri.scheme() == Some(&Scheme::HTTP) { &self.direct } else { &self.proxied };
        let body = body.collect().await?.to_bytes();
        let call = client.request(parts.method, parts.uri.to_string()).headers(parts.headers).body(body);
        let mut response = call.send().await.map_err(error)?;
        let mut answer = http::Response::new(Vec::new());
        *answer.status_mut() = response.status();
        *answer.headers_mut() = std::mem::take(response.headers_mut());
        while let Some(chunk) = response.chunk().await.map_err(error)? {
            answer.body_mut().extend_from_slice(&chunk);
            if answer.body().len() as u64 > max_bytes {
                let message = format!("the answer is longer than {max_bytes} bytes");
                return Err(HttpError::new_boxed(HttpErrorKind::Decode, message.into()));
            }
        }
        Ok(answer)
    }

    /// Reads the object of at most `max_bytes` at a signed URL. `None` if the object does not exist.
    pub(crate) async fn read(&self, url: &url::Url, max_bytes: u64) -> Result<Option<Vec<u8>>, HttpError> {
        let mut request = http::Request::new(HttpRequestBody::empty());
        let invalid = |error: http::uri::InvalidUri| HttpError::new(HttpErrorKind::Request, error);
        *request.uri_mut() = url.as_str().parse().map_err(invalid)?;
        let answer = self.send_limited(request, max_bytes).await?;
        match answer.status() {
            http::StatusCode::NOT_FOUND => Ok(None),
            status if status.is_success() => Ok(Some(answer.into_body())),
            status => {
                let message = format!("the server answered {status}");
                Err(HttpError::new_boxed(HttpErrorKind::Unknown, message.into()))
            }
        }
    }

    /// Queries Amazon for the region of a bucket, without credentials. Returns `None` if Amazon cannot be reached or
    /// returns no region.
    pub(crate) async fn bucket_region(&self, bucket: &str) -> Option<String> {
        let call = self.proxied.head(format!("https://s3.amazonaws.com/{bucket}"));
        let answer = call.send().await;
        let answer = answer
            .inspect_err(
                |error| tracing::warn!(%error, "failed to query the region of the cache's bucket, using us-east-1"),
            )
            .ok()?;
        Some(answer.headers().get("x-amz-bucket-region")?.to_str().ok()?.to_owned())
    }
}

#[async_trait]
impl HttpService for Transport {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        Ok(self.send(request).await?.map(Into::into))
    }
}

impl HttpConnector for Transport {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

fn error(error: reqwest::Error) -> HttpError {
    let kind = match () {
        () if error.is_timeout() => HttpErrorKind::Timeout,
        () if error.is_connect() => HttpErrorKind::Connect,
        () if error.is_decode() => HttpErrorKind::Decode,
        () => HttpErrorKind::Request,
    };
    HttpError::new(kind, error.without_url())
}
