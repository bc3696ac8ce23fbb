//! Replaces phrases in a stream, even with escape sequences inside. Overlapping phrases are replaced as one, so that no
//! part of them remains.
//!
//! Two searches run at the same time. One skips escape sequences. The other one searches all bytes, because a phrase
//! can itself contain bytes of an escape sequence.

use std::collections::VecDeque;
use std::sync::Arc;

use super::escape::{Escape, MAX_GAP, escape};
use super::filters::Filter;
use super::trie::{START, Trie, TrieState};

pub(super) const MASKED: &[u8] = b"[MASKED]";
/// Written after the replacement of a phrase that contained escape sequences. One of them may have reset a color, and
/// was removed with the phrase.
const RESET: &[u8] = b"\x1b[0m";

#[derive(Debug, Clone, Copy)]
struct PendingByte {
    byte: u8,
    /// Whether the byte is part of an escape sequence.
    escape: bool,
}

#[derive(Debug, Clone, Copy)]
struct Replacement {
    /// Position after the last byte that is known to be replaced.
    end: u64,
    has_escapes: bool,
}

/// Filter that replaces phrases. Its positions count from the start of the stream.
pub(super) struct Phrases {
    trie: Arc<Trie>,
    visible_state: TrieState,
    raw_state: TrieState,
    /// Bytes that are held back: from the first byte of a possible phrase on.
    held: VecDeque<PendingByte>,
    held_start: u64,
    /// Positions of the visible bytes that the search has matched.
    visible_positions: VecDeque<u64>,
    /// Number of bytes in escape sequences since the last visible byte.
    gap: usize,
    /// Start and end of the phrases found in the held bytes, in order, without overlaps.
    found: VecDeque<(u64, u64)>,
    replacement: Option<Replacement>,
    /// Start of a possible escape sequence at the end of a piece.
    partial: Vec<u8>,
}

impl Phrases {
    pub(super) fn new(trie: Arc<Trie>) -> Self {
        Self {
            trie,
            visible_state: START,
            raw_state: START,
            held: VecDeque::new(),
            held_start: 0,
            visible_positions: VecDeque::new(),
            gap: 0,
            found: VecDeque::new(),
            replacement: None,
            partial: Vec::new(),
        }
    }

    fn run(&mut self, bytes: &[u8], is_end: bool, out: &mut Vec<u8>) {
        let mut rest = bytes;
        while let Some(byte) = rest.first() {
            let mut length = 1;
            if self.visible_state == START {
                let skippable = if self.raw_state == START { self.trie.skippable(rest) } else { 0 };
                if skippable > 0 {
                    self.pass_through(rest.get(..skippable).unwrap_or_default(), out);
                    rest = rest.get(skippable..).unwrap_or_default();
                    continue;
                }
                self.push_visible(*byte, out);
            } else {
                match escape(rest) {
                    Escape::Length(sequence_length) => {
                        length = sequence_length;
                        self.push_escape(rest.get(..sequence_length).unwrap_or_default(), out);
                    }
                    Escape::Partial if !is_end => {
                        self.partial = rest.to_vec();
                        return;
                    }
                    Escape::Partial | Escape::None => self.push_visible(*byte, out),
                }
            }
            rest = rest.get(length..).unwrap_or_default();
        }
    }

    /// Appends bytes that belong to no phrase. Must be called only while no bytes are held back.
    fn pass_through(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        self.close(out);
        out.extend_from_slice(bytes);
        self.held_start += bytes.len() as u64;
    }

    /// Processes a visible byte, or any byte while no phrase is in progress.
    fn push_visible(&mut self, byte: u8, out: &mut Vec<u8>) {
        // Both states are equal until an escape sequence occurs.
        let same = self.visible_state == self.raw_state;
        let at = self.hold(byte, false);
        self.visible_positions.push_back(at);
        self.gap = 0;
        self.visible_state = if same { self.raw_state } else { self.trie.next(self.visible_state, byte) };
        let depth = self.trie.depth(self.visible_state);
        while self.visible_positions.len() > depth {
            self.visible_positions.pop_front();
        }
        let first = self
            .trie
            .longest(self.visible_state)
            .and_then(|length| self.visible_positions.get(depth.checked_sub(length)?));
        if let Some(start) = first.copied() {
            self.record_match(start, at + 1);
        }
        self.release_decided(out);
    }

