//! Versions and their constraints (docs/spec/fleeting.md, section 6.2). Test names such as `o02_` refer to section 9.

use std::fmt;
use std::str::FromStr;

use semver::{BuildMetadata, Prerelease, VersionReq};

/// A version `MAJOR.MINOR.PATCH[-PRE]`, ordered as a semantic version.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(semver::Version);

/// Reason why a text is not a valid version or constraint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VersionError {
    /// The text is not a version.
    #[error(
        "invalid semantic version {found:?}: write MAJOR.MINOR.PATCH, or MAJOR.MINOR.PATCH-PRERELEASE, without a leading v"
    )]
    Version {
        /// The invalid text.
        found: String,
    },
    /// The text is not a constraint.
    #[error(
        "invalid semantic version {found:?}: write latest, 1, 1.2, 1.2.3, 1.2.3-rc.1, or a range such as ^1.2 or >=1.2,<1.5"
    )]
    Constraint {
        /// The invalid text.
        found: String,
    },
    /// The text is a digest.
    #[error(
        "{found:?} is a digest, not a version; specify a version (its digest is stored in the lock file and verified)"
    )]
    Digest {
        /// The invalid text.
        found: String,
    },
}

impl Version {
    /// Returns whether the version is a pre-release.
    #[must_use]
    pub fn is_prerelease(&self) -> bool {
        !self.0.pre.is_empty()
    }
}

/// Removes leading zeros from a number. `None` means that the text does not consist of digits.
fn without_leading_zeros(text: &str) -> Option<&str> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let trimmed = text.trim_start_matches('0');
    Some(if trimmed.is_empty() { "0" } else { trimmed })
}

fn integer(text: &str) -> Option<u64> {
    without_leading_zeros(text)?.parse().ok()
}

impl FromStr for Version {
    type Err = VersionError;

