//! A plugin's log: what it writes to stderr, line by line (docs/spec/fleeting.md, section 1.8).

use std::time::Instant;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};

use super::mask::Mask;

/// Maximum number of bytes of one line.
/// A longer line is logged in pieces, which are not parsed.
const MAX_LINE_BYTES: usize = 64 * 1024;

/// Severity of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// For the author of the plugin.
    Trace,
    /// For debugging.
    Debug,
    /// Normal operation.
    Info,
    /// Something is degraded.
    Warn,
    /// Something failed.
    Error,
}

/// One record of a plugin's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Severity of the record.
    pub level: Level,
    /// Text of the message.
    pub message: String,
    /// Other keys and values as `key=value`, in the plugin's order.
    pub fields: String,
}

/// Parses lines into records. Lines after a panic are errors, unless they begin with `{`.
#[derive(Debug, Default)]
pub struct LogReader {
    panicked: bool,
}

impl LogReader {
    /// Parses one line. JSON without a valid level, or with a message that is not a string, becomes plain text (case
    /// H17).
    ///
    /// Unlike in the Go host, a record keeps its level whatever the format of its timestamp (case H16).
    pub fn read(&mut self, line: &str) -> Record {
        let line = line.trim_end();
        let plain = |level| Record { level, message: line.to_owned(), fields: String::new() };
        if line.starts_with('{') {
            return parse_structured(line).unwrap_or_else(|| plain(Level::Debug));
        }
        if line.starts_with("panic: ") || line.starts_with("fatal error: ") {
            self.panicked = true;
        }
        if self.panicked {
            return plain(Level::Error);
        }
        let prefixes = [
            ("[TRACE]", Level::Trace),
            ("[DEBUG]", Level::Debug),
            ("[INFO]", Level::Info),
            ("[WARN]", Level::Warn),
            ("[ERROR]", Level::Error),
        ];
        for (prefix, level) in prefixes {
            if let Some(rest) = line.strip_prefix(prefix) {
                return Record { level, message: rest.trim_start().to_owned(), fields: String::new() };
            }
        }
        plain(Level::Debug)
    }
}

fn parse_structured(line: &str) -> Option<Record> {
    let Value::Object(mut object) = serde_json::from_str(line).ok()? else { return None };
    let level = match object.shift_remove("@level")?.as_str()? {
        "trace" => Level::Trace,
        "debug" => Level::Debug,
        "info" => Level::Info,
        "warn" => Level::Warn,
        "error" => Level::Error,
        _ => return None,
    };
    let message = match object.shift_remove("@message") {
        None => String::new(),
        Some(Value::String(message)) => message,
        Some(_) => return None,
    };
    object.shift_remove("@timestamp");
    let field = |(key, value): (String, Value)| match value {
        Value::String(text) => format!("{key}={text}"),
        other => format!("{key}={other}"),
    };
    Some(Record { level, message, fields: object.into_iter().map(field).collect::<Vec<_>>().join(" ") })
}

/// Maximum number of lines that are copied from a plugin's log to the manager's log at once.
/// Further lines are dropped.
const LINE_BURST: u32 = 2_000;
/// Maximum number of lines that are copied per second after [`LINE_BURST`] lines at once.
const LINES_PER_SECOND: u32 = 100;

#[derive(Debug)]
struct LineBudget {
    tokens: f64,
    refilled_at: Instant,
    dropped: u64,
}

impl LineBudget {
    fn new(now: Instant) -> Self {
        Self { tokens: f64::from(LINE_BURST), refilled_at: now, dropped: 0 }
    }

    /// Takes a token for one line. Returns the number of lines that were dropped since the last token, or `None` if
    /// this line must be dropped.
    fn take_token(&mut self, now: Instant) -> Option<u64> {
        let refill = now.saturating_duration_since(self.refilled_at).as_secs_f64() * f64::from(LINES_PER_SECOND);
        self.tokens = (self.tokens + refill).min(f64::from(LINE_BURST));
        self.refilled_at = now;
        if self.tokens < 1.0 {
            self.dropped += 1;
            return None;
        }
        self.tokens -= 1.0;
        Some(std::mem::take(&mut self.dropped))
    }
}

