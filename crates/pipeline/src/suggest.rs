//! "Did you mean": the known name that is closest to a written one.

/// How different two names may be, as a part of the longer one, and still be taken for a slip of the keyboard.
const LARGEST_DISTANCE_IN_PERCENT: usize = 40;
/// Longer names, in bytes, are compared with nothing: the cost is the product of both lengths.
const LONGEST_COMPARED: usize = 300;
/// The most that one search may cost, as products of the lengths that are compared: 20,000 names of ten letters. Names
/// after that are not looked at.
const LARGEST_COST: usize = 2_000_000;

/// The candidate that `name` most likely meant, or `None` where none is close.
///
/// Letter case is ignored, and swapped neighbours count as one slip. Of equally close candidates the first wins.
#[must_use]
pub fn closest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if name.len() > LONGEST_COMPARED {
        return None;
    }
    let wanted = name.to_lowercase();
    let length = wanted.chars().count();
    let mut cost_left = LARGEST_COST;
    let mut best: Option<(usize, &'a str)> = None;
    for candidate in candidates.into_iter().filter(|candidate| candidate.len() <= LONGEST_COMPARED) {
        let known = candidate.to_lowercase();
        let known_length = known.chars().count();
        let longer = length.max(known_length);
        let allowed = (longer * LARGEST_DISTANCE_IN_PERCENT / 100).max(1);
        let at_least = length.abs_diff(known_length);
        if at_least > allowed || best.is_some_and(|(smallest, _)| at_least >= smallest) {
            continue;
        }
        let Some(left) = cost_left.checked_sub(length * known_length) else { break };
        cost_left = left;
        let distance = strsim::damerau_levenshtein(&wanted, &known);
        if distance <= allowed && distance < longer && best.is_none_or(|(smallest, _)| distance < smallest) {
            best = Some((distance, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

/// The sentence ``did you mean `x`?``, where there is a near candidate.
#[must_use]
pub fn did_you_mean<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<String> {
    closest(name, candidates).map(|candidate| format!("did you mean `{candidate}`?"))
}

/// So many names are listed, and so many characters of each.
const LISTED: usize = 12;
const LISTED_CHARACTERS: usize = 60;

/// Names in a sentence: `` `a`, `b` and 7 more``. There may be very many, and very long ones.
#[must_use]
pub fn listed<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut names = names.into_iter();
    let shown: Vec<String> = names
        .by_ref()
        .take(LISTED)
        .map(|name| match name.char_indices().nth(LISTED_CHARACTERS) {
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
    fn a_slip_finds_its_keyword() {
        for (written, meant) in [
            ("scirpt", Some("script")),
            ("SCRIPT", Some("script")),
            ("beforescript", Some("before_script")),
            ("rule", Some("rules")),
            ("coverge", Some("coverage")),
            ("colour", None),
            ("", None),
            ("a", None),
        ] {
            assert_eq!(closest(written, KEYWORDS.iter().copied()), meant, "{written}");
        }
    }

    #[test]
    fn a_search_has_an_end() {
        let long = "x".repeat(LONGEST_COMPARED);
        let others = std::iter::repeat_n(&*long, LARGEST_COST / long.len() / long.len());
        let name = format!("{}y", &long[1..]);
        let exact = std::iter::once(&*name);
        assert_eq!(closest(&name, exact.clone().chain(others.clone())), Some(&*name));
        assert_eq!(closest(&name, others.chain(exact)), Some(&*long), "it stood too late");
    }

    #[test]
    fn a_list_of_names_has_an_end() {
        assert_eq!(listed(["a", "b"]), "`a`, `b`");
        let many = listed(std::iter::repeat_n("name", 5000));
        assert!(many.ends_with("`name` and 4988 more") && many.len() < 200, "{many}");
        assert_eq!(listed([&*"ä".repeat(61)]), format!("`{}…`", "ä".repeat(60)));
    }

    #[test]
    fn the_sentence_names_it() {
        assert_eq!(did_you_mean("onyl", KEYWORDS.iter().copied()).as_deref(), Some("did you mean `only`?"));
        assert_eq!(did_you_mean("zzzzzz", KEYWORDS.iter().copied()), None);
    }
}
