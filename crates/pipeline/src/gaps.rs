//! What of a configuration is missing, so that what is only wrong because of that is not told.

use std::collections::HashSet;
use std::sync::Arc;

/// What could not be had while a configuration was loaded.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gaps {
    /// A file could not be included: any name may be defined there.
    pub(crate) lacks_a_file: bool,
    /// Files were left out because the caller wants to go on without them ([`crate::context::Context::stubs_includes`]).
    pub(crate) is_stub: bool,
    /// Keys of the top level that lack a part: a parent, or what a reference names.
    keys: HashSet<Arc<str>>,
}

impl Gaps {
    /// What is missing for want of files.
    pub(crate) fn of_files(lacks_a_file: bool, is_stub: bool) -> Self {
        Self { lacks_a_file, is_stub, keys: HashSet::new() }
    }

    /// Notes that a key of the top level lacks a part.
    pub(crate) fn add(&mut self, key: &Arc<str>) {
        self.keys.insert(Arc::clone(key));
    }

    /// Whether a key of the top level lacks a part.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.keys.contains(key)
    }

    /// Whether nothing is missing.
    pub(crate) fn is_empty(&self) -> bool {
        !self.lacks_a_file && self.keys.is_empty()
    }
}