/// Copies a plugin's stderr to this process's log until the stream ends.
/// Stores the last lines for the message about a failed start or an exit.
pub(super) async fn pump(
    plugin: String,
    stderr: impl AsyncRead + Unpin,
    tail: super::process::StderrTail,
    meter: super::Meter,
    mask: Mask,
) {
    let mut stderr = BufReader::with_capacity(MAX_LINE_BYTES, stderr);
    let mut reader = LogReader::default();
    let mut budget = LineBudget::new(Instant::now());
    let mut line = Vec::new();
    let mut is_start_of_line = true;
    loop {
        match next_line(&mut stderr, &mut line).await {
            Ok(Some(is_end_of_line)) => {
                let is_whole_line = is_start_of_line && is_end_of_line;
                is_start_of_line = is_end_of_line;
                let text = String::from_utf8_lossy(&line);
                let Record { level, message, fields } = if is_whole_line {
                    reader.read(&text)
                } else {
                    Record { level: Level::Debug, message: text.into_owned(), fields: String::new() }
                };
                let record = Record { level, message: mask.hide(message), fields: mask.hide(fields) };
                tail.push(&record.message);
                match budget.take_token(Instant::now()) {
                    Some(0) => emit(&plugin, &record),
                    Some(lines) => {
                        tracing::warn!(plugin, lines, "plugin logged too many lines; some were dropped");
                        emit(&plugin, &record);
                    }
                    None => meter.record_dropped_lines(1),
                }
            }
            Ok(None) => return,
            Err(error) => {
                tracing::debug!(plugin, %error, "failed to read the plugin's stderr");
                return;
            }
        }
    }
}

/// Reads the next line without its line break, or the next piece of a line that is too long.
/// Returns whether the end of the line was read. `None` means that the stream has ended.
async fn next_line(from: &mut (impl AsyncBufReadExt + Unpin), line: &mut Vec<u8>) -> std::io::Result<Option<bool>> {
    line.clear();
    loop {
        let buffer = from.fill_buf().await?;
        if buffer.is_empty() {
            return Ok(if line.is_empty() { None } else { Some(true) });
        }
        let free = MAX_LINE_BYTES - line.len();
        // The line break does not count, so it may follow a piece of the maximum size.
        match buffer.iter().take(free + 1).position(|byte| *byte == b'\n') {
            Some(end) => {
                line.extend_from_slice(buffer.get(..end).unwrap_or_default());
                from.consume(end + 1);
                return Ok(Some(true));
            }
            None if free == 0 => return Ok(Some(false)),
            None => {
                let taken = buffer.len().min(free);
                line.extend_from_slice(buffer.get(..taken).unwrap_or_default());
                from.consume(taken);
            }
        }
    }
}

