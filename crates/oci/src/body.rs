//! Reads response bodies up to a limit.

use reqwest::Response;

use crate::error::RegistryError;
use crate::idle;

/// Reads a body. Fails if it exceeds `limit` bytes.
pub(crate) async fn read_body(mut response: Response, url: &str, limit: u64) -> Result<Vec<u8>, RegistryError> {
    let mut body = Vec::new();
    while let Some(chunk) = idle::next_chunk(&mut response, url).await? {
        if body.len() as u64 + chunk.len() as u64 > limit {
            return Err(RegistryError::TooLarge { url: url.into(), limit });
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}
