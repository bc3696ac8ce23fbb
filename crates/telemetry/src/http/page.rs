//! Pages that other rooms have on the server.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use parking_lot::Mutex;

/// Answers a path with JSON.
#[async_trait]
pub trait Page: Send + Sync {
    /// The answer to a request with this query (the text after `?`). The server cuts it off after a while.
    async fn answer(&self, query: &str) -> JsonAnswer;
}

/// An answer of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JsonAnswer {
    /// What was asked for.
    Found(Vec<u8>),
    /// There is nothing of what was asked for; the body says so.
    Missing(Vec<u8>),
    /// The question is none; why.
    Wrong(String),
    /// It cannot be answered; why.
    Failed(String),
}

/// The pages, by path. A page is there as long as who answers for it.
#[derive(Default)]
pub struct Pages(Mutex<BTreeMap<&'static str, Weak<dyn Page>>>);

impl Pages {
    /// Answers `path` from now on by `page`.
    pub fn add(&self, path: &'static str, page: Weak<dyn Page>) {
        self.0.lock().insert(path, page);
    }

    pub(super) fn at(&self, path: &str) -> Option<Arc<dyn Page>> {
        self.0.lock().get(path).and_then(Weak::upgrade)
    }
}
