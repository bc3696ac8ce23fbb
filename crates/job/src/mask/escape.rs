//! Terminal escape sequences. They are invisible, so a secret with escape sequences inside must be masked, too.

/// Maximum number of bytes in escape sequences between two bytes of a secret. It bounds the bytes to hold back.
pub(super) const MAX_GAP: usize = 256;

/// Returns true if an escape sequence may start with this byte.
pub(super) fn is_escape(byte: u8) -> bool {
    byte == 0x1b
}

/// Result of looking for an escape sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Escape {
    /// There is no escape sequence.
    None,
    /// There is an escape sequence of this length.
    Length(usize),
    /// More bytes are needed to decide.
    Partial,
}

/// Looks for an escape sequence at the start of `bytes`: a control sequence such as `ESC [ ... m`, or the selection of
/// a character set (`ESC ( B`), which many terminals use to reset colors.
pub(super) fn escape(bytes: &[u8]) -> Escape {
    match bytes {
        [0x1b] | [0x1b, b'('] => Escape::Partial,
        [0x1b, b'(', _, ..] => Escape::Length(3),
        [0x1b, b'[', rest @ ..] => {
            let length = rest.iter().take_while(|byte| matches!(**byte, 0x20..=0x3f)).count();
            match rest.get(length) {
                _ if length > MAX_GAP => Escape::None,
                None => Escape::Partial,
                Some(0x40..=0x7e) => Escape::Length(length + 3),
                Some(_) => Escape::None,
            }
        }
        _ => Escape::None,
    }
}
