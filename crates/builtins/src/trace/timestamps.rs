//! Adds time and stream to lines (docs/spec/runner-api.md, section 3.5): `2026-11-21T09:32:20.888012Z 01O hello`.
//!
//! The letter is always `O`, because Muster reads standard output and error from one pipe, which keeps their order.
//! gitlab-runner uses two pipes, and marks standard error with `E`.

use memchr::memchr;
use muster_steps::log::Stream;
use time::OffsetDateTime;

/// Maximum number of bytes of an incomplete line. A longer line is split.
const MAX_HELD_BYTES: usize = 8 * 1024;

pub(super) struct LineTimestamper {
    tag: &'static str,
    line: Vec<u8>,
    /// Whether the next line continues the previous one.
    continues: bool,
}

impl LineTimestamper {
    pub(super) fn new(stream: Stream) -> Self {
        let tag = match stream {
            Stream::Runner => "00O",
            Stream::Output => "01O",
        };
        Self { tag, line: Vec::new(), continues: false }
    }

    /// Processes bytes. All lines that end in `bytes` get the same time.
    pub(super) fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let time = now();
        let mut rest = bytes;
        while let Some(at) = memchr(b'\n', rest) {
            let (line, after) = rest.split_at(at);
            self.emit(&time, line, false, out);
            rest = after.get(1..).unwrap_or_default();
        }
        self.line.extend_from_slice(rest);
        // A progress bar rewrites its line with `\r`, which must be shown immediately.
        let redraws = rest.len() == bytes.len() && rest.contains(&b'\r');
        if redraws || self.line.len() > MAX_HELD_BYTES {
            self.emit(&time, &[], true, out);
        }
    }

    /// Writes an incomplete last line.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>) {
        if !self.line.is_empty() {
            self.emit(&now(), &[], false, out);
        }
    }

    /// Writes the current line and `end`. `unfinished` means that the next line continues it.
    fn emit(&mut self, time: &str, end: &[u8], unfinished: bool, out: &mut Vec<u8>) {
        out.extend_from_slice(time.as_bytes());
        out.extend_from_slice(self.tag.as_bytes());
        out.push(if self.continues { b'+' } else { b' ' });
        out.append(&mut self.line);
        out.extend_from_slice(end);
        out.push(b'\n');
        self.continues = unfinished;
    }
}

/// Returns the current time as a prefix.
fn now() -> String {
    let now = OffsetDateTime::now_utc();
    let (date, time) = (now.date(), now.time());
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z ",
        date.year(),
        u8::from(date.month()),
        date.day(),
        time.hour(),
        time.minute(),
        time.second(),
        time.microsecond(),
    )
}