    /// Parses a version. Leading zeros are ignored: `01.2.3` is `1.2.3`.
    fn from_str(text: &str) -> Result<Self, VersionError> {
        let parse = || {
            let (core, pre) = match text.split_once('-') {
                Some((core, pre)) => (core, Some(pre)),
                None => (text, None),
            };
            let mut numbers = core.split('.').map(integer);
            let (major, minor, patch) = (numbers.next()??, numbers.next()??, numbers.next()??);
            if numbers.next().is_some() {
                return None;
            }
            let pre = match pre {
                None => Prerelease::EMPTY,
                Some(pre) => {
                    let parts: Vec<&str> =
                        pre.split('.').map(|part| without_leading_zeros(part).unwrap_or(part)).collect();
                    Prerelease::new(&parts.join(".")).ok().filter(|pre| !pre.is_empty())?
                }
            };
            Some(Self(semver::Version { major, minor, patch, pre, build: BuildMetadata::EMPTY }))
        };
        parse().ok_or_else(|| VersionError::Version { found: text.to_owned() })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A set of acceptable versions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Constraint {
    /// Any release, written `latest`.
    Latest,
    /// Any release, written as an empty text.
    Any,
    /// Any release of a major version.
    Major(u64),
    /// Any release of a minor version.
    Minor(u64, u64),
    /// Exactly this version. Other constraints do not match pre-releases, except ranges that contain one, such as
    /// `>=1.2.0-rc.1`.
    Exact(Version),
    /// A range in Cargo's syntax. gitlab-runner does not support ranges.
    Range(VersionReq),
}

impl Constraint {
    /// Returns whether the version is acceptable.
    #[must_use]
    pub fn matches(&self, version: &Version) -> bool {
        let is_release = !version.is_prerelease();
        match self {
            Self::Latest | Self::Any => is_release,
            Self::Major(major) => is_release && version.0.major == *major,
            Self::Minor(major, minor) => is_release && (version.0.major, version.0.minor) == (*major, *minor),
            Self::Exact(expected) => expected == version,
            Self::Range(range) => range.matches(&version.0),
        }
    }

    /// Returns the highest acceptable version.
    #[must_use]
    pub fn best(&self, versions: impl IntoIterator<Item = Version>) -> Option<Version> {
        versions.into_iter().filter(|version| self.matches(version)).max()
    }
}

impl FromStr for Constraint {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, VersionError> {
        let invalid = || VersionError::Constraint { found: text.to_owned() };
        if text.starts_with("sha256:") || text.starts_with("sha512:") {
            return Err(VersionError::Digest { found: text.to_owned() });
        }
        if text.starts_with(['^', '~', '>', '<', '=']) {
            return VersionReq::parse(text).map(Self::Range).map_err(|_| invalid());
        }
        if text.is_empty() || text == "latest" {
            return Ok(if text.is_empty() { Self::Any } else { Self::Latest });
        }
        if let Ok(version) = text.parse() {
            return Ok(Self::Exact(version));
        }
        let parts: Option<Vec<u64>> = text.split('.').map(integer).collect();
        match parts.as_deref() {
            Some([major]) => Ok(Self::Major(*major)),
            Some([major, minor]) => Ok(Self::Minor(*major, *minor)),
            _ => Err(invalid()),
        }
    }
}

impl fmt::Display for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Latest => f.write_str("latest"),
            Self::Any => Ok(()),
            Self::Major(major) => write!(f, "{major}"),
            Self::Minor(major, minor) => write!(f, "{major}.{minor}"),
            Self::Exact(version) => version.fmt(f),
            Self::Range(range) => range.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn best(constraint: &str, versions: &[&str]) -> Option<String> {
        let constraint: Constraint = constraint.parse().unwrap();
        constraint.best(versions.iter().map(|version| version.parse().unwrap())).map(|version| version.to_string())
    }

    #[test]
    fn o02_constraint_selects_highest_version() {
        let versions = ["1.2.3", "1.10.0", "2.0.0-rc.1"];
        for (constraint, expected) in [
            ("1", Some("1.10.0")),
            ("latest", Some("1.10.0")),
            ("2", None),
            ("2.0.0-rc.1", Some("2.0.0-rc.1")),
            ("1.2", Some("1.2.3")),
            ("1.2.3", Some("1.2.3")),
            ("1.2.4", None),
            ("01.02.3", Some("1.2.3")),
            ("", Some("1.10.0")),
            ("^1.2", Some("1.10.0")),
            (">=1.2,<1.10", Some("1.2.3")),
            ("~1.2.1", Some("1.2.3")),
        ] {
            assert_eq!(best(constraint, &versions).as_deref(), expected, "{constraint}");
        }
    }

    #[test]
    fn versions_are_ordered_as_semantic_versions_are() {
        let ordered =
            ["1.0.0-1", "1.0.0-2", "1.0.0-10", "1.0.0-a", "1.0.0-a.1", "1.0.0-b", "1.0.0", "1.0.1", "1.2.0", "1.10.0"];
        for pair in ordered.windows(2) {
            let (lower, higher): (Version, Version) = (pair[0].parse().unwrap(), pair[1].parse().unwrap());
            assert!(lower < higher, "{lower} {higher}");
        }
        assert_eq!("01.2.3-07".parse::<Version>().unwrap().to_string(), "1.2.3-7");
    }

    #[test]
    fn invalid_constraints_and_versions_are_rejected() {
        for text in ["v1", "1.x", "1.2.3.4", "1.2.3+build", "1.", "-1", "1.2.3-", "^x", "99999999999999999999"] {
            let error = text.parse::<Constraint>().unwrap_err();
            assert!(error.to_string().contains("invalid semantic version"), "{text}: {error}");
        }
        let error = "sha256:00".parse::<Constraint>().unwrap_err();
        assert!(matches!(error, VersionError::Digest { .. }), "{error}");
        for text in ["v1.2.3", "1.2", "1.2.3+build", "1.2.3-a_b"] {
            assert!(text.parse::<Version>().is_err(), "{text}");
        }
    }
}
