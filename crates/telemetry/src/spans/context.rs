//! Who a span is: ids and the header by which tools join a trace (W3C trace context).

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

/// The id of a trace; never all zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceId(pub(crate) [u8; 16]);

/// The id of a span; never all zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanId(pub(crate) [u8; 8]);

impl TraceId {
    /// From 32 hexadecimal digits, not all zero.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        bytes(text).map(Self)
    }

    /// An id that the same parts always give, so that a manager that is started again goes on with the same trace. It
    /// tells nothing about the parts.
    #[must_use]
    pub fn derived(parts: &[&[u8]]) -> Self {
        Self(digest(parts))
    }
}

impl SpanId {
    /// From 16 hexadecimal digits, not all zero.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        bytes(text).map(Self)
    }

    pub(super) fn derived(parts: &[&[u8]]) -> Self {
        Self(digest(parts))
    }
}

/// The place of a job in a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace.
    pub trace: TraceId,
    /// The job's own span.
    pub span: SpanId,
    /// What the job's span is below, if it is below anything.
    pub parent: Option<SpanId>,
    /// Whether the trace is recorded. What is not is told to the job all the same, so that its tools do not record it.
    pub sampled: bool,
}

impl TraceContext {
    /// The header `traceparent`, for the job's environment.
    #[must_use]
    pub fn traceparent(&self) -> String {
        format!("00-{}-{}-{:02x}", hex(&self.trace.0), hex(&self.span.0), u8::from(self.sampled))
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; N];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    bytes.iter().any(|byte| *byte != 0).then_some(bytes)
}

fn digest<const N: usize>(parts: &[&[u8]]) -> [u8; N] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let mut bytes = [0; N];
    for (byte, from) in bytes.iter_mut().zip(hash.finalize()) {
        *byte = from;
    }
    // All zero is no id. The chance is nil, the rule is absolute.
    if let Some(last) = bytes.last_mut().filter(|last| **last == 0) {
        *last = 1;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_that_of_the_recommendation() {
        let trace = TraceId::parse("0af7651916cd43dd8448eb211c80319c").unwrap();
        let span = SpanId::parse("b7ad6b7169203331").unwrap();
        let context = TraceContext { trace, span, parent: None, sampled: true };
        assert_eq!(context.traceparent(), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
        let context = TraceContext { sampled: false, ..context };
        assert!(context.traceparent().ends_with("-00"));
    }

    #[test]
    fn what_is_no_id_is_refused() {
        for wrong in
            ["", "0", "00000000000000000000000000000000", "+af7651916cd43dd8448eb211c80319c", "ä".repeat(16).as_str()]
        {
            assert_eq!(TraceId::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn derived_ids_are_the_same_again_and_tell_parts_apart() {
        assert_eq!(TraceId::derived(&[b"a", b"b"]), TraceId::derived(&[b"a", b"b"]));
        assert_ne!(TraceId::derived(&[b"ab", b""]), TraceId::derived(&[b"a", b"b"]));
    }
}
