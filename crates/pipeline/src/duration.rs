//! Human-readable durations: `timeout`, `start_in`, `expire_in`, `auto_stop_in` (docs/spec/pipeline-yaml.md, section
//! 1.2).
//!
//! A duration is a sequence of amounts and units, such as `3 weeks and 2 days`, `2h20min` or `one hour`. A bare number
//! is in seconds, and `1:30:00` is in hours, minutes and seconds. As on GitLab, a month has 30 days and a year has
//! 365.25.
//!
//! Invariant: no text makes this module panic or overflow.

use std::time::Duration;

const MAX_SECONDS: f64 = 1000.0 * YEAR;

const MINUTE: f64 = 60.0;
const HOUR: f64 = 60.0 * MINUTE;
const DAY: f64 = 24.0 * HOUR;
const WEEK: f64 = 7.0 * DAY;
const MONTH: f64 = 30.0 * DAY;
const YEAR: f64 = 365.25 * DAY;

/// Reason why a text is not a valid duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// The text is empty.
    #[error("should be a duration such as `3h 30m`, but it is empty")]
    Empty,
    /// A word is neither a number nor a unit of time.
    #[error("should be a duration such as `3h 30m` or `1 week`: `{0}` is neither a number nor a unit of time")]
    UnknownWord(String),
    /// Another amount follows an amount directly, without a unit between them.
    #[error("should be a duration such as `3h 30m`: missing unit after `{0}`")]
    MissingUnit(String),
    /// A unit has no amount.
    #[error("should be a duration such as `3h 30m`: missing number before `{0}`")]
    MissingAmount(String),
    /// The duration is a thousand years or more.
    #[error("should be a duration of less than a thousand years")]
    TooLong,
}

/// Parses a duration.
///
/// # Errors
/// Returns [`DurationError`] if the text is not a duration, or if the duration is too long.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    let lower = text.to_lowercase();
    if let Some(duration) = clock(lower.trim()) {
        return to_duration(duration);
    }
    let mut seconds = 0.0;
    let mut amount: Option<(f64, String)> = None;
    let mut has_words = false;
    for word in words(&lower) {
        if matches!(word.as_str(), "and" | "with" | "plus") {
            continue;
        }
        has_words = true;
        if let Some(number) = number(&word) {
            amount = Some(match amount.take() {
                None => (number, word),
                Some((previous, text)) => match combine(previous, is_digits(&text), number, is_digits(&word)) {
                    Some(combined) => (combined, word),
                    None => return Err(DurationError::MissingUnit(text)),
                },
            });
        } else if let Some(unit) = unit(&word) {
            let (number, _) = amount.take().ok_or(DurationError::MissingAmount(word))?;
            seconds += number * unit;
        } else {
            return Err(DurationError::UnknownWord(word));
        }
    }
    if let Some((number, _)) = amount {
        seconds += number;
    }
    if has_words { to_duration(seconds) } else { Err(DurationError::Empty) }
}

/// Parses a duration or `never`. Returns `None` for `never`.
///
/// # Errors
/// Same as [`parse`].
pub fn parse_or_never(text: &str) -> Result<Option<Duration>, DurationError> {
    if text.trim().eq_ignore_ascii_case("never") { Ok(None) } else { parse(text).map(Some) }
}

fn to_duration(seconds: f64) -> Result<Duration, DurationError> {
    if !(0.0..MAX_SECONDS).contains(&seconds) {
        return Err(DurationError::TooLong);
    }
    Duration::try_from_secs_f64(seconds).map_err(|_| DurationError::TooLong)
}

/// Parses `1:30:00` or `4:30`.
fn clock(text: &str) -> Option<f64> {
    let parts: Vec<&str> = text.split(':').collect();
    if !(2..=3).contains(&parts.len()) {
        return None;
    }
    parts.iter().try_fold(0.0, |sum, part| {
        let digits = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        let value: f64 = if digits { part.parse().ok()? } else { return None };
        Some(sum * 60.0 + value)
    })
}

/// Splits a text into words and numbers, even where nothing separates a number from a word, as in `2h20min`.
fn words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut kind = None;
    for char in text.chars() {
        if char.is_whitespace() || matches!(char, ',' | '-') {
            // `twenty-one` is two words. A `-` that does not follow a word directly becomes a word, which is rejected.
            if char == '-' && kind.is_none() {
                words.push("-".to_owned());
            }
            kind = None;
            continue;
        }
        let numeric = char.is_ascii_digit() || char == '.';
        match words.last_mut() {
            Some(word) if kind == Some(numeric) => word.push(char),
            _ => words.push(char.to_string()),
        }
        kind = Some(numeric);
    }
    words
}

