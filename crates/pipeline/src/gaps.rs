//! Records which parts of a configuration could not be loaded, so that errors that result only from missing parts are not
//! reported.

use std::collections::HashSet;
use std::sync::Arc;

/// Parts that could not be loaded.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gaps {
    /// True if an included file could not be read or was skipped. The file could define any name.
    pub(crate) has_missing_file: bool,
    /// True if includes were skipped because the caller allows it ([`crate::context::Context::stubs_includes`]).
    pub(crate) is_stub: bool,
    /// Top-level keys that lack a parent of their `extends` or the target of a `!reference`.
    keys: HashSet<Arc<str>>,
}

impl Gaps {
    /// Creates a record without incomplete keys.
    pub(crate) fn new(has_missing_file: bool, is_stub: bool) -> Self {
        Self { has_missing_file, is_stub, keys: HashSet::new() }
    }

    /// Records that a top-level key is incomplete.
    pub(crate) fn add(&mut self, key: &Arc<str>) {
        self.keys.insert(Arc::clone(key));
    }

    /// Returns true if a top-level key is incomplete.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.keys.contains(key)
    }

    /// Returns true if nothing is missing.
    pub(crate) fn is_empty(&self) -> bool {
        !self.has_missing_file && self.keys.is_empty()
    }
}
