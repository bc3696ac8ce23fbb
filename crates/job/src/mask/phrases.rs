//! Replaces phrases in a stream, even with escape sequences inside. Every occurrence counts: overlapping occurrences
//! are replaced as one, so that no part of a phrase remains.
//!
//! The stream is searched twice: as it is, and without escape sequences. The bytes of an escape sequence can be part of
//! a phrase.

use std::collections::VecDeque;

use super::escape::{Escape, MAX_GAP, escape};
use super::filters::Filter;
use super::trie::{START, Trie, TrieState};

/// Replacement for a secret.
pub(super) const MASKED: &[u8] = b"[MASKED]";
/// Written after a secret that contained escape sequences. They are removed with it, and one of them may have reset a
/// color.
const RESET: &[u8] = b"\x1b[0m";

/// A byte that is held back until the following bytes are known.
#[derive(Debug, Clone, Copy)]
struct Held {
    byte: u8,
    /// Whether it is part of an escape sequence.
    escape: bool,
}

/// A range that is being replaced.
#[derive(Debug, Clone, Copy)]
struct Open {
    /// Position after its last known byte.
    end: u64,
    /// Whether it contains an escape sequence.
    escapes: bool,
}

/// State of the replacement. Positions count from the start of the stream.
pub(super) struct Phrases {
    trie: Trie,
    /// State of the search in the visible text.
    visible_state: TrieState,
    /// State of the search in the raw stream.
    raw_state: TrieState,
    /// Bytes held back, from the first byte of a possible phrase.
    held: VecDeque<Held>,
    /// Position of the first held byte.
    held_at: u64,
    /// Positions of the last visible bytes, one for each byte that the search has matched.
    seen: VecDeque<u64>,
    /// Number of bytes in escape sequences since the last visible byte.
    gap: usize,
    /// Start and end of the phrases found in the held bytes, in order, without overlaps.
    found: VecDeque<(u64, u64)>,
    open: Option<Open>,
    /// Start of a possible escape sequence at the end of a piece.
    partial: Vec<u8>,
}

impl Phrases {
    pub(super) fn new(phrases: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let phrases: Vec<Vec<u8>> = phrases.into_iter().flat_map(|phrase| [visible(&phrase), phrase]).collect();
        Self {
            trie: Trie::new(phrases.iter().map(Vec::as_slice)),
            visible_state: START,
            raw_state: START,
            held: VecDeque::new(),
            held_at: 0,
            seen: VecDeque::new(),
            gap: 0,
            found: VecDeque::new(),
            open: None,
            partial: Vec::new(),
        }
    }

    fn run(&mut self, bytes: &[u8], last: bool, out: &mut Vec<u8>) {
        let mut rest = bytes;
        while let Some(byte) = rest.first() {
            let mut length = 1;
            if self.visible_state == START {
                let idle = if self.raw_state == START { self.trie.idle(rest) } else { 0 };
                if idle > 0 {
                    self.pass(rest.get(..idle).unwrap_or_default(), out);
                    rest = rest.get(idle..).unwrap_or_default();
                    continue;
                }
                self.take(*byte, out);
            } else {
                match escape(rest) {
                    Escape::Length(whole) => {
                        length = whole;
                        self.skip(rest.get(..whole).unwrap_or_default(), out);
                    }
                    Escape::Partial if !last => {
                        self.partial = rest.to_vec();
                        return;
                    }
                    Escape::Partial | Escape::None => self.take(*byte, out),
                }
            }
            rest = rest.get(length..).unwrap_or_default();
        }
    }

    /// Passes on bytes that belong to no phrase, while nothing is held back.
    fn pass(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        self.close(out);
        out.extend_from_slice(bytes);
        self.held_at += bytes.len() as u64;
    }

    /// Processes a visible byte.
    fn take(&mut self, byte: u8, out: &mut Vec<u8>) {
        // Both states are equal as long as there is no escape sequence.
        let same = self.visible_state == self.raw_state;
        let at = self.hold(byte, false);
        self.seen.push_back(at);
        self.gap = 0;
        self.visible_state = if same { self.raw_state } else { self.trie.next(self.visible_state, byte) };
        let depth = self.trie.depth(self.visible_state);
        while self.seen.len() > depth {
            self.seen.pop_front();
        }
        let first = self.trie.longest(self.visible_state).and_then(|length| self.seen.get(depth.checked_sub(length)?));
        if let Some(start) = first.copied() {
            self.find(start, at + 1);
        }
        self.release_decided(out);
    }

