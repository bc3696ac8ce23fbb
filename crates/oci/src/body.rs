//! Reads response bodies up to a limit.

use reqwest::Response;

use crate::error::RegistryError;

/// Reads a body of at most `limit` bytes.
pub(crate) async fn read_body(mut response: Response, url: &str, limit: u64) -> Result<Vec<u8>, RegistryError> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| RegistryError::unreachable(url, error))? {
        if body.len() as u64 + chunk.len() as u64 > limit {
            return Err(RegistryError::TooLarge { url: url.to_owned(), limit });
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}