    /// Processes an escape sequence inside a possible phrase.
    ///
    /// More than [`MAX_GAP`] bytes without a visible byte end the search for a visible phrase.
    fn push_escape(&mut self, sequence: &[u8], out: &mut Vec<u8>) {
        for byte in sequence {
            self.hold(*byte, true);
        }
        self.gap += sequence.len();
        if self.gap > MAX_GAP {
            self.visible_state = START;
            self.visible_positions.clear();
            self.gap = 0;
            self.release_decided(out);
        }
    }

    /// Holds back a byte, and continues the search that does not skip escape sequences.
    /// Returns the position of the byte.
    fn hold(&mut self, byte: u8, escape: bool) -> u64 {
        let at = self.held_start + self.held.len() as u64;
        self.held.push_back(PendingByte { byte, escape });
        self.raw_state = self.trie.next(self.raw_state, byte);
        if let Some(length) = self.trie.longest(self.raw_state) {
            self.record_match((at + 1).saturating_sub(length as u64), at + 1);
        }
        at
    }

    fn release_decided(&mut self, out: &mut Vec<u8>) {
        let end = self.held_start + self.held.len() as u64;
        let first = end.saturating_sub(self.trie.depth(self.raw_state) as u64);
        self.release(self.visible_positions.front().map_or(first, |position| first.min(*position)), out);
    }

    /// Releases all held bytes at the end of the stream, because no phrase can continue.
    fn release_all(&mut self, out: &mut Vec<u8>) {
        (self.visible_state, self.raw_state) = (START, START);
        self.visible_positions.clear();
        self.gap = 0;
        self.release(self.held_start + self.held.len() as u64, out);
    }

    fn record_match(&mut self, mut start: u64, end: u64) {
        if let Some(open) = self.replacement.as_mut().filter(|open| start < open.end) {
            open.end = end;
            self.found.clear();
            return;
        }
        while let Some((before, _)) = self.found.back().copied().filter(|(_, end)| *end > start) {
            start = start.min(before);
            self.found.pop_back();
        }
        self.found.push_back((start, end));
    }

    fn release(&mut self, end: u64, out: &mut Vec<u8>) {
        while self.held_start < end {
            let Some(PendingByte { byte, escape }) = self.held.pop_front() else { return };
            if self.replacement.is_some_and(|open| open.end <= self.held_start) {
                self.close(out);
            }
            if let Some((_, end)) = self.found.front().copied().filter(|(start, _)| *start == self.held_start) {
                self.found.pop_front();
                out.extend_from_slice(MASKED);
                self.replacement = Some(Replacement { end, has_escapes: false });
            }
            match &mut self.replacement {
                Some(open) => open.has_escapes |= escape,
                None => out.push(byte),
            }
            self.held_start += 1;
        }
    }

    fn close(&mut self, out: &mut Vec<u8>) {
        if self.replacement.take().is_some_and(|open| open.has_escapes) {
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
            let mut joined = std::mem::take(&mut self.partial);
            joined.extend_from_slice(bytes);
            self.run(&joined, false, out);
        }
    }

    fn finish(&mut self, out: &mut Vec<u8>) {
        let partial = std::mem::take(&mut self.partial);
        self.run(&partial, true, out);
        self.release_all(out);
        self.close(out);
    }

    fn is_idle(&self) -> bool {
        self.held.is_empty() && self.partial.is_empty() && self.replacement.is_none()
    }
}

pub(super) fn visible_bytes(text: &[u8]) -> Vec<u8> {
    let mut rest = text;
    let mut visible = Vec::with_capacity(text.len());
    while let Some(byte) = rest.first() {
        let length = match escape(rest) {
            Escape::Length(length) => length,
            Escape::Partial | Escape::None => {
                visible.push(*byte);
                1
            }
        };
        rest = rest.get(length..).unwrap_or_default();
    }
    visible
}
