//! Records which parts of a configuration could not be loaded, to suppress errors that result only from them.

use std::collections::HashSet;
use std::sync::Arc;

#[derive(Debug, Clone, Default)]
pub(crate) struct Gaps {
    /// True if an included file could not be read or was skipped. The file could define any name.
    pub(crate) has_missing_file: bool,
    /// True if includes were skipped because the caller allows it ([`crate::context::Context::stubs_includes`]).
    pub(crate) includes_were_skipped: bool,
    /// Top-level keys that lack a parent of their `extends` or the target of a `!reference`.
    keys: HashSet<Arc<str>>,
}

impl Gaps {
    pub(crate) fn new(has_missing_file: bool, includes_were_skipped: bool) -> Self {
        Self { has_missing_file, includes_were_skipped, keys: HashSet::new() }
    }

    pub(crate) fn add(&mut self, key: &Arc<str>) {
        self.keys.insert(Arc::clone(key));
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.keys.contains(key)
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.has_missing_file && self.keys.is_empty()
    }
}
