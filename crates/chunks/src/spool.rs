//! Downloaded parts of packs that the local store does not have.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::ops::Range;

use crate::index::{Chunk, Index};
use crate::reference::Object;

/// Maximum number of unneeded bytes between two chunks of one range.
const MAX_GAP: u64 = 32 * 1024;
/// Maximum number of ranges per pack. If more are needed, the whole pack is downloaded.
const MAX_RANGES: usize = 32;

/// Downloaded parts of packs in one file.
#[derive(Debug)]
pub struct Spool {
    file: File,
    /// Ranges of each pack: start -> end and position in `file`.
    ranges: HashMap<u32, BTreeMap<u64, (u64, u64)>>,
}

impl Spool {
    /// Returns an empty spool that reads from `file`.
    #[must_use]
    pub fn new(file: File) -> Self {
        Self { file, ranges: HashMap::new() }
    }

    /// Adds a range of a pack. Its bytes begin at position `at` of the file.
    pub fn add(&mut self, pack: u32, range: &Range<u64>, at: u64) {
        self.ranges.entry(pack).or_default().insert(range.start, (range.end, at));
    }

    /// Returns the file, and the position of a chunk there, if it was downloaded.
    pub(crate) fn locate(&self, chunk: &Chunk) -> Option<(&File, u64)> {
        let (start, (end, at)) = self.ranges.get(&chunk.pack)?.range(..=chunk.offset).next_back()?;
        (chunk.offset + u64::from(chunk.packed) <= *end).then(|| (&self.file, at + chunk.offset - start))
    }
}

/// Download of a pack or of parts of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Download {
    /// Pack.
    pub pack: Object,
    /// Number of the pack in the index.
    pub number: u32,
    /// Ranges in bytes. Empty means the whole pack.
    pub ranges: Vec<Range<u64>>,
}

impl Download {
    /// Returns the number of bytes to download.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        if self.ranges.is_empty() { self.pack.size } else { length(&self.ranges) }
    }
}

fn length(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

/// Returns the downloads for missing chunks. `has` returns whether the local store has a pack.
pub fn downloads(index: &Index, missing: &[bool], has: impl Fn(&Object) -> bool) -> Vec<Download> {
    let mut needed: BTreeMap<u32, Vec<Range<u64>>> = BTreeMap::new();
    for (chunk, _) in index.chunks.iter().zip(missing).filter(|(_, missing)| **missing) {
        needed.entry(chunk.pack).or_default().push(chunk.offset..chunk.offset + u64::from(chunk.packed));
    }
    let packs = needed.into_iter().filter_map(|(number, ranges)| {
        let pack = index.packs.get(number as usize).filter(|pack| !has(pack))?.clone();
        let ranges = join_ranges(ranges);
        // Later jobs can use whole packs, but not ranges. So if half of a pack is needed, the whole pack is downloaded.
        let is_whole = ranges.len() > MAX_RANGES || length(&ranges) * 2 >= pack.size;
        Some(Download { pack, number, ranges: if is_whole { Vec::new() } else { ranges } })
    });
    packs.collect()
}

fn join_ranges(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end.saturating_add(MAX_GAP) => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_ranges_are_joined() {
        let far = MAX_GAP + 30;
        assert_eq!(join_ranges(vec![10..20, 0..10, 15..18]), std::slice::from_ref(&(0..20)));
        assert_eq!(join_ranges(vec![0..10, far..far + 5]), [0..10, far..far + 5]);
        let both = 0..MAX_GAP + 20;
        assert_eq!(join_ranges(vec![0..10, MAX_GAP + 10..MAX_GAP + 20]), std::slice::from_ref(&both));
        assert_eq!(join_ranges(Vec::new()), []);
    }
}
