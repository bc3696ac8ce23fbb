//! Clean UTF-8 within a size limit (runner-api 3.3).

/// Limit in bytes where none is given.
const DEFAULT_LIMIT: u64 = 4 * 1024 * 1024;
const REPLACEMENT: &[u8] = "\u{fffd}".as_bytes();

/// Replaces invalid UTF-8, and cuts the stream at its limit with a notice.
pub(super) struct Limiter {
    limit: u64,
    size: u64,
    /// The start of a character whose other bytes have not come yet; at most 3 bytes.
    held: Vec<u8>,
    cut: bool,
}

impl Limiter {
    pub(super) fn new(limit: u64, already: u64) -> Self {
        let limit = if limit == 0 { DEFAULT_LIMIT } else { limit };
        Self { limit, size: already, held: Vec::new(), cut: already >= limit }
    }

    /// Whether the limit is reached: nothing comes through any more.
    pub(super) fn is_cut(&self) -> bool {
        self.cut
    }

    pub(super) fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        if self.cut || bytes.is_empty() {
            return;
        }
        let start = out.len();
        if self.held.is_empty() {
            self.clean(bytes, out);
        } else {
            let mut joined = std::mem::take(&mut self.held);
            joined.extend_from_slice(bytes);
            self.clean(&joined, out);
        }
        self.count(start, out);
    }

    /// The stream ends: half a character is invalid.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>) {
        if !self.cut && !std::mem::take(&mut self.held).is_empty() {
            let start = out.len();
            out.extend_from_slice(REPLACEMENT);
            self.count(start, out);
        }
    }

    fn clean(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) {
        while let Err(error) = std::str::from_utf8(bytes) {
            let (valid, rest) = bytes.split_at(error.valid_up_to());
            out.extend_from_slice(valid);
            let Some(length) = error.error_len() else {
                self.held = rest.to_vec();
                return;
            };
            out.extend_from_slice(REPLACEMENT);
            bytes = rest.get(length..).unwrap_or_default();
        }
        out.extend_from_slice(bytes);
    }

    /// Counts what was appended behind `start`, and cuts it at the limit.
    fn count(&mut self, start: usize, out: &mut Vec<u8>) {
        let added = (out.len() - start) as u64;
        if self.size + added < self.limit {
            self.size += added;
            return;
        }
        let room = usize::try_from(self.limit.saturating_sub(self.size)).unwrap_or(usize::MAX);
        let mut end = (start + room).min(out.len());
        // All bytes of a character but the first look like 10xxxxxx.
        while end > start && out.get(end).is_some_and(|byte| byte & 0b1100_0000 == 0b1000_0000) {
            end -= 1;
        }
        out.truncate(end);
        let notice = format!(
            "\n\x1b[33;1mJob's log exceeded limit of {} bytes.\n\
             Job execution will continue but no more output will be collected.\x1b[0;m\n",
            self.limit
        );
        out.extend_from_slice(notice.as_bytes());
        self.cut = true;
    }
}
