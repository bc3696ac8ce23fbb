//! Terminal escape sequences.
//!
//! Escape sequences are invisible, so a secret with escape sequences inside must be masked, too.

/// Maximum number of bytes in escape sequences between two bytes of a secret.
///
/// Also the maximum number of parameter bytes of a control sequence. Both bound the number of bytes that are held back.
pub(super) const MAX_GAP: usize = 256;

pub(super) const ESC: u8 = 0x1b;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Escape {
    /// The bytes do not start with an escape sequence.
    None,
    /// The bytes start with an escape sequence of this length.
    Length(usize),
    /// More bytes are needed to decide.
    Partial,
}

/// Looks for an escape sequence at the start of `bytes`.
///
/// The sequence can be a control sequence such as `ESC [ ... m`, or the selection of a character set (`ESC ( B`), which many terminals use
/// to reset colors.
pub(super) fn escape(bytes: &[u8]) -> Escape {
    match bytes {
        [ESC] | [ESC, b'('] => Escape::Partial,
        [ESC, b'(', _, ..] => Escape::Length(3),
        [ESC, b'[', rest @ ..] => {
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
