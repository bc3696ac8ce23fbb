//! One value after the other: what is wrong with it, and what counts in its place.

use std::time::Duration;

use jiff::SignedDuration;

use super::Problem;

/// Collects problems, and gives a default in the place of each.
#[derive(Default)]
pub(super) struct Check(pub(super) Vec<Problem>);

impl Check {
    pub(super) fn problem(&mut self, key: impl Into<String>, message: impl Into<String>) {
        self.0.push(Problem { key: key.into(), message: message.into() });
    }

    /// Go's words for durations: `1h30m`, `20m0s`, `500ms`.
    pub(super) fn duration(&mut self, key: &str, text: Option<&String>, default: Duration) -> Duration {
        let Some(text) = text else { return default };
        let found = text.parse::<SignedDuration>().ok().filter(|_| is_gos(text));
        match found.and_then(|found| Duration::try_from(found).ok()) {
            // The peer's zero is its default, and so is ours.
            Some(Duration::ZERO) => default,
            Some(found) => found,
            None => {
                self.problem(key, format!("`{text}` is no duration; write for example 20m0s or 500ms"));
                default
            }
        }
    }

    pub(super) fn count(&mut self, key: &str, value: i64) -> u32 {
        u32::try_from(value).unwrap_or_else(|_| {
            self.problem(key, format!("{value} is not from 0 to {}", u32::MAX));
            0
        })
    }

    pub(super) fn positive(&mut self, key: &str, value: f64) -> f64 {
        if value.is_finite() && value >= 0.0 {
            return value;
        }
        self.problem(key, format!("{value} is not a number from 0 on"));
        0.0
    }

    pub(super) fn one_of<T: Copy>(&mut self, key: &str, value: Option<&String>, words: &[(&str, T)]) -> Option<T> {
        let value = value?;
        let found = words.iter().find(|(word, _)| word == value);
        if found.is_none() {
            let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            self.problem(key, format!("`{value}` is not known; write {}", known.join(" or ")));
        }
        found.map(|(_, value)| *value)
    }
}

/// Whether a duration is written as Go writes it, perhaps with blanks between its parts: other words for it would be
/// understood here, and not in `config.toml`.
fn is_gos(text: &str) -> bool {
    const UNITS: [&str; 8] = ["h", "m", "s", "ms", "us", "µs", "μs", "ns"];
    let is_digit = |c: char| c.is_ascii_digit() || c == '.';
    let is_part = |part: &str| {
        part.starts_with(is_digit)
            && part.split(is_digit).filter(|unit| !unit.is_empty()).all(|unit| UNITS.contains(&unit))
    };
    text.trim_start_matches(['+', '-']).split_whitespace().all(is_part)
}
