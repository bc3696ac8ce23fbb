//! Durations in Go's syntax, which gitlab-runner uses, and in milliseconds.

use std::time::Duration;

/// A signed duration in Go's syntax: `300ms`, `1.5h`, `2h45m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GoDuration {
    /// A duration of zero or more.
    NonNegative(Duration),
    /// A negative duration.
    Negative,
}

impl GoDuration {
    /// Parses a duration. `None` means that it is invalid.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (negative, text) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        if text == "0" {
            return Some(Self::NonNegative(Duration::ZERO));
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
        // Go counts nanoseconds in 64 bits.
        i64::try_from(total.as_nanos()).ok()?;
        match (text.is_empty(), negative && !total.is_zero()) {
            (true, _) => None,
            (false, true) => Some(Self::Negative),
            (false, false) => Some(Self::NonNegative(total)),
        }
    }
}

/// Formats a duration like Go's `time.Duration`: `1m2.5s`, `17.2ms`.
#[must_use]
pub fn go_duration(duration: Duration) -> String {
    let fraction = |whole: u128, part: u128, digits: usize, unit: &str| {
        let part = format!("{part:0digits$}");
        let part = part.trim_end_matches('0');
        let dot = if part.is_empty() { "" } else { "." };
        format!("{whole}{dot}{part}{unit}")
    };
    let nanos = duration.as_nanos();
    if nanos == 0 {
        return "0s".to_owned();
    }
    if nanos < 1_000 {
        return format!("{nanos}ns");
    }
    if nanos < 1_000_000 {
        return fraction(nanos / 1_000, nanos % 1_000, 3, "µs");
    }
    if nanos < 1_000_000_000 {
        return fraction(nanos / 1_000_000, nanos % 1_000_000, 6, "ms");
    }
    let seconds = nanos / 1_000_000_000;
    let rest = fraction(seconds % 60, nanos % 1_000_000_000, 9, "s");
    match (seconds / 3600, seconds / 60 % 60) {
        (0, 0) => rest,
        (0, minutes) => format!("{minutes}m{rest}"),
        (hours, minutes) => format!("{hours}h{minutes}m{rest}"),
    }
}

/// Returns whole milliseconds, or `u64::MAX` if the duration is too long.
#[must_use]
pub fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_durations_like_go() {
        for (nanoseconds, text) in [
            (0, "0s"),
            (999, "999ns"),
            (1_500, "1.5µs"),
            (17_200_000, "17.2ms"),
            (300_000_000, "300ms"),
            (2_000_000_000, "2s"),
            (1_500_000_000, "1.5s"),
            (62_050_000_000, "1m2.05s"),
            (62_500_000_001, "1m2.500000001s"),
            (3_600_000_000_000, "1h0m0s"),
            (9_900_000_000_000, "2h45m0s"),
        ] {
            assert_eq!(go_duration(Duration::from_nanos(nanoseconds)), text);
        }
    }

    #[test]
    fn parses_durations_like_go() {
        let seconds = |seconds| Some(GoDuration::NonNegative(Duration::from_secs_f64(seconds)));
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
            assert_eq!(GoDuration::parse(text), duration, "{text}");
        }
    }
}