fn unit(word: &str) -> Option<f64> {
    Some(match word {
        "s" | "sec" | "secs" | "second" | "seconds" => 1.0,
        "m" | "min" | "mins" | "minute" | "minutes" => MINUTE,
        "h" | "hr" | "hrs" | "hour" | "hours" => HOUR,
        "d" | "dy" | "day" | "days" => DAY,
        "w" | "wk" | "wks" | "week" | "weeks" => WEEK,
        "mo" | "mos" | "month" | "months" => MONTH,
        "y" | "yr" | "yrs" | "year" | "years" => YEAR,
        _ => return None,
    })
}

fn number(word: &str) -> Option<f64> {
    const ONES: [&str; 20] = [
        "zero",
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
        "nine",
        "ten",
        "eleven",
        "twelve",
        "thirteen",
        "fourteen",
        "fifteen",
        "sixteen",
        "seventeen",
        "eighteen",
        "nineteen",
    ];
    const TENS: [&str; 8] = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"];

    if is_digits(word) {
        return word.parse().ok().filter(|value: &f64| value.is_finite());
    }
    let index = |list: &[&str]| list.iter().position(|known| *known == word).and_then(|at| u8::try_from(at).ok());
    match word {
        "a" | "an" => Some(1.0),
        "hundred" => Some(100.0),
        "thousand" => Some(1000.0),
        _ => index(&ONES).map(f64::from).or_else(|| index(&TENS).map(|at| f64::from(at) * 10.0 + 20.0)),
    }
}

fn is_digits(word: &str) -> bool {
    word.starts_with(|char: char| char.is_ascii_digit() || char == '.')
}

/// Combines number words: `twenty` `one`, `two` `hundred`, `a` `hundred`, `one hundred` `five`. A number in digits can
/// only come first, and only before `hundred` or `thousand`: `2 hundred`. Returns `None` for `20 5` and `20 five`.
fn combine(previous: f64, previous_is_digits: bool, number: f64, number_is_digits: bool) -> Option<f64> {
    if number_is_digits {
        return None;
    }
    if number >= 100.0 && (previous < 100.0 || number >= 1000.0) {
        return Some(previous * number);
    }
    if previous_is_digits {
        return None;
    }
    let can_combine = (previous >= 100.0 && previous % 100.0 == 0.0 && number < 100.0)
        || (previous % 100.0 >= 20.0 && previous % 10.0 == 0.0 && number < 10.0);
    can_combine.then_some(previous + number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(text: &str) -> Option<u64> {
        parse(text).ok().map(|duration| duration.as_secs())
    }

    #[test]
    fn parses_all_notations_of_a_duration() {
        for (text, expected) in [
            ("3h 30m", 12_600),
            ("3 hours 30 minutes", 12_600),
            ("one hour", 3600),
            ("2h20min", 8400),
            ("3 weeks and 2 days", 23 * 86_400),
            ("1 week", 604_800),
            ("8 days", 691_200),
            ("47 yrs 6 mos and 4d", 47 * 31_557_600 + 6 * 2_592_000 + 4 * 86_400),
            ("90", 90),
            ("5 minutes, 10 seconds", 310),
            ("1.5 hours", 5400),
            ("Twenty-One Days", 21 * 86_400),
            ("two hundred seconds", 200),
            ("2 hundred five seconds", 205),
            ("one hundred five seconds", 105),
            ("1:30:00", 5400),
            ("4:30", 270),
            ("1 DAY", 86_400),
            ("3 mins 4 sec", 184),
            ("0", 0),
        ] {
            assert_eq!(seconds(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn rejects_invalid_durations() {
        for text in ["soon", "", "  ", "and", "hour", "-5 minutes", "1x", "1..5h", "5 minutes -", "1:"] {
            assert!(parse(text).is_err(), "{text}");
        }
        for text in ["10 20 minutes", "10 100 seconds", "20 5 minutes", "20 five minutes"] {
            let amount = text.split(' ').next().unwrap().to_owned();
            assert_eq!(parse(text), Err(DurationError::MissingUnit(amount)), "{text}");
        }
        assert_eq!(parse("twenty 5 minutes"), Err(DurationError::MissingUnit("twenty".to_owned())));
        assert_eq!(parse("soon"), Err(DurationError::UnknownWord("soon".to_owned())));
        assert_eq!(parse("an hour and a half minute"), Err(DurationError::UnknownWord("half".to_owned())));
        assert_eq!(parse("99999999999999999999999999 years"), Err(DurationError::TooLong));
        assert_eq!(parse(&"9".repeat(400)), Err(DurationError::UnknownWord("9".repeat(400))));
    }

    #[test]
    fn parse_or_never_accepts_durations_and_the_word_never() {
        assert_eq!(parse_or_never("Never"), Ok(None));
        assert_eq!(parse_or_never("1h"), Ok(Some(Duration::from_secs(3600))));
        assert!(parse_or_never("nevermore").is_err());
    }
}
