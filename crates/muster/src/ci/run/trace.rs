//! Converts a trace to readable lines without section markers and control sequences.

#[derive(Debug, Default)]
pub(in super::super) struct TraceLines {
    partial: Vec<u8>,
    /// The last complete line, which the next line may continue.
    held_line: Option<Line>,
    with_times: bool,
}

/// Length above which an incomplete line is split.
const MAX_LINE_BYTES: usize = 64 << 10;
/// End of a section marker: `section_start:<time>:<name>[<options>]\r ESC[0K`.
const MARKER_END: &[u8] = b"\r\x1b[0K";
/// Length of `2026-01-02T03:04:05.678901Z 01O `, which FF_TIMESTAMPS adds before a line.
const STAMP_LENGTH: usize = 32;
/// Length of the time in that timestamp.
const TIME_LENGTH: usize = 27;

/// A line of the trace, split into timestamp and text.
#[derive(Debug, Default)]
struct Line {
    /// Timestamp and stream of the line, such as `01O`. Empty if the trace has no timestamps.
    stamp: Vec<u8>,
    /// Whether the line continues the last line of its stream.
    is_continuation: bool,
    text: Vec<u8>,
}

impl TraceLines {
    /// `with_times` adds the time to each line, if the trace has timestamps.
    pub(in super::super) fn with_times(with_times: bool) -> Self {
        Self { with_times, ..Self::default() }
    }

    /// Returns the lines that these bytes complete, except the last line, which the next bytes may continue.
    pub(in super::super) fn push(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut shown = Vec::new();
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, after) = rest.split_at(end);
            self.partial.extend_from_slice(line);
            rest = after.get(1..).unwrap_or_default();
            self.complete_line(&mut shown);
        }
        self.partial.extend_from_slice(rest);
        if self.partial.len() > MAX_LINE_BYTES {
            self.complete_line(&mut shown);
        }
        shown
    }

    /// Returns the held line. A later continuation becomes a separate line.
    pub(in super::super) fn take_held_line(&mut self) -> Vec<String> {
        self.held_line.take().map(|line| self.readable(&line)).unwrap_or_default()
    }

    pub(in super::super) fn finish(&mut self) -> Vec<String> {
        let mut shown = Vec::new();
        if !self.partial.is_empty() {
            self.complete_line(&mut shown);
        }
        shown.extend(self.take_held_line());
        shown
    }

    fn complete_line(&mut self, shown: &mut Vec<String>) {
        let line = Line::parse(&std::mem::take(&mut self.partial));
        match &mut self.held_line {
            Some(held_line) if line.is_continuation && held_line.stream() == line.stream() => {
                held_line.text.extend_from_slice(&line.text)
            }
            _ => {
                shown.extend(self.take_held_line());
                self.held_line = Some(line);
            }
        }
    }

    /// Returns the visible text of a line. A section marker splits the line, because the output before it may lack a
    /// line break.
    fn readable(&self, line: &Line) -> Vec<String> {
        let time = line.stamp.get(..TIME_LENGTH).filter(|_| self.with_times).map(String::from_utf8_lossy);
        let parts = between_markers(&line.text);
        let has_marker = parts.len() > 1;
        let cleaned =
            parts.into_iter().map(|part| without_control_sequences(last_written(&String::from_utf8_lossy(part))));
        let visible = cleaned.filter(|text| !has_marker || !anstream::adapter::strip_str(text).to_string().is_empty());
        visible.map(|text| time.as_ref().map_or_else(|| text.clone(), |time| format!("{time} {text}"))).collect()
    }
}

impl Line {
    fn parse(line: &[u8]) -> Self {
        let unstamped = || Self { text: line.to_vec(), ..Self::default() };
        let Some((stamp, text)) = line.split_at_checked(STAMP_LENGTH) else { return unstamped() };
        let is_hex =
            |range: std::ops::Range<usize>| stamp.get(range).is_some_and(|part| part.iter().all(u8::is_ascii_hexdigit));
        let byte = |index: usize| stamp.get(index).copied().unwrap_or_default();
        let is_stamp = is_hex(0..4)
            && (byte(4), byte(10), byte(19), byte(26), byte(27)) == (b'-', b'T', b'.', b'Z', b' ')
            && is_hex(20..26)
            && is_hex(28..30)
            && matches!((byte(30), byte(31)), (b'O' | b'E', b' ' | b'+'));
        if !is_stamp {
            return unstamped();
        }
        Self { stamp: stamp.to_vec(), is_continuation: byte(31) == b'+', text: text.to_vec() }
    }

    /// Returns the stream, such as `01O`, or `None` without timestamps.
    fn stream(&self) -> Option<&[u8]> {
        self.stamp.get(TIME_LENGTH + 1..STAMP_LENGTH - 1)
    }
}

fn between_markers(line: &[u8]) -> Vec<&[u8]> {
    // Most lines have no marker. Every marker contains a carriage return.
    if !line.contains(&b'\r') {
        return vec![line];
    }
    let mut parts = Vec::new();
    let (mut part_start, mut position) = (0, 0);
    while let Some(rest) = line.get(position..).filter(|rest| !rest.is_empty()) {
        match marker_length(rest) {
            Some(length) => {
                parts.push(line.get(part_start..position).unwrap_or_default());
                position += length;
                part_start = position;
            }
            None => position += 1,
        }
    }
    parts.push(line.get(part_start..).unwrap_or_default());
    parts
}

