//! Finding any of a few short texts in a stream, longest first, without ever depending on where the stream was split. Escape
//! sequences may stand between their bytes.

use super::escape::{Escape, GAP_MAX, escape};

/// A set of texts to find.
#[derive(Debug, Clone)]
pub(super) struct Needles {
    /// Longest first, without doubles.
    texts: Vec<Vec<u8>>,
    /// Whether a byte can start one.
    starts: Box<[bool; 256]>,
    ignore_case: bool,
}

/// What is at some place of the stream.
pub(super) enum Found {
    /// Nothing starts in what was looked at.
    Nothing,
    /// From here on, more bytes are needed to decide.
    Undecided(usize),
    /// A text.
    At {
        /// Behind its last byte.
        end: usize,
    },
}

impl Needles {
    pub(super) fn new(texts: impl IntoIterator<Item = Vec<u8>>, ignore_case: bool) -> Self {
        let mut texts: Vec<Vec<u8>> = texts.into_iter().filter(|text| !text.is_empty()).collect();
        texts.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        texts.dedup();
        let mut starts = Box::new([false; 256]);
        for first in texts.iter().filter_map(|text| text.first()) {
            for byte in [*first, first.to_ascii_lowercase(), first.to_ascii_uppercase()] {
                if (byte == *first || ignore_case)
                    && let Some(start) = starts.get_mut(usize::from(byte))
                {
                    *start = true;
                }
            }
        }
        Self { texts, starts, ignore_case }
    }

    /// The first text at or after `from`; of several at one place the longest. `last` says that nothing follows.
    pub(super) fn find(&self, bytes: &[u8], from: usize, last: bool) -> Found {
        let mut at = from;
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            let Some(skip) = rest.iter().position(|byte| self.starts.get(usize::from(*byte)) == Some(&true)) else {
                return Found::Nothing;
            };
            at += skip;
            let rest = bytes.get(at..).unwrap_or_default();
            for text in &self.texts {
                match self.compare(text, rest) {
                    Compared::Equal(length) => {
                        return Found::At { end: at + length };
                    }
                    Compared::Undecided if !last => return Found::Undecided(at),
                    Compared::Undecided | Compared::Different => {}
                }
            }
            at += 1;
        }
        Found::Nothing
    }

    /// Whether `bytes` start with `text`, when escape sequences are left out that `text` does not have.
    fn compare(&self, text: &[u8], bytes: &[u8]) -> Compared {
        let mut at = 0;
        for wanted in text {
            let mut gap = 0;
            loop {
                let Some(byte) = bytes.get(at + gap) else { return Compared::Undecided };
                if byte == wanted || (self.ignore_case && byte.eq_ignore_ascii_case(wanted)) {
                    break;
                }
                gap += match escape(bytes.get(at + gap..).unwrap_or_default()) {
                    Escape::Length(length) => length,
                    Escape::Partial => return Compared::Undecided,
                    Escape::None => return Compared::Different,
                };
                if gap > GAP_MAX {
                    return Compared::Different;
                }
            }
            at += gap + 1;
        }
        Compared::Equal(at)
    }
}

/// How a text compares to what is at some place.
enum Compared {
    /// It is there, in this many bytes.
    Equal(usize),
    Different,
    /// So far it is there, but the bytes end.
    Undecided,
}
