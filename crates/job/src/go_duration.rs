//! Durations as Go prints them, since people and tools match on them: `1h0m0s`, `2s`, `300ms`.

use std::time::Duration;

/// The text of a duration, as Go's `time.Duration` prints it; to the millisecond.
#[must_use]
pub fn go_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let millis = duration.subsec_millis();
    if seconds == 0 {
        return if millis == 0 { "0s".to_owned() } else { format!("{millis}ms") };
    }
    let fraction =
        if millis == 0 { String::new() } else { format!(".{}", format!("{millis:03}").trim_end_matches('0')) };
    let (hours, minutes, rest) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes) {
        (0, 0) => format!("{rest}{fraction}s"),
        (0, _) => format!("{minutes}m{rest}{fraction}s"),
        _ => format!("{hours}h{minutes}m{rest}{fraction}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_go_prints_them() {
        for (millis, text) in [
            (0, "0s"),
            (300, "300ms"),
            (2_000, "2s"),
            (1_500, "1.5s"),
            (62_050, "1m2.05s"),
            (3_600_000, "1h0m0s"),
            (9_900_000, "2h45m0s"),
        ] {
            assert_eq!(go_duration(Duration::from_millis(millis)), text);
        }
    }
}
