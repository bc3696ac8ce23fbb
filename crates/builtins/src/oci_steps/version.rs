//! Versions of published images, and the tags of series (docs/spec/steps.md, section 2.9).

type InSeries<'s> = &'s dyn Fn(&[u64; 3]) -> bool;

/// Version `N.N.N`, or `N.N.N-SUFFIX`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ImageVersion {
    numbers: [u64; 3],
    /// Suffix of a pre-release, such as `-rc1`. Empty for a release.
    suffix: String,
}

impl ImageVersion {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (numbers, suffix) = text.split_at(text.find('-').unwrap_or(text.len()));
        let parts: Vec<&str> = numbers.split('.').collect();
        let number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit()).then(|| part.parse().ok()).flatten();
        let [major, minor, patch] = parts.as_slice() else { return None };
        Some(Self { numbers: [number(major)?, number(minor)?, number(patch)?], suffix: suffix.to_owned() })
    }

    pub(super) fn tag(&self) -> String {
        let [major, minor, patch] = self.numbers;
        format!("{major}.{minor}.{patch}{}", self.suffix)
    }

    /// Returns the three series of this release. A pre-release has none.
    ///
    /// The highest release of a series is this one, or one of the `existing` tags if that is higher.
    pub(super) fn series(&self, existing: &[String]) -> Vec<Series> {
        let [major, minor, _] = self.numbers;
        if !self.suffix.is_empty() {
            return Vec::new();
        }
        let releases: Vec<_> = existing
            .iter()
            .filter_map(|tag| Some((Self::parse(tag)?, tag)))
            .filter(|(version, _)| version.suffix.is_empty())
            .collect();
        let highest = |in_series: InSeries<'_>| {
            let higher = releases.iter().filter(|(other, _)| in_series(&other.numbers) && other.numbers > self.numbers);
            higher.max_by_key(|(other, _)| other.numbers).map_or_else(|| self.tag(), |(_, tag)| (*tag).clone())
        };
        let series: [(InSeries<'_>, String); 3] = [
            (
                &|[other_major, other_minor, _]| (*other_major, *other_minor) == (major, minor),
                format!("{major}.{minor}"),
            ),
            (&|[other_major, ..]| *other_major == major, major.to_string()),
            (&|_| true, "latest".to_owned()),
        ];
        series.into_iter().map(|(in_series, tag)| Series { tag, highest: highest(in_series) }).collect()
    }
}

/// Releases that share a tag, which points to the highest one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Series {
    /// Tag of the series: `latest`, `N` or `N.N`.
    pub(super) tag: String,
    /// Tag of the highest release.
    pub(super) highest: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_series_has_its_highest_release() {
        let existing: Vec<String> =
            ["1.2.3", "1.3.0", "2.0.0", "2.1.0-rc1", "latest", "main"].map(str::to_owned).into();
        for (version, highest) in [
            ("1.2.4", ["1.2.4", "1.3.0", "2.0.0"]),
            ("1.2.3", ["1.2.3", "1.3.0", "2.0.0"]),
            ("1.2.2", ["1.2.3", "1.3.0", "2.0.0"]),
            ("1.3.1", ["1.3.1", "1.3.1", "2.0.0"]),
            ("2.0.1", ["2.0.1", "2.0.1", "2.0.1"]),
            ("10.0.0", ["10.0.0", "10.0.0", "10.0.0"]),
        ] {
            let series = ImageVersion::parse(version).unwrap().series(&existing);
            assert_eq!(series.iter().map(|series| series.highest.as_str()).collect::<Vec<_>>(), highest, "{version}");
        }
        let candidate = ImageVersion::parse("3.0.0-rc1").unwrap();
        assert_eq!((candidate.tag().as_str(), candidate.series(&existing)), ("3.0.0-rc1", vec![]));
        let series = ImageVersion::parse("1.0.0").unwrap().series(&[]);
        assert_eq!(series.iter().map(|series| series.tag.as_str()).collect::<Vec<_>>(), ["1.0", "1", "latest"]);
        for invalid in ["", "1", "1.2", "1.2.3.4", "v1.2.3", "1.2.x", "1..2", "99999999999999999999.0.0"] {
            assert_eq!(ImageVersion::parse(invalid), None, "{invalid}");
        }
    }
}
