//! Escape sequences of terminals, which nobody sees: a secret with some of them inside is a secret all the same.

/// Bytes of escape sequences between two bytes of a secret, at most: what has to be held back is bounded by this.
pub(super) const GAP_MAX: usize = 256;

/// Whether a sequence may start with this byte.
pub(super) fn is_escape(byte: u8) -> bool {
    byte == 0x1b
}

/// What starts at some place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Escape {
    /// No sequence.
    None,
    /// One of this many bytes.
    Length(usize),
    /// More bytes are needed to tell.
    Partial,
}

/// Looks for a sequence at the start of `bytes`: a control sequence (`ESC [ ... m`, and its kin), or the choice of a
/// character set (`ESC ( B`), which many terminals reset colours with.
pub(super) fn escape(bytes: &[u8]) -> Escape {
    match bytes {
        [0x1b] | [0x1b, b'('] => Escape::Partial,
        [0x1b, b'(', _, ..] => Escape::Length(3),
        [0x1b, b'[', rest @ ..] => {
            let length = rest.iter().take_while(|byte| matches!(**byte, 0x20..=0x3f)).count();
            match rest.get(length) {
                _ if length > GAP_MAX => Escape::None,
                None => Escape::Partial,
                Some(0x40..=0x7e) => Escape::Length(length + 3),
                Some(_) => Escape::None,
            }
        }
        _ => Escape::None,
    }
}
