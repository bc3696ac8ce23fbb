//! The end of a stream that nobody takes.

use std::collections::VecDeque;
use std::fmt;

/// The last bytes of a stream, and how many there were before them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tail {
    kept: VecDeque<u8>,
    omitted: u64,
}

impl Tail {
    /// Bytes that are kept (fleeting.md 4.1).
    pub const KEPT_MAX: usize = 32_767;

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.kept.extend(bytes);
        let excess = self.kept.len().saturating_sub(Self::KEPT_MAX);
        self.kept.drain(..excess);
        self.omitted += excess as u64;
    }

    /// Bytes before those that were kept.
    #[must_use]
    pub fn omitted(&self) -> u64 {
        self.omitted
    }

    /// Whether there was nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }
}

impl fmt::Display for Tail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.omitted > 0 {
            write!(f, "[{} bytes omitted] ", self.omitted)?;
        }
        let (first, second) = self.kept.as_slices();
        f.write_str(&String::from_utf8_lossy(&[first, second].concat()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c8_the_last_bytes_are_kept_and_the_others_counted() {
        let mut tail = Tail::default();
        for _ in 0..1024 {
            tail.push(&[b'x'; 1024]);
        }
        tail.push(b"end");
        assert_eq!(tail.omitted(), 1024 * 1024 + 3 - 32_767);
        assert!(tail.to_string().ends_with("xend"), "{tail}");
        assert!(tail.to_string().starts_with("[1015812 bytes omitted] x"), "{tail}");
    }
}
