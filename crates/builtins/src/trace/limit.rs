//! Converts a stream to UTF-8, and limits its size (docs/spec/runner-api.md, section 3.3).

const DEFAULT_LIMIT: u64 = 4 * 1024 * 1024;
const REPLACEMENT: &[u8] = "\u{fffd}".as_bytes();

/// Replaces invalid UTF-8, and truncates the stream with a notice.
pub(super) struct SizeLimiter {
    limit: u64,
    size: u64,
    /// First bytes of an incomplete character, at most 3.
    incomplete: Vec<u8>,
    truncated: bool,
}

impl SizeLimiter {
    pub(super) fn new(limit: u64, initial_length: u64) -> Self {
        let limit = if limit == 0 { DEFAULT_LIMIT } else { limit };
        Self { limit, size: initial_length, incomplete: Vec::new(), truncated: initial_length >= limit }
    }

    /// Returns whether further output is dropped.
    pub(super) fn is_truncated(&self) -> bool {
        self.truncated
    }

    /// Processes bytes in place.
    pub(super) fn push(&mut self, bytes: &mut Vec<u8>) {
        if self.truncated {
            bytes.clear();
        }
        if bytes.is_empty() {
            return;
        }
        if !self.incomplete.is_empty() {
            bytes.splice(..0, std::mem::take(&mut self.incomplete));
        }
        // This check is faster than the one below, and most output is ASCII.
        if !bytes.is_ascii()
            && let Err(error) = std::str::from_utf8(bytes)
        {
            if error.error_len().is_none() {
                self.incomplete = bytes.split_off(error.valid_up_to());
            } else {
                let invalid = std::mem::take(bytes);
                self.clean(&invalid, bytes);
            }
        }
        self.count(bytes);
    }

    /// Ends the stream, and returns its last bytes. Replaces an incomplete character.
    pub(super) fn finish(&mut self) -> Vec<u8> {
        let mut end = Vec::new();
        if !self.truncated && !std::mem::take(&mut self.incomplete).is_empty() {
            end.extend_from_slice(REPLACEMENT);
            self.count(&mut end);
        }
        end
    }

    fn clean(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) {
        while let Err(error) = std::str::from_utf8(bytes) {
            let (valid, rest) = bytes.split_at(error.valid_up_to());
            out.extend_from_slice(valid);
            let Some(length) = error.error_len() else {
                self.incomplete = rest.to_vec();
                return;
            };
            out.extend_from_slice(REPLACEMENT);
            bytes = rest.get(length..).unwrap_or_default();
        }
        out.extend_from_slice(bytes);
    }

    /// Counts bytes, and truncates them at the limit.
    fn count(&mut self, bytes: &mut Vec<u8>) {
        let added = bytes.len() as u64;
        if self.size + added < self.limit {
            self.size += added;
            return;
        }
        let capacity = usize::try_from(self.limit.saturating_sub(self.size)).unwrap_or(usize::MAX);
        let mut end = capacity.min(bytes.len());
        // All bytes of a character after the first have the form 10xxxxxx.
        while end > 0 && bytes.get(end).is_some_and(|byte| byte & 0b1100_0000 == 0b1000_0000) {
            end -= 1;
        }
        bytes.truncate(end);
        let notice = format!(
            "\n\x1b[33;1mJob's log exceeded limit of {} bytes.\n\
             Job execution will continue but no more output will be collected.\x1b[0;m\n",
            self.limit
        );
        bytes.extend_from_slice(notice.as_bytes());
        self.truncated = true;
    }
}
