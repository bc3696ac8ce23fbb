//! The coverage of a job, from its trace (pipeline-yaml 1.2, `coverage`).
//!
//! Invariant: no trace and no expression makes this panic.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::LazyLock;

use muster_pipeline::regexp;
use regex::Regex;

/// Bytes of the stamp at the start of each line of a trace with timestamps.
const STAMP_BYTES: usize = 32;

/// Section markers, and the escape sequences of colours and cursor.
#[expect(clippy::expect_used, reason = "the pattern is fixed, and a test compiles it")]
static CONTROL: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(
        r"section_(?:start|end):\d+:[^\r\n]*?(?:\r|$)|\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)",
    )
    .expect("a fixed pattern")
});

/// The stamp: time, stream, kind, and `+` where the line goes on
/// from the one before (runner-api 3.5).
#[expect(clippy::expect_used, reason = "the pattern is fixed, and a test compiles it")]
static STAMP: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z ([0-9a-f]{2}[OE])(\+| )").expect("a fixed pattern")
});

#[expect(clippy::expect_used, reason = "the pattern is fixed, and a test compiles it")]
static NUMBER: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\d+(?:\.\d+)?").expect("a fixed pattern"));

/// The coverage in per cent that `expression` (without its slashes) finds in a trace: in the last line that matches, the
/// last match, and in that the first number. `None` where there is none, or the expression is not RE2.
#[must_use]
pub fn find(expression: &str, trace: &str) -> Option<f64> {
    let regex = regexp::compile(expression).ok()?;
    joined_lines(trace).iter().rev().find_map(|line| number(&regex, &CONTROL.replace_all(line, "")))
}

/// The number that the last match in a line holds. What counts of a match with groups is its last group.
fn number(regex: &Regex, line: &str) -> Option<f64> {
    let captures = regex.captures_iter(line).last()?;
    let fragment = captures.iter().skip(1).flatten().last().or_else(|| captures.get(0))?;
    NUMBER.find(fragment.as_str())?.as_str().parse().ok()
}

/// The lines of a trace, without stamps; a continuation is joined to the line of its stream that it goes on from.
fn joined_lines(trace: &str) -> Vec<Cow<'_, str>> {
    let mut lines: Vec<Cow<'_, str>> = Vec::new();
    let mut last_of_stream: HashMap<&str, usize> = HashMap::new();
    for line in trace.split('\n') {
        let Some((_, [stream, flag])) = STAMP.captures(line).map(|stamp| stamp.extract()) else {
            lines.push(Cow::Borrowed(line));
            continue;
        };
        let text = &line[STAMP_BYTES..];
        match last_of_stream.get(stream).and_then(|index| lines.get_mut(*index)) {
            Some(begun) if flag == "+" => begun.to_mut().push_str(text),
            _ => {
                last_of_stream.insert(stream, lines.len());
                lines.push(Cow::Borrowed(text));
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_match_of_the_last_matching_line_counts() {
        let trace = "coverage: 12.5% of 3\ncoverage: 50% coverage: 071.25%\nno number: coverage: %\nend\n";
        assert_eq!(find(r"coverage: \d+(?:\.\d+)?%", trace), Some(71.25));
        assert_eq!(find("coverage: .*", trace), Some(50.0));
        assert_eq!(find(r"TOTAL \d+", trace), None);
        assert_eq!(find("(", trace), None);
        assert_eq!(find("", ""), None);
    }

    #[test]
    fn groups_narrow_the_fragment() {
        assert_eq!(find(r"TOTAL\s+\d+\s+(\d+)%", "TOTAL 120 87%"), Some(87.0));
    }

    #[test]
    fn stamps_markers_and_colours_are_no_part_of_a_line() {
        let trace = "2026-11-21T09:32:20.888012Z 00O section_start:1:step_script\r\u{1b}[0KRunning\n\
                     2026-11-21T09:32:20.888012Z 01O \u{1b}[32mLines: \n\
                     2026-11-21T09:32:20.888012Z 01E noise\n\
                     2026-11-21T09:32:20.888012Z 01O+ 93.5\u{1b}[0m%\n";
        assert_eq!(find(r"^Lines:\s+93\.5%$", trace), Some(93.5));
        assert_eq!(find("^Running$", "section_start:1:x[collapsed=true]\r\u{1b}[0KRunning 1"), None);
        assert_eq!(find("^Running 1$", "section_start:1:x[collapsed=true]\r\u{1b}[0KRunning 1"), Some(1.0));
    }
}
