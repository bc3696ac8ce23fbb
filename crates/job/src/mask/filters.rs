//! Filters of the masking pipeline. Their output does not depend on how the stream is split.
//!
//! A filter holds back at most the longest text that it searches for, with escape sequences in it.

use std::sync::Arc;

use super::escape::{Escape, escape};
use super::needles::{Found, Needles};
use super::phrases::MASKED;

pub(super) trait Filter {
    /// Appends output to `out`.
    fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>);
    /// Appends the bytes that were held back.
    fn finish(&mut self, out: &mut Vec<u8>);
    /// Returns whether the next output does not depend on any earlier byte. No bytes are then held back.
    fn is_idle(&self) -> bool;
}

/// Replaces a secret after a known prefix. The prefix, and escape sequences in the secret, are kept.
pub(super) struct PrefixFilter {
    needles: Arc<Needles>,
    is_secret_byte: fn(u8) -> bool,
    held: Vec<u8>,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Search,
    /// Before the first byte of the secret.
    AfterPrefix,
    Secret,
}

impl PrefixFilter {
    pub(super) fn new(prefixes: Arc<Needles>, is_secret_byte: fn(u8) -> bool) -> Self {
        Self { needles: prefixes, is_secret_byte, held: Vec::new(), state: State::Search }
    }

    fn run(&mut self, is_end: bool, out: &mut Vec<u8>) {
        let bytes = std::mem::take(&mut self.held);
        let mut from = 0;
        loop {
            let rest = bytes.get(from..).unwrap_or_default();
            if self.state != State::Search {
                let length = rest.iter().position(|byte| !(self.is_secret_byte)(*byte)).unwrap_or(rest.len());
                if length > 0 && self.state == State::AfterPrefix {
                    out.extend_from_slice(MASKED);
                    self.state = State::Secret;
                }
                let after = rest.get(length..).unwrap_or_default();
                if after.is_empty() {
                    return;
                }
                from += length;
                match escape(after) {
                    Escape::Length(length) => {
                        out.extend_from_slice(after.get(..length).unwrap_or_default());
                        from += length;
                        continue;
                    }
                    Escape::Partial if !is_end => {
                        self.held = after.to_vec();
                        return;
                    }
                    Escape::Partial | Escape::None => self.state = State::Search,
                }
            }
            match self.needles.find(&bytes, from, is_end) {
                Found::Nothing => {
                    out.extend_from_slice(bytes.get(from..).unwrap_or_default());
                    self.held = bytes;
                    self.held.clear();
                    return;
                }
                Found::Undecided(start) => {
                    out.extend_from_slice(bytes.get(from..start).unwrap_or_default());
                    self.held = bytes.get(start..).unwrap_or_default().to_vec();
                    return;
                }
                Found::At { end } => {
                    out.extend_from_slice(bytes.get(from..end).unwrap_or_default());
                    self.state = State::AfterPrefix;
                    from = end;
                }
            }
        }
    }
}

impl Filter for PrefixFilter {
    fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        self.held.extend_from_slice(bytes);
        self.run(false, out);
    }

    fn finish(&mut self, out: &mut Vec<u8>) {
        self.run(true, out);
        self.state = State::Search;
    }

    fn is_idle(&self) -> bool {
        self.held.is_empty() && self.state == State::Search
    }
}