    /// Processes an escape sequence inside a possible phrase. Too many of them end the search for a visible phrase.
    fn skip(&mut self, sequence: &[u8], out: &mut Vec<u8>) {
        for byte in sequence {
            self.hold(*byte, true);
        }
        self.gap += sequence.len();
        if self.gap > MAX_GAP {
            self.visible_state = START;
            self.seen.clear();
            self.gap = 0;
            self.release_decided(out);
        }
    }

    /// Holds back a byte of the stream, and returns its position.
    fn hold(&mut self, byte: u8, escape: bool) -> u64 {
        let at = self.held_at + self.held.len() as u64;
        self.held.push_back(Held { byte, escape });
        self.raw_state = self.trie.next(self.raw_state, byte);
        if let Some(length) = self.trie.longest(self.raw_state) {
            self.find((at + 1).saturating_sub(length as u64), at + 1);
        }
        at
    }

    /// Releases the bytes that cannot be part of a phrase.
    fn release_decided(&mut self, out: &mut Vec<u8>) {
        let end = self.held_at + self.held.len() as u64;
        let first = end.saturating_sub(self.trie.depth(self.raw_state) as u64);
        self.release(self.seen.front().map_or(first, |seen| first.min(*seen)), out);
    }

    /// Releases all held bytes, because they are not part of a phrase.
    fn forget(&mut self, out: &mut Vec<u8>) {
        (self.visible_state, self.raw_state) = (START, START);
        self.seen.clear();
        self.gap = 0;
        self.release(self.held_at + self.held.len() as u64, out);
    }

    /// Records a phrase at this range.
    fn find(&mut self, mut start: u64, end: u64) {
        if let Some(open) = self.open.as_mut().filter(|open| start < open.end) {
            open.end = end;
            self.found.clear();
            return;
        }
        while let Some((before, _)) = self.found.back().copied().filter(|(_, known)| *known > start) {
            start = start.min(before);
            self.found.pop_back();
        }
        self.found.push_back((start, end));
    }

    /// Releases the bytes before `end`.
    fn release(&mut self, end: u64, out: &mut Vec<u8>) {
        while self.held_at < end {
            let Some(Held { byte, escape }) = self.held.pop_front() else { return };
            if self.open.is_some_and(|open| open.end <= self.held_at) {
                self.close(out);
            }
            if let Some((_, end)) = self.found.front().copied().filter(|(start, _)| *start == self.held_at) {
                self.found.pop_front();
                out.extend_from_slice(MASKED);
                self.open = Some(Open { end, escapes: false });
            }
            match &mut self.open {
                Some(open) => open.escapes |= escape,
                None => out.push(byte),
            }
            self.held_at += 1;
        }
    }

    /// Ends the current replacement.
    fn close(&mut self, out: &mut Vec<u8>) {
        if self.open.take().is_some_and(|open| open.escapes) {
            out.extend_from_slice(RESET);
        }
    }
}

impl Filter for Phrases {
    fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        if self.trie.is_empty() {
            out.extend_from_slice(bytes);
        } else if self.partial.is_empty() {
            self.run(bytes, false, out);
        } else {
            let mut whole = std::mem::take(&mut self.partial);
            whole.extend_from_slice(bytes);
            self.run(&whole, false, out);
        }
    }

    fn finish(&mut self, out: &mut Vec<u8>) {
        let partial = std::mem::take(&mut self.partial);
        self.run(&partial, true, out);
        self.forget(out);
        self.close(out);
    }
}

/// Returns a text without its escape sequences.
fn visible(text: &[u8]) -> Vec<u8> {
    let mut rest = text;
    let mut seen = Vec::with_capacity(text.len());
    while let Some(byte) = rest.first() {
        let length = match escape(rest) {
            Escape::Length(length) => length,
            Escape::Partial | Escape::None => {
                seen.push(*byte);
                1
            }
        };
        rest = rest.get(length..).unwrap_or_default();
    }
    seen
}
