use std::collections::VecDeque;
use std::fmt;

/// The last bytes of a stream that is not forwarded, and the number of bytes before them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tail {
    bytes: VecDeque<u8>,
    omitted: u64,
}

impl Tail {
    /// Maximum number of stored bytes (docs/spec/fleeting.md, section 4.1).
    pub const MAX_BYTES: usize = 32_767;

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        let excess = self.bytes.len().saturating_sub(Self::MAX_BYTES);
        self.bytes.drain(..excess);
        self.omitted += excess as u64;
    }

    /// Returns the number of omitted bytes.
    #[must_use]
    pub fn omitted(&self) -> u64 {
        self.omitted
    }

    /// Returns true if the stream was empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

impl fmt::Display for Tail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.omitted > 0 {
            write!(f, "[{} bytes omitted] ", self.omitted)?;
        }
        let (first, second) = self.bytes.as_slices();
        f.write_str(&String::from_utf8_lossy(&[first, second].concat()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c8_tail_has_the_last_bytes_and_the_number_of_omitted_bytes() {
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
