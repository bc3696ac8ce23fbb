//! Durations in Go's syntax: `300ms`, `1.5h`, `2h45m` (job-execution, notation).

use std::time::Duration;

/// A duration with its sign; none where the text is no duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GoDuration {
    /// Zero, or more.
    Positive(Duration),
    /// Less than zero, by however much.
    Negative,
}

/// Reads a duration.
#[must_use]
pub fn parse(text: &str) -> Option<GoDuration> {
    let (negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if text == "0" {
        return Some(GoDuration::Positive(Duration::ZERO));
    }
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(digits);
        let unit = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit);
        let nanoseconds = match unit {
            "ns" => 1.0,
            "us" | "µs" | "μs" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            "m" => 60e9,
            "h" => 3600e9,
            _ => return None,
        };
        let value: f64 = number.parse().ok()?;
        total = total.checked_add(Duration::try_from_secs_f64(value * nanoseconds / 1e9).ok()?)?;
        rest = tail;
    }
    // Go counts nanoseconds in 64 bits: some 292 years.
    i64::try_from(total.as_nanos()).ok()?;
    match (text.is_empty(), negative && !total.is_zero()) {
        (true, _) => None,
        (false, true) => Some(GoDuration::Negative),
        (false, false) => Some(GoDuration::Positive(total)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_does() {
        let seconds = |seconds| Some(GoDuration::Positive(Duration::from_secs_f64(seconds)));
        for (text, duration) in [
            ("0", seconds(0.0)),
            ("300ms", seconds(0.3)),
            ("1.5h", seconds(5400.0)),
            ("2h45m", seconds(9900.0)),
            ("+1m.5s", seconds(60.5)),
            ("-5m", Some(GoDuration::Negative)),
            ("", None),
            ("5", None),
            ("m", None),
            ("5 m", None),
            ("5d", None),
            ("1..5s", None),
            ("99999999999999999999h", None),
            ("9999999h", None),
        ] {
            assert_eq!(parse(text), duration, "{text}");
        }
    }
}
