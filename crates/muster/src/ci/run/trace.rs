//! A trace as a person wants to read it: lines, without section markers and without what would steer the terminal.

/// Cuts a growing trace into lines.
#[derive(Debug, Default)]
pub(in super::super) struct TraceLines {
    partial: Vec<u8>,
}

/// The longest line that is kept together.
const LINE_MAX: usize = 64 << 10;

impl TraceLines {
    /// The lines that these bytes complete.
    pub(in super::super) fn push(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut lines: Vec<Vec<u8>> = Vec::new();
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, after) = rest.split_at(end);
            self.partial.extend_from_slice(line);
            rest = after.get(1..).unwrap_or_default();
            let line = std::mem::take(&mut self.partial);
            match (without_time(&line), lines.last_mut()) {
                ((text, true), Some(last)) => last.extend_from_slice(text),
                ((text, _), _) => lines.push(text.to_vec()),
            }
        }
        self.partial.extend_from_slice(rest);
        if self.partial.len() > LINE_MAX {
            let line = std::mem::take(&mut self.partial);
            lines.push(without_time(&line).0.to_vec());
        }
        lines.iter().filter_map(|line| readable(line)).collect()
    }

    /// What is left when the trace has ended.
    pub(in super::super) fn finish(&mut self) -> Option<String> {
        let rest = std::mem::take(&mut self.partial);
        if rest.is_empty() { None } else { readable(without_time(&rest).0) }
    }
}

/// A line without the time and stream that FF_TIMESTAMPS puts before it (`2026-01-02T03:04:05.678901Z 01O `), and whether
/// it goes on with the line before it (`+` in the place of the blank).
fn without_time(line: &[u8]) -> (&[u8], bool) {
    const LENGTH: usize = 32;
    let Some((mark, text)) = line.split_at_checked(LENGTH) else { return (line, false) };
    let digits =
        |range: std::ops::Range<usize>| mark.get(range).is_some_and(|part| part.iter().all(u8::is_ascii_hexdigit));
    let byte = |at: usize| mark.get(at).copied().unwrap_or_default();
    let is_mark = digits(0..4)
        && (byte(4), byte(10), byte(19), byte(26), byte(27)) == (b'-', b'T', b'.', b'Z', b' ')
        && digits(20..26)
        && digits(28..30)
        && matches!(byte(30), b'O' | b'E');
    match byte(31) {
        b' ' if is_mark => (text, false),
        b'+' if is_mark => (text, true),
        _ => (line, false),
    }
}

/// One line; none if it held nothing but section markers.
fn readable(line: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(line);
    let text = text.trim_end_matches('\r');
    // What a carriage return overwrites is not shown; a line of markers ends with one before its title.
    let mut shown = "";
    let mut marker = false;
    for part in text.split('\r') {
        let visible = part.strip_prefix("\u{1b}[0K").unwrap_or(part);
        if visible.starts_with("section_start:") || visible.starts_with("section_end:") {
            marker = true;
        } else if !visible.is_empty() {
            shown = visible;
        }
    }
    let cleaned = colours_only(shown);
    if marker && cleaned.is_empty() { None } else { Some(cleaned) }
}

/// Text in which the only escape sequences are those for colours and weights.
fn colours_only(text: &str) -> String {
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

    #[test]
    fn times_are_taken_off_and_continued_lines_joined() {
        let trace = b"2026-11-21T11:52:43.215329Z 00O section_start:1:get_sources\r\x1b[0K\n\
            2026-11-21T11:52:43.215341Z 00O+Getting source\n\
            2026-11-21T11:52:43.242080Z 01O hello\n2026-11-21 no mark\n";
        assert_eq!(TraceLines::default().push(trace), ["Getting source", "hello", "2026-11-21 no mark"]);
    }

    #[test]
    fn a_trace_becomes_lines_however_it_is_cut() {
        let trace = b"section_start:1:step_script[collapsed=true]\r\x1b[0K\x1b[0K\x1b[36;1mRunning\x1b[0;m\r\n\
            \x1b[32;1m$ echo hi\x1b[0;m\nhi\n10%\r50%\r100%\nsection_end:2:step_script\r\x1b[0K\n\x1b[2Jclear\nno end";
        let expected =
            ["\u{1b}[36;1mRunning\u{1b}[0;m", "\u{1b}[32;1m$ echo hi\u{1b}[0;m", "hi", "100%", "clear", "no end"];
        for size in [1, 3, 7, 1000] {
            let mut lines = TraceLines::default();
            let mut found: Vec<String> = trace.chunks(size).flat_map(|chunk| lines.push(chunk)).collect();
            found.extend(lines.finish());
            assert_eq!(found, expected, "in pieces of {size}");
        }
    }
}
