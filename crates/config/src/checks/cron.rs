use muster_taskscaler::cron::Cron;

use super::super::machine;
use super::super::problem::shown_name;

/// Returns why the scaler rejects a pattern, which must have `wanted` fields.
pub(super) fn pattern_error(pattern: &str, wanted: usize) -> Option<String> {
    let fields: Vec<_> = pattern.split_whitespace().collect();
    if fields.len() != wanted {
        let layout = if wanted == 7 { "with seconds first and year last" } else { "without seconds and year" };
        return Some(format!("{} fields found, {wanted} expected ({layout})", fields.len()));
    }
    let seconds_and_years = [(fields.first(), (0, 59)), (fields.last(), (1970, 2099))];
    let seconds_and_years =
        seconds_and_years.iter().filter(|_| wanted == 7).filter_map(|(field, limits)| Some(((*field)?, *limits)));
    for (field, (low, high)) in seconds_and_years {
        if !field.split(',').all(|part| is_part(part, (low, high))) {
            return Some(format!("`{}` is not a valid list of values between {low} and {high}", shown_name(field)));
        }
    }
    let patterns = if wanted == 7 { machine::five_fields(pattern) } else { vec![pattern.to_owned()] };
    patterns
        .iter()
        .find_map(|pattern| pattern.parse::<Cron>().err())
        .map(|error| shown_name(&error.cause().to_string()))
}

/// Returns whether a valid pattern never matches, such as one for February 30.
pub(super) fn never_matches(pattern: &str, fields: usize) -> bool {
    let patterns = if fields == 7 { machine::five_fields(pattern) } else { vec![pattern.to_owned()] };
    !patterns.is_empty()
        && patterns.iter().all(|pattern| pattern.parse::<Cron>().is_ok_and(|period| period.never_matches()))
}

/// Returns whether a part of seconds or years is valid: `*`, `?`, `5`, `1-5` or `*/5`.
fn is_part(part: &str, (low, high): (u32, u32)) -> bool {
    let (range, step) = part.split_once('/').map_or((part, None), |(range, step)| (range, Some(step)));
    if step.is_some_and(|step| !step.parse::<u32>().is_ok_and(|step| step > 0)) {
        return false;
    }
    let is_value = |value: &str| value.parse::<u32>().is_ok_and(|number| (low..=high).contains(&number));
    matches!(range, "*" | "?") || range.split('-').count() <= 2 && range.split('-').all(is_value)
}

pub(super) fn always_matches(pattern: &str) -> bool {
    pattern.split_whitespace().all(|field| matches!(field, "*" | "?" | "*/1"))
}

/// Returns whether `by` covers `periods`: whenever a pattern of `periods` matches, a pattern of `by` matches, too. Only
/// compares their texts.
pub(super) fn is_covered(periods: &[&str], by: &[&str]) -> bool {
    let normalized = |pattern: &str| pattern.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase();
    let by_normalized: Vec<_> = by.iter().map(|pattern| normalized(pattern)).collect();
    by.iter().any(|pattern| always_matches(pattern))
        || (!periods.is_empty() && periods.iter().all(|period| by_normalized.contains(&normalized(period))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cron_patterns_are_validated() {
        for (pattern, fields, valid) in [
            ("* * * * *", 5, true),
            ("*/5 8-18 * * mon-fri", 5, true),
            ("* 8-18 * * 1,2,3", 5, true),
            ("0 0 8-18 * * mon-fri *", 7, true),
            ("* * 9-17 ? * 2-6 2026", 7, true),
            ("* * 10 * * saturday *", 7, true),
            ("0 1-59/2 9 1-15 * mon-fri *", 7, true),
            // Cron extensions that the scaler does not support.
            ("* * 10 L * * *", 7, false),
            ("* * 10 15W * * *", 7, false),
            ("* * 10 * * 6#3 *", 7, false),
            ("* 10 L * *", 5, false),
            ("* 10 ? * *", 5, false),
            ("60 * * * * * *", 7, false),
            ("* * * * * * 1900", 7, false),
            ("* * * *", 5, false),
            ("* * * * * * *", 5, false),
            ("* 25 * * *", 5, false),
            ("* 8- * * *", 5, false),
            ("*/0 * * * *", 5, false),
            ("; * * * *", 5, false),
            ("", 5, false),
        ] {
            assert_eq!(
                pattern_error(pattern, fields).is_none(),
                valid,
                "{pattern}: {:?}",
                pattern_error(pattern, fields)
            );
        }
    }
}
