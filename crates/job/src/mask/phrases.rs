//! Replaces phrases as a whole, wherever they stand and whatever escape sequences are inside. Every occurrence counts, also
//! one that begins within another: those that overlap become one, and no part of any is left.
//!
//! A stream is looked at twice: as it is, and as people see it. Bytes of an escape sequence may be those of a phrase as well.

use std::collections::VecDeque;

use super::escape::{Escape, GAP_MAX, escape};
use super::filters::Filter;
use super::trie::{NOWHERE, Place, Trie};

/// What stands for a secret.
pub(super) const MASKED: &[u8] = b"[MASKED]";
/// Behind a secret that had escape sequences inside. They are dropped with it, and one may have ended a colour.
const RESET: &[u8] = b"\x1b[0m";

/// A byte that waits for what follows it.
#[derive(Debug, Clone, Copy)]
struct Held {
    byte: u8,
    /// Part of an escape sequence.
    escape: bool,
}

/// What is being left out.
#[derive(Debug, Clone, Copy)]
struct Open {
    /// Behind its last byte, as far as is known.
    end: u64,
    /// It had an escape sequence inside.
    escapes: bool,
}

/// Positions are counted from the start of the stream.
pub(super) struct Phrases {
    trie: Trie,
    /// In what people see.
    place: Place,
    /// In the stream as it is.
    plain: Place,
    /// From the first byte of what may be a phrase on.
    held: VecDeque<Held>,
    /// Where the first held byte stands.
    held_at: u64,
    /// Where the last bytes stand that are no escape sequence, as many as the place is deep.
    seen: VecDeque<u64>,
    /// Bytes of escape sequences since the last of them.
    gap: usize,
    /// What was found among the held bytes: start and end, in order, none touches another's bytes.
    found: VecDeque<(u64, u64)>,
    open: Option<Open>,
    /// The start of what may be an escape sequence, at the end of a piece.
    partial: Vec<u8>,
}

impl Phrases {
    pub(super) fn new(phrases: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let phrases: Vec<Vec<u8>> = phrases.into_iter().flat_map(|phrase| [visible(&phrase), phrase]).collect();
        Self {
            trie: Trie::new(phrases.iter().map(Vec::as_slice)),
            place: NOWHERE,
            plain: NOWHERE,
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
            if self.place == NOWHERE {
                let idle = if self.plain == NOWHERE { self.trie.idle(rest) } else { 0 };
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

    /// Bytes that belong to no phrase, while nothing is held.
    fn pass(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        self.close(out);
        out.extend_from_slice(bytes);
        self.held_at += bytes.len() as u64;
    }

    /// One more byte that is seen.
    fn take(&mut self, byte: u8, out: &mut Vec<u8>) {
        // Both are one as long as there is no escape sequence.
        let same = self.place == self.plain;
        let at = self.hold(byte, false);
        self.seen.push_back(at);
        self.gap = 0;
        self.place = if same { self.plain } else { self.trie.next(self.place, byte) };
        let depth = self.trie.depth(self.place);
        while self.seen.len() > depth {
            self.seen.pop_front();
        }
        let first = self.trie.longest(self.place).and_then(|length| self.seen.get(depth.checked_sub(length)?));
        if let Some(start) = first.copied() {
            self.find(start, at + 1);
        }
        self.release_decided(out);
    }

    /// An escape sequence inside what may be a phrase. More than some of them, and it is none.
    fn skip(&mut self, sequence: &[u8], out: &mut Vec<u8>) {
        for byte in sequence {
            self.hold(*byte, true);
        }
        self.gap += sequence.len();
        if self.gap > GAP_MAX {
            self.place = NOWHERE;
            self.seen.clear();
            self.gap = 0;
            self.release_decided(out);
        }
    }

    /// One more byte of the stream as it is; where it stands.
    fn hold(&mut self, byte: u8, escape: bool) -> u64 {
        let at = self.held_at + self.held.len() as u64;
        self.held.push_back(Held { byte, escape });
        self.plain = self.trie.next(self.plain, byte);
        if let Some(length) = self.trie.longest(self.plain) {
            self.find((at + 1).saturating_sub(length as u64), at + 1);
        }
        at
    }

    /// Lets go of what no phrase can begin in any more.
    fn release_decided(&mut self, out: &mut Vec<u8>) {
        let end = self.held_at + self.held.len() as u64;
        let plain = end.saturating_sub(self.trie.depth(self.plain) as u64);
        self.release(self.seen.front().map_or(plain, |seen| plain.min(*seen)), out);
    }

    /// What is held will not become a phrase.
    fn forget(&mut self, out: &mut Vec<u8>) {
        (self.place, self.plain) = (NOWHERE, NOWHERE);
        self.seen.clear();
        self.gap = 0;
        self.release(self.held_at + self.held.len() as u64, out);
    }

    /// A phrase stands there.
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

    /// Lets go of what stands before `end`.
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

    /// What was left out is over.
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

/// What people see of a text.
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
