//! Entries that were not unpacked.

use std::collections::BTreeMap;
use std::path::Path;

/// Maximum number of skipped entries that are listed by name.
const MAX_LISTED: usize = 20;

/// Entries that could not be written, such as a file with the name of an existing directory that is not empty.
#[derive(Debug, Default)]
pub struct SkippedEntries {
    /// Messages by the position of the entry in the archive.
    listed: BTreeMap<u64, String>,
    /// Number of skipped entries that are not listed.
    more: usize,
}

impl SkippedEntries {
    /// Returns a line for each of the first 20 entries, and one line with the number of the others.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let more = (self.more > 0).then(|| format!("{} more were skipped", self.more));
        self.listed.values().cloned().chain(more)
    }

    /// Adds an entry. `order` is its position in the archive.
    pub(crate) fn add(&mut self, order: u64, path: &Path, reason: &dyn std::fmt::Display) {
        self.listed.insert(order, format!("{}: skipped: {reason}", path.display()));
        if self.listed.len() > MAX_LISTED {
            self.listed.pop_last();
            self.more += 1;
        }
    }
}
