//! "Did you mean": the known name that is closest to a written one.

/// How different two names may be, as a part of the longer one, and still be taken for a slip of the keyboard.
const LARGEST_DISTANCE_IN_PERCENT: usize = 40;
/// Longer names, in bytes, are compared with nothing: the cost is the product of both lengths.
const LONGEST_COMPARED: usize = 300;

/// The candidate that `name` most likely meant, or `None` where none is close.
///
/// Letter case is ignored, and swapped neighbours count as one slip. Of equally close candidates the first wins.
#[must_use]
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if name.len() > LONGEST_COMPARED {
        return None;
    }
    let wanted = name.to_lowercase();
    let mut best: Option<(usize, &'a str)> = None;
    for candidate in candidates.into_iter().filter(|candidate| candidate.len() <= LONGEST_COMPARED) {
        let known = candidate.to_lowercase();
        let longer = wanted.chars().count().max(known.chars().count());
        let allowed = (longer * LARGEST_DISTANCE_IN_PERCENT / 100).max(1);
        if wanted.chars().count().abs_diff(known.chars().count()) > allowed {
            continue;
        }
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
    nearest(name, candidates).map(|candidate| format!("did you mean `{candidate}`?"))
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
            assert_eq!(nearest(written, KEYWORDS.iter().copied()), meant, "{written}");
        }
    }

    #[test]
    fn the_sentence_names_it() {
        assert_eq!(did_you_mean("onyl", KEYWORDS.iter().copied()).as_deref(), Some("did you mean `only`?"));
        assert_eq!(did_you_mean("zzzzzz", KEYWORDS.iter().copied()), None);
    }
}
