//! Filters of the masking pipeline. A filter processes a stream in pieces. Its output does not depend on how the stream is
//! split. A filter holds back at most as many bytes as the longest text that it searches for, with the escape sequences in that text.

use std::sync::Arc;

use super::escape::{Escape, escape};
use super::needles::{Found, Needles};
use super::phrases::MASKED;

/// A filter of a byte stream.
pub(super) trait Filter {
    /// Processes more of the stream, and appends output to `out`.
    fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>);
    /// Ends the stream, and appends the bytes that were held back.
    fn finish(&mut self, out: &mut Vec<u8>);
    /// Returns whether the next output does not depend on any earlier byte.
    /// No bytes are then held back, and a piece that cannot contain the beginning of a match passes unchanged.
    fn is_idle(&self) -> bool;
}

/// Replaces a secret that follows a known prefix.
/// The prefix is kept. Escape sequences do not end the secret, and are kept.
pub(super) struct PrefixFilter {
    needles: Arc<Needles>,
    /// Returns true if a byte can be part of the secret.
    is_secret_byte: fn(u8) -> bool,
    held: Vec<u8>,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Searching for the next prefix.
    Search,
    /// After a prefix, before the first byte of the secret.
    AfterPrefix,
    /// Inside the secret.
    Secret,
}

impl PrefixFilter {
    pub(super) fn new(prefixes: Arc<Needles>, is_secret_byte: fn(u8) -> bool) -> Self {
        Self { needles: prefixes, is_secret_byte, held: Vec::new(), state: State::Search }
    }

    fn run(&mut self, last: bool, out: &mut Vec<u8>) {
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
                    Escape::Partial if !last => {
                        self.held = after.to_vec();
                        return;
                    }
                    Escape::Partial | Escape::None => self.state = State::Search,
                }
            }
            match self.needles.find(&bytes, from, last) {
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
