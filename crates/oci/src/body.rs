//! Reads response bodies up to a limit.

use reqwest::Response;

use crate::error::RegistryError;
use crate::error_chain::error_chain;

/// Reads a body of at most `limit` bytes.
pub(crate) async fn read_body(mut answer: Response, url: &str, limit: u64) -> Result<Vec<u8>, RegistryError> {
    let mut body = Vec::new();
    loop {
        let chunk = answer.chunk().await;
        let chunk = chunk.map_err(|error| RegistryError::Unreachable {
            url: url.to_owned(),
            cause: error_chain(&error.without_url()),
        })?;
        let Some(chunk) = chunk else { return Ok(body) };
        if body.len() as u64 + chunk.len() as u64 > limit {
            return Err(RegistryError::TooLarge { url: url.to_owned(), limit });
        }
        body.extend_from_slice(&chunk);
    }
}
