//! Ends requests that make no progress.
//!
//! The timeouts of the HTTP client do not suffice: they limit the whole request, or the time until the response. A large upload over a slow
//! connection may take hours.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use reqwest::{RequestBuilder, Response};

use crate::error::RegistryError;

/// Maximum time in which a request must make progress.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Number of bytes of a request's body that the connection has accepted. Clones share the number.
#[derive(Debug, Clone, Default)]
pub(crate) struct SentBytes(Arc<AtomicU64>);

impl SentBytes {
    /// Adds bytes that are passed to the connection, which requests more when it has accepted the previous ones.
    pub(crate) fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Sends a request, and returns the response without its body.
///
/// # Errors
/// [`RegistryError::Unreachable`], and [`RegistryError::Idle`] if neither the body makes progress nor a response arrives.
pub(crate) async fn send(request: RequestBuilder, url: &str, sent: &SentBytes) -> Result<Response, RegistryError> {
    let response = request.send();
    tokio::pin!(response);
    loop {
        let before = sent.get();
        match tokio::time::timeout(IDLE_TIMEOUT, &mut response).await {
            Ok(response) => return response.map_err(|error| RegistryError::unreachable(url, error)),
            Err(_) if sent.get() > before => {}
            Err(_) => return Err(idle(url)),
        }
    }
}

/// Returns the next bytes of a response. `None` means that the response is complete.
///
/// # Errors
/// [`RegistryError::Unreachable`] and [`RegistryError::Idle`].
pub(crate) async fn next_chunk(response: &mut Response, url: &str) -> Result<Option<Bytes>, RegistryError> {
    match tokio::time::timeout(IDLE_TIMEOUT, response.chunk()).await {
        Ok(chunk) => chunk.map_err(|error| RegistryError::unreachable(url, error)),
        Err(_) => Err(idle(url)),
    }
}

fn idle(url: &str) -> RegistryError {
    RegistryError::Idle { url: url.to_owned(), timeout: IDLE_TIMEOUT }
}
