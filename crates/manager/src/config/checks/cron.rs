//! Cron patterns: their number of fields, and which pattern is always active.

/// What is wrong with a pattern of `wanted` fields; none where it is right.
///
/// The values themselves are checked as far as their characters and bounds tell; names of days and months are taken.
pub(super) fn wrong(pattern: &str, wanted: usize) -> Option<String> {
    let fields: Vec<_> = pattern.split_whitespace().collect();
    if fields.len() != wanted {
        let counts = if wanted == 7 { "with seconds first and year last" } else { "without seconds and year" };
        return Some(format!("{} fields found, {wanted} expected (this table counts {counts})", fields.len()));
    }
    // second, minute, hour, day, month, day of the week, year
    let limits = [(0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 7), (1970, 2099)];
    let limits = limits.get(if wanted == 7 { 0..7 } else { 1..6 }).unwrap_or_default();
    let bad = fields.iter().zip(limits).find(|(field, limits)| !field.split(',').all(|part| is_part(part, **limits)));
    bad.map(|(field, (low, high))| {
        format!("`{}` is no list of values between {low} and {high}", super::super::problem::shown_name(field))
    })
}

/// `*`, `?`, `5`, `1-5`, `*/5`, `mon-fri`, `L`, `15W`, `6#3`.
fn is_part(part: &str, (low, high): (u32, u32)) -> bool {
    let (range, step) = part.split_once('/').map_or((part, None), |(range, step)| (range, Some(step)));
    if step.is_some_and(|step| !step.parse::<u32>().is_ok_and(|step| step > 0)) {
        return false;
    }
    if matches!(range, "*" | "?") {
        return true;
    }
    let is_value = |value: &str| {
        if value.is_empty() {
            return false;
        }
        let value = value.split('#').next().unwrap_or_default().trim_end_matches(['L', 'W', 'l', 'w']);
        match value.parse::<u32>() {
            Ok(number) => (low..=high).contains(&number),
            Err(_) => value.len() <= 9 && value.bytes().all(|byte| byte.is_ascii_alphabetic()),
        }
    };
    !range.is_empty() && range.split('-').count() <= 2 && range.split('-').all(is_value)
}

/// Whether the pattern is active at any time.
pub(super) fn is_always(pattern: &str) -> bool {
    pattern.split_whitespace().all(|field| matches!(field, "*" | "?" | "*/1"))
}

/// Whether whatever is in the first list is in the second one too.
pub(super) fn is_covered(periods: &[&str], by: &[&str]) -> bool {
    let plain = |pattern: &str| pattern.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase();
    let by_plain: Vec<_> = by.iter().map(|pattern| plain(pattern)).collect();
    by.iter().any(|pattern| is_always(pattern))
        || (!periods.is_empty() && periods.iter().all(|period| by_plain.contains(&plain(period))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_taken_and_refused_as_cron_does() {
        for (pattern, fields, fits) in [
            ("* * * * *", 5, true),
            ("*/5 8-18 * * mon-fri", 5, true),
            ("* 8-18 * * 1,2,3", 5, true),
            ("0 0 8-18 * * mon-fri *", 7, true),
            ("* * 9-17 ? * 2-6 2026", 7, true),
            ("* * 10 L * 6#3 *", 7, true),
            ("* * * *", 5, false),
            ("* * * * * * *", 5, false),
            ("* 25 * * *", 5, false),
            ("* 8- * * *", 5, false),
            ("*/0 * * * *", 5, false),
            ("; * * * *", 5, false),
            ("", 5, false),
        ] {
            assert_eq!(wrong(pattern, fields).is_none(), fits, "{pattern}: {:?}", wrong(pattern, fields));
        }
    }
}
