//! Entries that were not unpacked.

use std::collections::BTreeMap;
use std::path::Path;

/// Maximum number of skipped entries to list.
const MAX_LISTED: usize = 20;

/// Skipped entries, such as a file with the name of a directory that is not empty.
#[derive(Debug, Default)]
pub struct SkippedEntries {
    /// Messages by position in the archive.
    listed: BTreeMap<u64, String>,
    /// Number of entries that are not listed.
    more: usize,
}

impl SkippedEntries {
    /// Returns a line for each of the first 20 entries, and one for the others.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let more = (self.more > 0).then(|| format!("{} more were skipped", self.more));
        self.listed.values().cloned().chain(more)
    }

    /// Adds an entry at position `order` of the archive.
    pub(crate) fn add(&mut self, order: u64, path: &Path, reason: &dyn std::fmt::Display) {
        self.listed.insert(order, format!("{}: skipped: {reason}", path.display()));
        if self.listed.len() > MAX_LISTED {
            self.listed.pop_last();
            self.more += 1;
        }
    }
}
