//! Ends requests that make no progress. The timeouts of the HTTP client would also end a slow upload of hours.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use reqwest::{RequestBuilder, Response};

use crate::error::{RegistryError, ShownUrl};

const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum time for an answer after a body was sent completely, if its bytes are counted ([`SentBytes`]). A registry
/// may need minutes to store several gigabytes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(300);

/// Number of bytes of a request's body that the connection accepted. Clones share the number.
#[derive(Debug, Clone, Default)]
pub(crate) struct SentBytes {
    sent: Arc<AtomicU64>,
    /// Size of the body in bytes. `None` means that the bytes are not counted.
    size: Option<u64>,
}

impl SentBytes {
    pub(crate) fn new(size: Option<u64>) -> Self {
        Self { size, ..Self::default() }
    }

    /// Counts bytes that are passed to the connection. It asks for more bytes only after it has accepted the previous
    /// ones.
    pub(crate) fn add(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Returns the size of the body if all of it was sent.
    fn size_if_complete(&self) -> Option<u64> {
        self.size.filter(|size| self.get() >= *size)
    }
}

/// Sends a request. The body of the response is not read yet.
///
/// # Errors
/// [`RegistryError::Unreachable`], [`RegistryError::Idle`] without progress, or [`RegistryError::NoAnswer`] after a
/// body was sent completely, if its bytes are counted.
pub(crate) async fn send(request: RequestBuilder, url: &str, sent: &SentBytes) -> Result<Response, RegistryError> {
    let response = wait_for(request.send(), url, sent).await?;
    response.map_err(|error| RegistryError::unreachable(url, error))
}

async fn wait_for<T>(response: impl Future<Output = T>, url: &str, sent: &SentBytes) -> Result<T, RegistryError> {
    tokio::pin!(response);
    loop {
        let (before, size) = (sent.get(), sent.size_if_complete());
        let timeout = if size.is_some() { ANSWER_TIMEOUT } else { IDLE_TIMEOUT };
        match (tokio::time::timeout(timeout, &mut response).await, size) {
            (Ok(response), _) => return Ok(response),
            (Err(_), Some(size)) => return Err(RegistryError::NoAnswer { url: url.into(), size, timeout }),
            (Err(_), None) if sent.get() > before => {
                if sent.size_if_complete().is_some() {
                    tracing::info!(url = %ShownUrl::from(url), "content sent, waiting for the answer of the registry");
                }
            }
            (Err(_), None) => return Err(idle(url)),
        }
    }
}

/// Returns the next bytes of a response. `None` means its end.
pub(crate) async fn next_chunk(response: &mut Response, url: &str) -> Result<Option<Bytes>, RegistryError> {
    match tokio::time::timeout(IDLE_TIMEOUT, response.chunk()).await {
        Ok(chunk) => chunk.map_err(|error| RegistryError::unreachable(url, error)),
        Err(_) => Err(idle(url)),
    }
}

fn idle(url: &str) -> RegistryError {
    RegistryError::Idle { url: url.into(), timeout: IDLE_TIMEOUT }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART: usize = 1000;

    /// Waits for a request that sends a part after each `pause`, and gets its answer `delay` later.
    async fn wait_for_request(pause: Duration, parts: usize, delay: Duration) -> Result<&'static str, RegistryError> {
        let sent = SentBytes::new(Some((parts * PART) as u64));
        let counter = sent.clone();
        let request = async move {
            for _ in 0..parts {
                tokio::time::sleep(pause).await;
                counter.add(PART);
            }
            tokio::time::sleep(delay).await;
            "created"
        };
        wait_for(request, "https://one.example/upload?signature", &sent).await
    }

    #[tokio::test(start_paused = true)]
    async fn slow_upload_succeeds_while_it_makes_progress() {
        let began = tokio::time::Instant::now();
        let done = wait_for_request(Duration::from_secs(50), 4, Duration::from_secs(1)).await;
        assert_eq!(done.unwrap(), "created");
        assert!(began.elapsed() > IDLE_TIMEOUT, "the upload must take longer than the timeout");
    }

    #[tokio::test(start_paused = true)]
    async fn upload_without_progress_fails() {
        let error = wait_for_request(Duration::from_secs(130), 4, Duration::ZERO).await.unwrap_err();
        assert!(matches!(error, RegistryError::Idle { .. }), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn registry_may_answer_minutes_after_the_content_was_sent() {
        let done = wait_for_request(Duration::from_secs(1), 4, Duration::from_secs(280)).await;
        assert_eq!(done.unwrap(), "created");
        let error = wait_for_request(Duration::from_secs(1), 4, Duration::from_secs(600)).await.unwrap_err();
        assert!(matches!(error, RegistryError::NoAnswer { size: 4000, .. }), "{error}");
        assert!(!error.is_transient(), "a retry would send the content again");
    }
}
