//! "Did you mean" suggestions: the known name that is closest to an unknown one.

/// Maximum edit distance to a suggestion, as a percentage of the longer name.
const MAX_DISTANCE_PERCENT: usize = 40;
/// Maximum length of names to compare in bytes. The time for a comparison is the product of both lengths.
const MAX_COMPARED_BYTES: usize = 300;
/// Maximum cost of one search: the sum of the products of the compared lengths. Further candidates are ignored.
const MAX_COST: usize = 2_000_000;

/// Returns the candidate that is most similar to `name`. Returns `None` if no candidate is similar enough.
///
/// Ignores case. A swap of two adjacent letters counts as one edit. Of equally close candidates, the first one wins.
#[must_use]
pub fn closest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if name.len() > MAX_COMPARED_BYTES {
        return None;
    }
    let lowercase_name = name.to_lowercase();
    let length = lowercase_name.chars().count();
    let mut remaining_cost = MAX_COST;
    let mut best: Option<(usize, &'a str)> = None;
    for candidate in candidates.into_iter().filter(|candidate| candidate.len() <= MAX_COMPARED_BYTES) {
        let known = candidate.to_lowercase();
        let known_length = known.chars().count();
        let longer = length.max(known_length);
        let allowed = (longer * MAX_DISTANCE_PERCENT / 100).max(1);
        let min_distance = length.abs_diff(known_length);
        if min_distance > allowed || best.is_some_and(|(smallest, _)| min_distance >= smallest) {
            continue;
        }
        let Some(remaining) = remaining_cost.checked_sub(length * known_length) else { break };
        remaining_cost = remaining;
        let distance = strsim::damerau_levenshtein(&lowercase_name, &known);
        if distance <= allowed && distance < longer && best.is_none_or(|(smallest, _)| distance < smallest) {
            best = Some((distance, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

/// Returns the text ``did you mean `x`?`` if a candidate is similar enough.
#[must_use]
pub fn did_you_mean<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<String> {
    closest(name, candidates).map(|candidate| format!("did you mean `{candidate}`?"))
}

const MAX_LISTED_CHARS: usize = 60;
const MAX_LISTED: usize = 12;

/// Returns a list of names for a message: `` `a`, `b` and 7 more``. Long lists and long names are truncated.
#[must_use]
pub fn name_list<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut names = names.into_iter();
    let shown: Vec<String> = names
        .by_ref()
        .take(MAX_LISTED)
        .map(|name| match name.char_indices().nth(MAX_LISTED_CHARS) {
            Some((end, _)) => format!("`{}…`", name.get(..end).unwrap_or(name)),
            None => format!("`{name}`"),
        })
        .collect();
    match names.count() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYWORDS: &[&str] = &["script", "before_script", "after_script", "coverage", "only", "on", "rules"];

    #[test]
    fn suggests_keyword_for_typo() {
        for (written, expected) in [
            ("scirpt", Some("script")),
            ("SCRIPT", Some("script")),
            ("beforescript", Some("before_script")),
            ("rule", Some("rules")),
            ("coverge", Some("coverage")),
            ("colour", None),
            ("", None),
            ("a", None),
        ] {
            assert_eq!(closest(written, KEYWORDS.iter().copied()), expected, "{written}");
        }
    }

    #[test]
    fn search_cost_is_bounded() {
        let long = "x".repeat(MAX_COMPARED_BYTES);
        let others = std::iter::repeat_n(&*long, MAX_COST / long.len() / long.len());
        let name = format!("{}y", &long[1..]);
        let exact = std::iter::once(&*name);
        assert_eq!(closest(&name, exact.clone().chain(others.clone())), Some(&*name));
        assert_eq!(
            closest(&name, others.chain(exact)),
            Some(&*long),
            "candidates after the cost limit must be ignored"
        );
    }

    #[test]
    fn listed_names_are_bounded() {
        assert_eq!(name_list(["a", "b"]), "`a`, `b`");
        let many = name_list(std::iter::repeat_n("name", 5000));
        assert!(many.ends_with("`name` and 4988 more") && many.len() < 200, "{many}");
        assert_eq!(name_list([&*"ä".repeat(61)]), format!("`{}…`", "ä".repeat(60)));
    }

    #[test]
    fn did_you_mean_contains_the_candidate() {
        assert_eq!(did_you_mean("onyl", KEYWORDS.iter().copied()).as_deref(), Some("did you mean `only`?"));
        assert_eq!(did_you_mean("zzzzzz", KEYWORDS.iter().copied()), None);
    }
}
