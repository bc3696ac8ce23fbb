//! Versions of published images, and the tags of the highest version of each series (docs/spec/steps.md, section 2.9).

/// Whether a version belongs to a series.
type InSeries<'s> = &'s dyn Fn(&[u64; 3]) -> bool;

/// Version `N.N.N`, optionally with a suffix that starts with `-`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ImageVersion {
    numbers: [u64; 3],
    /// Suffix of a pre-release with its `-`. Empty for a release.
    suffix: String,
}

impl ImageVersion {
    /// Parses a version. `None` means that the text is not a valid version.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (numbers, suffix) = text.split_at(text.find('-').unwrap_or(text.len()));
        let parts: Vec<&str> = numbers.split('.').collect();
        let number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit()).then(|| part.parse().ok()).flatten();
        let [major, minor, patch] = parts.as_slice() else { return None };
        Some(Self { numbers: [number(major)?, number(minor)?, number(patch)?], suffix: suffix.to_owned() })
    }

    /// Returns the tags that this version gets in a repository with the tags `existing`: its own tag, and the tag of each series in which it
    /// is the highest release. A pre-release gets only its own tag.
    pub(super) fn tags(&self, existing: &[String]) -> Vec<String> {
        let [major, minor, patch] = self.numbers;
        let mut tags = vec![format!("{major}.{minor}.{patch}{}", self.suffix)];
        if !self.suffix.is_empty() {
            return tags;
        }
        let releases = existing.iter().filter_map(|tag| Self::parse(tag)).filter(|version| version.suffix.is_empty());
        let numbers: Vec<[u64; 3]> = releases.map(|version| version.numbers).collect();
        let is_highest = |in_series: InSeries<'_>| {
            numbers.iter().filter(|other| in_series(other)).all(|other| *other <= self.numbers)
        };
        let series: [(InSeries<'_>, String); 3] = [
            (
                &|[other_major, other_minor, _]| (*other_major, *other_minor) == (major, minor),
                format!("{major}.{minor}"),
            ),
            (&|[other_major, ..]| *other_major == major, major.to_string()),
            (&|_| true, "latest".to_owned()),
        ];
        tags.extend(series.into_iter().filter(|(in_series, _)| is_highest(*in_series)).map(|(_, tag)| tag));
        tags
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn highest_release_of_a_series_moves_its_tag() {
        let existing: Vec<String> =
            ["1.2.3", "1.3.0", "2.0.0", "2.1.0-rc1", "latest", "main"].map(str::to_owned).into();
        for (version, tags) in [
            ("1.2.4", vec!["1.2.4", "1.2"]),
            ("1.2.3", vec!["1.2.3", "1.2"]),
            ("1.2.2", vec!["1.2.2"]),
            ("1.3.1", vec!["1.3.1", "1.3", "1"]),
            ("2.0.1", vec!["2.0.1", "2.0", "2", "latest"]),
            ("10.0.0", vec!["10.0.0", "10.0", "10", "latest"]),
            ("3.0.0-rc1", vec!["3.0.0-rc1"]),
        ] {
            assert_eq!(ImageVersion::parse(version).unwrap().tags(&existing), tags, "{version}");
        }
        assert_eq!(ImageVersion::parse("1.0.0").unwrap().tags(&[]), ["1.0.0", "1.0", "1", "latest"]);
        for invalid in ["", "1", "1.2", "1.2.3.4", "v1.2.3", "1.2.x", "1..2", "99999999999999999999.0.0"] {
            assert_eq!(ImageVersion::parse(invalid), None, "{invalid}");
        }
    }
}
