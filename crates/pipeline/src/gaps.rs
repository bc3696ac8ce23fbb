//! Records which parts of a configuration could not be loaded, to avoid errors that only result from that.

use std::collections::HashSet;
use std::sync::Arc;

/// Parts that could not be loaded.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gaps {
    /// True if an included file is missing. It could define any name.
    pub(crate) lacks_a_file: bool,
    /// True if includes were skipped because the caller allows it ([`crate::context::Context::stubs_includes`]).
    pub(crate) is_stub: bool,
    /// Top-level keys that lack a parent or the target of a reference.
    keys: HashSet<Arc<str>>,
}

impl Gaps {
    /// Creates the record of missing files.
    pub(crate) fn of_files(lacks_a_file: bool, is_stub: bool) -> Self {
        Self { lacks_a_file, is_stub, keys: HashSet::new() }
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
        !self.lacks_a_file && self.keys.is_empty()
    }
}