fn emit(plugin: &str, record: &Record) {
    let Record { message, fields, .. } = record;
    match record.level {
        Level::Trace => tracing::trace!(target: "muster_fleeting::plugin", plugin, fields, "{message}"),
        Level::Debug => tracing::debug!(target: "muster_fleeting::plugin", plugin, fields, "{message}"),
        Level::Info => tracing::info!(target: "muster_fleeting::plugin", plugin, fields, "{message}"),
        Level::Warn => tracing::warn!(target: "muster_fleeting::plugin", plugin, fields, "{message}"),
        Level::Error => tracing::error!(target: "muster_fleeting::plugin", plugin, fields, "{message}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Record {
        LogReader::default().read(line)
    }

    #[test]
    fn h16_json_lines_keep_their_level() {
        let record = read(
            r#"{"@level":"warn","@message":"slow","@timestamp":"2026-08-06T10:00:00.123456Z","group":"a/b","n":3}"#,
        );
        assert_eq!(record.level, Level::Warn);
        assert_eq!(record.message, "slow");
        assert_eq!(record.fields, "group=a/b n=3");
    }

    #[test]
    fn h16_timestamp_with_three_digits_keeps_the_level() {
        let record = read(r#"{"@level":"warn","@message":"slow","@timestamp":"2026-08-06T10:00:00.123Z"}"#);
        assert_eq!(record.level, Level::Warn, "the format of the timestamp must not matter");
    }

    #[test]
    fn h17_invalid_level_is_logged_as_plain_text() {
        let line = r#"{"@level":3,"@message":"slow"}"#;
        assert_eq!(read(line), Record { level: Level::Debug, message: line.to_owned(), fields: String::new() });
    }

    #[test]
    fn plain_lines_may_have_a_level() {
        assert_eq!(read("[WARN] slow").level, Level::Warn);
        assert_eq!(read("[WARN] slow").message, "slow");
        assert_eq!(read("listening").level, Level::Debug);
        assert_eq!(read("{not json").level, Level::Debug);
    }

    #[test]
    fn lines_after_a_panic_are_errors() {
        let mut reader = LogReader::default();
        assert_eq!(reader.read("panic: nil map").level, Level::Error);
        assert_eq!(reader.read("goroutine 1 [running]:").level, Level::Error);
        assert_eq!(reader.read(r#"{"@level":"info","@message":"x"}"#).level, Level::Info);
    }

    #[test]
    fn excess_log_lines_are_dropped_and_counted() {
        let now = Instant::now();
        let mut budget = LineBudget::new(now);
        let logged = (0..10_000).filter(|_| budget.take_token(now).is_some()).count();
        assert_eq!(logged, 2_000);
        let later = now + std::time::Duration::from_secs(1);
        assert_eq!(budget.take_token(later), Some(8_000));
        assert_eq!(
            (0..10_000).filter(|_| budget.take_token(later).is_some()).count(),
            99,
            "100 lines are allowed per second, and one was logged above"
        );
    }

    /// Returns the length of each piece of the lines, and whether it is the end of a line.
    async fn pieces(text: &[u8], buffer_bytes: usize) -> Vec<(usize, bool)> {
        let mut from = BufReader::with_capacity(buffer_bytes, text);
        let (mut line, mut lengths) = (Vec::new(), Vec::new());
        while let Some(is_end_of_line) = next_line(&mut from, &mut line).await.unwrap() {
            lengths.push((line.len(), is_end_of_line));
        }
        lengths
    }

    #[tokio::test]
    async fn h20_overlong_line_is_read_in_pieces() {
        let text = [vec![b'x'; MAX_LINE_BYTES * 2 + 10], b"\nshort\n".to_vec()].concat();
        for buffer_bytes in [8 * 1024, MAX_LINE_BYTES, 2 * MAX_LINE_BYTES] {
            let lengths = pieces(&text, buffer_bytes).await;
            assert_eq!(lengths, [(MAX_LINE_BYTES, false), (MAX_LINE_BYTES, false), (10, true), (5, true)]);
        }
    }

    #[tokio::test]
    async fn line_of_the_maximum_length_is_read_at_once() {
        let line = [vec![b'x'; MAX_LINE_BYTES], b"\n".to_vec()].concat();
        let text = [line.clone(), b"short\n".to_vec(), line].concat();
        for buffer_bytes in [8 * 1024, MAX_LINE_BYTES, 2 * MAX_LINE_BYTES] {
            let lengths = pieces(&text, buffer_bytes).await;
            assert_eq!(lengths, [(MAX_LINE_BYTES, true), (5, true), (MAX_LINE_BYTES, true)]);
        }
    }

    #[tokio::test]
    async fn end_of_overlong_line_is_not_parsed() {
        let end = r#"{"@level":"info","@message":"short"}"#;
        let text = [vec![b'x'; MAX_LINE_BYTES], end.as_bytes().to_vec()].concat();
        let tail = crate::host::process::StderrTail::default();
        pump("faulty".to_owned(), text.as_slice(), tail.clone(), crate::host::Meter::default(), Mask::default()).await;
        assert!(tail.quoted().ends_with(end), "{}", tail.quoted());
    }
}