fn marker_length(text: &[u8]) -> Option<usize> {
    let rest = text.strip_prefix(b"section_start:").or_else(|| text.strip_prefix(b"section_end:"))?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let name = rest.get(digits..)?.strip_prefix(b":").filter(|_| digits > 0)?;
    let end = name.iter().position(|byte| *byte == b'\r')?;
    let after = name.get(end..)?.strip_prefix(MARKER_END)?;
    Some(text.len() - after.len())
}

/// Returns the part of a line that a terminal would show: text after a carriage return replaces the text before it.
fn last_written(text: &str) -> &str {
    let parts = text.trim_end_matches('\r').rsplit('\r');
    parts.map(|part| part.strip_prefix("\u{1b}[0K").unwrap_or(part)).find(|part| !part.is_empty()).unwrap_or_default()
}

/// Removes all escape sequences except those for colors and text attributes.
fn without_control_sequences(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '\u{1b}' {
            if !c.is_control() || c == '\t' {
                out.push(c);
            }
            continue;
        }
        if chars.next_if_eq(&'[').is_none() {
            chars.next();
            continue;
        }
        let mut parameters = String::new();
        while let Some(c) = chars.next_if(|c| matches!(c, '\u{20}'..='\u{3f}')) {
            parameters.push(c);
        }
        if chars.next() == Some('m') {
            out.push_str("\u{1b}[");
            out.push_str(&parameters);
            out.push('m');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split_trace(mut lines: TraceLines, trace: &[u8], size: usize) -> Vec<String> {
        let mut found: Vec<String> = trace.chunks(size).flat_map(|chunk| lines.push(chunk)).collect();
        found.extend(lines.finish());
        found
    }

    const STAMPED: &[u8] = b"2026-11-21T11:52:43.215329Z 00O section_start:1:get_sources\r\x1b[0K\n\
        2026-11-21T11:52:43.215341Z 00O+\x1b[0KGetting source\n\
        2026-11-21T11:52:43.242080Z 01O hel\n2026-11-21T11:52:43.242081Z 01O+lo\n2026-11-21 no mark\n\
        2026-11-21T11:52:44.000000Z 00O section_end:2:step_script\r\x1b[0K\n\
        2026-11-21T11:52:44.000001Z 01O no line break\n2026-11-21T11:52:44.000002Z 00O+Job succeeded\n";

    #[test]
    fn timestamps_are_removed_and_continuations_joined() {
        let expected = ["Getting source", "hello", "2026-11-21 no mark", "no line break", "Job succeeded"];
        for size in [1, 40, 1000] {
            assert_eq!(split_trace(TraceLines::default(), STAMPED, size), expected, "in chunks of {size}");
        }
    }

    #[test]
    fn times_are_shown_on_request() {
        let found = split_trace(TraceLines::with_times(true), STAMPED, 1000);
        assert_eq!(
            found[..3],
            ["2026-11-21T11:52:43.215329Z Getting source", "2026-11-21T11:52:43.242080Z hello", "2026-11-21 no mark"]
        );
    }

    #[test]
    fn held_line_can_be_taken_immediately() {
        let mut lines = TraceLines::default();
        assert_eq!(lines.push(b"2026-11-21T11:52:43.242080Z 01O hel\n"), Vec::<String>::new());
        assert_eq!(lines.take_held_line(), ["hel"]);
        lines.push(b"2026-11-21T11:52:43.242081Z 01O+lo\n");
        assert_eq!(lines.finish(), ["lo"]);
    }

    #[test]
    fn unterminated_line_before_a_marker_is_shown() {
        let x = "x".repeat(100);
        let trace = format!(
            "$ printf\n{x}section_end:2:step_script\r\x1b[0Ksection_start:2:cleanup[collapsed=true,hide=x]\r\x1b[0K\x1b[0KCleaning up\n\
             section_end:3:cleanup\r\x1b[0K\x1b[32;1mJob succeeded\x1b[0;m\nsection_start:no marker\rover\n\n"
        );
        let expected = ["$ printf", &x, "Cleaning up", "\u{1b}[32;1mJob succeeded\u{1b}[0;m", "over", ""];
        for size in [1, 3, 7, 1000] {
            assert_eq!(split_trace(TraceLines::default(), trace.as_bytes(), size), expected, "in chunks of {size}");
        }
    }

    #[test]
    fn chunk_size_does_not_change_the_lines() {
        let trace = b"section_start:1:step_script[collapsed=true]\r\x1b[0K\x1b[0K\x1b[36;1mRunning\x1b[0;m\r\n\
            \x1b[32;1m$ echo hi\x1b[0;m\nhi\n10%\r50%\r100%\nsection_end:2:step_script\r\x1b[0K\n\x1b[2Jclear\nno end";
        let expected =
            ["\u{1b}[36;1mRunning\u{1b}[0;m", "\u{1b}[32;1m$ echo hi\u{1b}[0;m", "hi", "100%", "clear", "no end"];
        for size in [1, 3, 7, 1000] {
            assert_eq!(split_trace(TraceLines::default(), trace, size), expected, "in chunks of {size}");
        }
    }
}
