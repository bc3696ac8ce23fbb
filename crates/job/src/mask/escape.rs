//! Terminal escape sequences. They are invisible, so a secret must be masked even if they are between its bytes.

/// Maximum number of escape bytes between two bytes of a secret, and of parameter bytes in a sequence.
///
/// Bounds the number of bytes that are held back.
pub(super) const MAX_GAP: usize = 256;

pub(super) const ESC: u8 = 0x1b;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Escape {
    None,
    Length(usize),
    /// More bytes are needed to decide.
    Partial,
}

/// Looks for an escape sequence at the start of `bytes`: a control sequence such as `ESC [ 31 m`, or the selection of a
/// character set such as `ESC ( B`.
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
