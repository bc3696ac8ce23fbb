//! JSON endpoints that other crates add to the server.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use parking_lot::Mutex;

/// Handler of a path that responds with JSON.
#[async_trait]
pub trait JsonEndpoint: Send + Sync {
    /// Handles a request with this query (the text after `?`). The server enforces a timeout.
    async fn respond(&self, query: &str) -> JsonResponse;
}

/// Response of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JsonResponse {
    /// Status 200 with this body.
    Ok(Vec<u8>),
    /// Status 404 with this body.
    NotFound(Vec<u8>),
    /// Status 400 with this message about the query.
    BadRequest(String),
    /// Status 500 with this message.
    Error(String),
}

/// Endpoints by path. An endpoint exists until its handler is dropped.
#[derive(Default)]
pub struct Endpoints(Mutex<BTreeMap<&'static str, Weak<dyn JsonEndpoint>>>);

impl Endpoints {
    /// Adds the handler of `path`. Replaces an earlier one.
    pub fn add(&self, path: &'static str, endpoint: Weak<dyn JsonEndpoint>) {
        self.0.lock().insert(path, endpoint);
    }

    pub(super) fn get(&self, path: &str) -> Option<Arc<dyn JsonEndpoint>> {
        self.0.lock().get(path).and_then(Weak::upgrade)
    }
}
