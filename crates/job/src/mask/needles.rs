//! Finds the longest of a few short texts in a stream, even with escape sequences between their bytes.

use super::byte_set::ByteSet;
use super::escape::{Escape, MAX_GAP, escape};

#[derive(Debug, Clone)]
pub(super) struct Needles {
    /// Longest first, without duplicates.
    texts: Vec<Vec<u8>>,
    /// Bytes with which a text can start.
    starts: ByteSet,
    ignore_case: bool,
}

pub(super) enum Found {
    Nothing,
    /// More bytes are needed to decide.
    Undecided(usize),
    At {
        /// Position after the last byte of the text.
        end: usize,
    },
}

impl Needles {
    pub(super) fn new(texts: impl IntoIterator<Item = Vec<u8>>, ignore_case: bool) -> Self {
        let mut texts: Vec<Vec<u8>> = texts.into_iter().filter(|text| !text.is_empty()).collect();
        texts.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        texts.dedup();
        let cases =
            |byte: &u8| if ignore_case { [byte.to_ascii_lowercase(), byte.to_ascii_uppercase()] } else { [*byte; 2] };
        let starts = texts.iter().filter_map(|text| text.first()).flat_map(cases).collect();
        Self { texts, starts, ignore_case }
    }

    pub(super) fn texts(&self) -> impl Iterator<Item = &[u8]> {
        self.texts.iter().map(Vec::as_slice)
    }

    /// Finds the first position, from `from` on, at which a text starts, and the longest text that starts there.
    ///
    /// `is_stream_end` means that no bytes follow.
    pub(super) fn find(&self, bytes: &[u8], from: usize, is_stream_end: bool) -> Found {
        let mut at = from;
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            let Some(skip) = rest.iter().position(|byte| self.starts.contains(*byte)) else {
                return Found::Nothing;
            };
            at += skip;
            let rest = bytes.get(at..).unwrap_or_default();
            for text in &self.texts {
                match self.compare(text, rest) {
                    Compared::Equal(length) => {
                        return Found::At { end: at + length };
                    }
                    Compared::Undecided if !is_stream_end => return Found::Undecided(at),
                    Compared::Undecided | Compared::Different => {}
                }
            }
            at += 1;
        }
        Found::Nothing
    }

    /// Compares `bytes` with `text`, ignoring escape sequences that are not part of `text`.
    fn compare(&self, text: &[u8], bytes: &[u8]) -> Compared {
        let mut at = 0;
        for expected in text {
            let mut gap = 0;
            loop {
                let Some(byte) = bytes.get(at + gap) else { return Compared::Undecided };
                if byte == expected || (self.ignore_case && byte.eq_ignore_ascii_case(expected)) {
                    break;
                }
                gap += match escape(bytes.get(at + gap..).unwrap_or_default()) {
                    Escape::Length(length) => length,
                    Escape::Partial => return Compared::Undecided,
                    Escape::None => return Compared::Different,
                };
                if gap > MAX_GAP {
                    return Compared::Different;
                }
            }
            at += gap + 1;
        }
        Compared::Equal(at)
    }
}

enum Compared {
    /// Length of the text in the stream, with the escape sequences in it.
    Equal(usize),
    Different,
    /// The bytes end too early.
    Undecided,
}
