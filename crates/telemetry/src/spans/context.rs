//! IDs of traces and spans, and the header with which tools join a trace (W3C Trace Context).

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

/// ID of a trace. Never all zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceId(pub(crate) [u8; 16]);

/// ID of a span. Never all zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanId(pub(crate) [u8; 8]);

impl TraceId {
    /// Parses 32 hexadecimal digits. `None` means that the text is not valid, or all digits are zero.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        bytes(text).map(Self)
    }

    /// Derives an ID from parts, so that a restarted manager continues the same trace. The ID does not reveal the parts.
    #[must_use]
    pub fn derived(parts: &[&[u8]]) -> Self {
        Self(digest(parts))
    }
}

impl SpanId {
    /// Parses 16 hexadecimal digits. `None` means that the text is not valid, or all digits are zero.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        bytes(text).map(Self)
    }

    pub(super) fn derived(parts: &[&[u8]]) -> Self {
        Self(digest(parts))
    }
}

/// Position of a job in a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    /// ID of the trace.
    pub trace: TraceId,
    /// ID of the job's span.
    pub span: SpanId,
    /// ID of the parent span. `None` means that the job's span is the root of the trace.
    pub parent: Option<SpanId>,
    /// Whether the trace is recorded. The job gets the header in any case, so that its tools follow the same decision.
    pub sampled: bool,
}

impl TraceContext {
    /// Returns the value of the header `traceparent`, for a variable of the job.
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
    // An ID must not be all zero, however unlikely that is.
    if let Some(last) = bytes.last_mut().filter(|last| **last == 0) {
        *last = 1;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traceparent_follows_w3c_recommendation() {
        let trace = TraceId::parse("0af7651916cd43dd8448eb211c80319c").unwrap();
        let span = SpanId::parse("b7ad6b7169203331").unwrap();
        let context = TraceContext { trace, span, parent: None, sampled: true };
        assert_eq!(context.traceparent(), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
        let context = TraceContext { sampled: false, ..context };
        assert!(context.traceparent().ends_with("-00"));
    }

    #[test]
    fn invalid_ids_are_rejected() {
        for wrong in
            ["", "0", "00000000000000000000000000000000", "+af7651916cd43dd8448eb211c80319c", "ä".repeat(16).as_str()]
        {
            assert_eq!(TraceId::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn derived_ids_are_stable_and_depend_on_the_boundaries_of_the_parts() {
        assert_eq!(TraceId::derived(&[b"a", b"b"]), TraceId::derived(&[b"a", b"b"]));
        assert_ne!(TraceId::derived(&[b"ab", b""]), TraceId::derived(&[b"a", b"b"]));
    }
}
