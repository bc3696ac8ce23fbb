//! Finds the positions of a stream at which a filter may mask something.
//!
//! Most bytes of a log need no filter, and this search is much faster than the filters.

use aho_corasick::packed::Searcher;
use aho_corasick::{AhoCorasick, MatchKind};
use memchr::memchr3;

use super::byte_set::ByteSet;
use super::escape::ESC;

/// Number of first bytes by which the search recognizes a text that a filter looks for.
const PREFIX_BYTES: usize = 3;

#[derive(Debug)]
pub(super) struct Candidates {
    search: Search,
    /// Bytes with which a text starts.
    starts: ByteSet,
}

#[derive(Debug)]
enum Search {
    /// Fast, but only for a few dozen texts.
    Packed(Searcher),
    Automaton(AhoCorasick),
    Nowhere,
    /// There are too many texts, so every byte is a candidate.
    Everywhere,
}

impl Candidates {
    pub(super) fn new<'a>(texts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let texts: Vec<&[u8]> = texts.into_iter().filter(|text| !text.is_empty()).collect();
        let starts = texts.iter().filter_map(|text| text.first().copied()).collect();
        let mut prefixes: Vec<&[u8]> = texts.iter().map(|text| text.get(..PREFIX_BYTES).unwrap_or(text)).collect();
        prefixes.sort_unstable();
        prefixes.dedup();
        let search = if prefixes.is_empty() {
            Search::Nowhere
        } else if let Some(searcher) = Searcher::new(&prefixes) {
            Search::Packed(searcher)
        } else {
            let automaton = AhoCorasick::builder().match_kind(MatchKind::LeftmostFirst).build(&prefixes);
            automaton.map_or(Search::Everywhere, Search::Automaton)
        };
        Self { search, starts }
    }

    pub(super) fn scan<'a>(&'a self, bytes: &'a [u8]) -> Scan<'a> {
        Scan { candidates: self, bytes, next_text: None, next_special: None }
    }
}

pub(super) struct Scan<'a> {
    candidates: &'a Candidates,
    bytes: &'a [u8],
    /// Next position at which a text may start. `None` means not searched yet.
    next_text: Option<usize>,
    /// Next position at which a URL parameter may start, or a text with an escape sequence in its prefix.
    next_special: Option<usize>,
}

impl Scan<'_> {
    /// Returns the first position at or after `from` at which a filter may find something.
    ///
    /// The filters must be idle at `from`. The last bytes are always candidates, because the next piece may continue them.
    pub(super) fn next(&mut self, from: usize) -> usize {
        let text = self.next_text.filter(|at| *at >= from).unwrap_or_else(|| self.find_text(from));
        let special = self.next_special.filter(|at| *at >= from).unwrap_or_else(|| self.find_special(from));
        (self.next_text, self.next_special) = (Some(text), Some(special));
        let tail = (self.bytes.len() + 1).saturating_sub(PREFIX_BYTES).max(from);
        text.min(special).min(tail)
    }

    fn find_text(&self, from: usize) -> usize {
        let rest = self.bytes.get(from..).unwrap_or_default();
        let found = match &self.candidates.search {
            Search::Packed(searcher) => searcher.find(rest).map(|found| found.start()),
            Search::Automaton(automaton) => automaton.find(rest).map(|found| found.start()),
            Search::Nowhere => None,
            Search::Everywhere => Some(0),
        };
        from + found.unwrap_or(rest.len())
    }

    fn find_special(&self, from: usize) -> usize {
        let mut at = from;
        while let Some(skip) = self.bytes.get(at..).and_then(|rest| memchr3(ESC, b'?', b'&', rest)) {
            at += skip;
            if self.bytes.get(at) != Some(&ESC) {
                return at;
            }
            // The search for texts does not find a text with an escape sequence between its first bytes.
            let first = (at + 1).saturating_sub(PREFIX_BYTES).max(from);
            let before = self.bytes.get(first..at).unwrap_or_default();
            if let Some(start) = before.iter().position(|byte| self.candidates.starts.contains(*byte)) {
                return first + start;
            }
            at += 1;
        }
        self.bytes.len()
    }
}
