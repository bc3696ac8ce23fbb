//! Cron expressions, which define the periods in which a policy is active.
//!
//! [`Cron::matches`] tests whether an expression contains a minute. An expression has five fields: minute, hour, day,
//! month and weekday. Each field is a list of values and ranges with an optional step.
//!
//! The syntax differs from crontab(5) as in gitlab-runner (docs/spec/fleeting.md, section 7.4): a step keeps the values
//! that are divisible by it, a range can wrap around, day and weekday must both match, and names of months and weekdays
//! can be written in full.

use std::fmt;
use std::str::FromStr;

/// A valid cron expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cron {
    text: String,
    /// One bit per value, in the order of [`FIELDS`].
    fields: [u64; 5],
}

/// Valid values of a field.
struct Field {
    name: &'static str,
    min: u32,
    max: u32,
    /// Names of the values, starting with `min`. The first [`ABBREVIATION_LENGTH`] letters are enough.
    names: &'static [&'static str],
}

const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];
const WEEKDAYS: [&str; 7] = ["sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday"];
const ABBREVIATION_LENGTH: usize = 3;
const FIELDS: [Field; 5] = [
    Field { name: "minute", min: 0, max: 59, names: &[] },
    Field { name: "hour", min: 0, max: 23, names: &[] },
    Field { name: "day", min: 1, max: 31, names: &[] },
    Field { name: "month", min: 1, max: 12, names: &MONTHS },
    Field { name: "weekday", min: 0, max: 7, names: &WEEKDAYS },
];
/// Bit of Sunday in the set of weekdays.
const SUNDAY: u64 = 1;
/// Bit of the value 7, which also means Sunday. Parsing replaces it with [`SUNDAY`].
const SUNDAY_AS_7: u64 = 1 << 7;

/// Error for text that is not a valid cron expression.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a valid period: {cause}")]
pub struct CronError {
    text: String,
    cause: CronErrorCause,
}

/// Cause of a [`CronError`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CronErrorCause {
    /// The number of fields is wrong.
    #[error("expected five fields (minute, hour, day, month, weekday), found {0}")]
    FieldCount(usize),
    /// A field contains `*` more than once.
    #[error("{field}: `*` can be used only once")]
    RepeatedStar {
        /// Name of the field.
        field: &'static str,
    },
    /// A step is not a positive number.
    #[error("{field}: `{step}` is not a valid step; use a number of at least 1")]
    Step {
        /// Name of the field.
        field: &'static str,
        /// The step.
        step: String,
    },
    /// A value is neither a number nor the name of a month or weekday that the field allows.
    #[error("{field}: `{value}` is neither a number nor a known name")]
    Value {
        /// Name of the field.
        field: &'static str,
        /// The value.
        value: String,
    },
    /// A number is not in the range of the field.
    #[error("{field}: {value} is not between {min} and {max}")]
    OutOfRange {
        /// Name of the field.
        field: &'static str,
        /// The number.
        value: u32,
        /// Minimum of the field.
        min: u32,
        /// Maximum of the field.
        max: u32,
    },
}

impl CronError {
    /// Returns the cause without the text of the expression.
    #[must_use]
    pub fn cause(&self) -> &CronErrorCause {
        &self.cause
    }
}

impl Cron {
    /// Returns true if the expression matches a minute. `day` and `month` start at 1, and `weekday` 0 is Sunday.
    #[must_use]
    pub fn matches(&self, minute: u8, hour: u8, day: u8, month: u8, weekday: u8) -> bool {
        let values = [minute, hour, day, month, weekday];
        self.fields.iter().zip(values).all(|(set, value)| value < 64 && set & (1 << value) != 0)
    }

    /// Returns true if the expression matches every minute.
    #[must_use]
    pub fn always_matches(&self) -> bool {
        let bit_replaced_by_parsing = |index: usize| if index == 4 { SUNDAY_AS_7 } else { 0 };
        (self.fields.iter().zip(&FIELDS).enumerate())
            .all(|(index, (set, field))| *set | bit_replaced_by_parsing(index) == range(field.min, field.max))
    }
}

impl Cron {
    /// Returns true if the expression matches no minute of any year, as with February 30.
    #[must_use]
    pub fn never_matches(&self) -> bool {
        /// Days of each month in a leap year.
        const DAYS: [u32; 12] = [31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
        let [.., days, months, _] = self.fields;
        let has_match = |(month, length): (u32, &u32)| months & 1 << month != 0 && days & range(1, *length) != 0;
        self.fields.contains(&0) || !(1..).zip(&DAYS).any(has_match)
    }
}

impl fmt::Display for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Cron {
    type Err = CronError;

