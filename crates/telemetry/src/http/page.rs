//! JSON endpoints that other crates add to the server.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use parking_lot::Mutex;

/// Handler of a path that responds with JSON.
#[async_trait]
pub trait Page: Send + Sync {
    /// Handles a request with this query (the text after `?`). The server enforces a timeout.
    async fn answer(&self, query: &str) -> JsonAnswer;
}

/// Response of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JsonAnswer {
    /// Status 200 with this body.
    Found(Vec<u8>),
    /// Status 404 with this body.
    Missing(Vec<u8>),
    /// Status 400 with this message about the query.
    Wrong(String),
    /// Status 500 with this message.
    Failed(String),
}

/// Endpoints by path. An endpoint exists until its handler is dropped.
#[derive(Default)]
pub struct Pages(Mutex<BTreeMap<&'static str, Weak<dyn Page>>>);

impl Pages {
    /// Adds the handler of `path`, in place of an earlier one.
    pub fn add(&self, path: &'static str, page: Weak<dyn Page>) {
        self.0.lock().insert(path, page);
    }

    pub(super) fn at(&self, path: &str) -> Option<Arc<dyn Page>> {
        self.0.lock().get(path).and_then(Weak::upgrade)
    }
}