    fn from_str(text: &str) -> Result<Self, CronError> {
        let error = |cause| CronError { text: text.to_owned(), cause };
        let words: Vec<&str> = text.split_whitespace().collect();
        if words.len() != FIELDS.len() {
            return Err(error(CronErrorCause::FieldCount(words.len())));
        }
        let mut fields = [0; 5];
        for ((set, field), word) in fields.iter_mut().zip(&FIELDS).zip(words) {
            *set = parse_list(field, word).map_err(error)?;
        }
        if let [.., weekday] = &mut fields
            && *weekday & SUNDAY_AS_7 != 0
        {
            *weekday = *weekday & !SUNDAY_AS_7 | SUNDAY;
        }
        Ok(Self { text: text.to_owned(), fields })
    }
}

fn range(from: u32, to: u32) -> u64 {
    (from..=to).fold(0, |set, value| set | 1 << value)
}

fn parse_list(field: &Field, word: &str) -> Result<u64, CronErrorCause> {
    if word.split(',').filter(|part| part.starts_with('*')).count() > 1 {
        return Err(CronErrorCause::RepeatedStar { field: field.name });
    }
    word.split(',').try_fold(0, |set, part| Ok(set | parse_entry(field, part)?))
}

/// Parses `*`, a value or a range, with an optional `/step`, into its set of values.
fn parse_entry(field: &Field, part: &str) -> Result<u64, CronErrorCause> {
    let (base, step) = match part.split_once('/') {
        Some((base, step)) => (base, Some(step)),
        None => (part, None),
    };
    let set = match base.split_once('-') {
        _ if base == "*" => range(field.min, field.max),
        Some((from, to)) => match (parse_value(field, from)?, parse_value(field, to)?) {
            (from, to) if from <= to => range(from, to),
            (from, to) => range(from, field.max) | range(field.min, to),
        },
        None => 1 << parse_value(field, base)?,
    };
    let Some(step) = step else { return Ok(set) };
    match step.parse::<u32>() {
        Ok(0) | Err(_) => Err(CronErrorCause::Step { field: field.name, step: step.to_owned() }),
        Ok(step) => {
            Ok((0..64).filter(|value| value % step == 0).fold(0, |multiples, value| multiples | set & 1 << value))
        }
    }
}

fn parse_value(field: &Field, text: &str) -> Result<u32, CronErrorCause> {
    let matches = |name: &&str| {
        name.eq_ignore_ascii_case(text)
            || name.get(..ABBREVIATION_LENGTH).is_some_and(|short| short.eq_ignore_ascii_case(text))
    };
    if let Some(index) = field.names.iter().position(matches) {
        return Ok(field.min + u32::try_from(index).unwrap_or(0));
    }
    let Field { name: field, min, max, .. } = *field;
    let value = text.parse().map_err(|_| CronErrorCause::Value { field, value: text.to_owned() })?;
    if (min..=max).contains(&value) { Ok(value) } else { Err(CronErrorCause::OutOfRange { field, value, min, max }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cron(text: &str) -> Cron {
        text.parse().unwrap()
    }

    fn minutes(text: &str) -> Vec<u8> {
        (0..60).filter(|minute| cron(&format!("{text} * * * *")).matches(*minute, 0, 1, 1, 0)).collect()
    }

    #[test]
    fn s01_steps_keep_multiples_and_ranges_wrap() {
        assert_eq!(minutes("*/7"), [0, 7, 14, 21, 28, 35, 42, 49, 56]);
        assert_eq!(minutes("1-20/5"), [5, 10, 15, 20], "the values must be divisible by the step");
        assert_eq!(minutes("0/5"), [0]);
        let hours: Vec<u8> = (0..24).filter(|hour| cron("* 22-4 * * *").matches(0, *hour, 1, 1, 0)).collect();
        assert_eq!(hours, [0, 1, 2, 3, 4, 22, 23]);
        let weekdays: Vec<u8> = (0..7).filter(|day| cron("* * * * 7").matches(0, 0, 1, 1, *day)).collect();
        assert_eq!(weekdays, [0], "7 must be Sunday");
        let hours = (0..24).filter(|hour| cron("* 0-12 * * *").matches(0, *hour, 1, 1, 0)).count();
        assert_eq!(hours, 13, "both ends must belong to a range");
    }

    #[test]
    fn s02_day_and_weekday_must_both_match() {
        let friday_13 = cron("* * 13 * FRI");
        assert!(friday_13.matches(0, 0, 13, 1, 5));
        assert!(!friday_13.matches(0, 0, 13, 1, 4));
        assert!(!friday_13.matches(0, 0, 12, 1, 5));
    }

    #[test]
    fn s03_invalid_expression_is_rejected_with_reason() {
        for (text, expected) in [
            ("@daily", "weekday), found 1"),
            ("? * * * *", "minute: `?` is neither"),
            ("60 * * * *", "minute: 60 is not between 0 and 59"),
            ("* * 0 * *", "day: 0 is not between 1 and 31"),
            ("*-5 * * * *", "minute: `*` is neither"),
            ("* * * *", "weekday), found 4"),
            ("*/0 * * * *", "minute: `0` is not a valid step"),
            ("*,* * * * *", "minute: `*` can be used only once"),
            ("* * * foo *", "month: `foo` is neither"),
        ] {
            let error = text.parse::<Cron>().unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("`{text}` is not a valid period: ")) && error.contains(expected),
                "{error}"
            );
        }
    }

    #[test]
    fn expression_for_every_minute_is_detected() {
        assert!(cron("* * * * *").always_matches());
        assert!(cron("0-59 * 1-31 jan-dec sun-sat").always_matches());
        assert!(!cron("* * * * 1-5").always_matches());
    }

    #[test]
    fn expression_that_never_matches_is_detected() {
        for text in ["* * 30 2 *", "* * 31 2,4,6,9,11 *", "1/7 * * * *", "* * 30-31 feb mon"] {
            assert!(cron(text).never_matches(), "{text}");
        }
        for text in ["* * 29 2 *", "* * 31 4,5 *", "* * 28-31 2 *", "* * * * *", "* * 13 * fri"] {
            assert!(!cron(text).never_matches(), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_parsed_or_rejected(text in "[-*/,0-9a-z ]{0,40}") {
            if let Ok(cron) = text.parse::<Cron>() {
                proptest::prop_assert_eq!(cron.to_string(), text);
            }
        }
    }
}
