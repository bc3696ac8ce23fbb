//! Selects the entry of an index for this platform (docs/spec/fleeting.md, section 6.4).

use std::fmt;

use muster_job::{go_architecture, go_os};

use crate::manifest::{Descriptor, Platform};

/// Platform that content is selected for, named as in Go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPlatform {
    /// Operating system, such as `linux` or `darwin`.
    pub os: String,
    /// Architecture, such as `amd64`, `arm64` or `arm`.
    pub architecture: String,
    /// Highest supported version of 32-bit ARM, 5 to 8. 0 if the architecture does not run ARM programs.
    pub arm: u8,
}

impl HostPlatform {
    /// Returns the platform of this program.
    #[must_use]
    pub fn this() -> Self {
        let architecture = go_architecture();
        let arm = match architecture {
            "arm64" => 8,
            "arm" => 7,
            _ => 0,
        };
        Self { os: go_os().to_owned(), architecture: architecture.to_owned(), arm }
    }

    /// Returns how well an entry matches. 0 is best. `None` means that it does not run on this platform.
    fn rank(&self, entry: &Platform) -> Option<u8> {
        if entry.os != self.os {
            return None;
        }
        let variant = entry.variant.as_str();
        let arm_version = || match variant {
            "" => Some(7),
            _ => variant.trim_start_matches('v').parse::<u8>().ok(),
        };
        match (self.architecture.as_str(), entry.architecture.as_str()) {
            // Variants from v2 on need newer processors.
            ("amd64", "amd64") if matches!(variant, "" | "v1") => Some(0),
            ("amd64", "386") => Some(1),
            ("arm64", "arm64") if matches!(variant, "" | "v8" | "8") => Some(0),
            ("arm64" | "arm", "arm") => {
                arm_version().filter(|version| *version <= self.arm).map(|version| 1 + self.arm - version)
            }
            ("amd64" | "arm64", _) => None,
            (own, other) => (own == other).then_some(0),
        }
    }

    /// Returns the entry that matches best, or the first of several equal ones.
    #[must_use]
    pub fn select<'a>(&self, entries: &'a [Descriptor]) -> Option<&'a Descriptor> {
        let ranked = entries.iter().filter_map(|entry| Some((self.rank(entry.platform.as_ref()?)?, entry)));
        ranked.min_by_key(|(rank, _)| *rank).map(|(_, entry)| entry)
    }
}

impl fmt::Display for HostPlatform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(os: &str, architecture: &str, variant: &str) -> Descriptor {
        let platform = Platform {
            os: os.to_owned(),
            architecture: architecture.to_owned(),
            variant: variant.to_owned(),
            ..Platform::default()
        };
        Descriptor { platform: Some(platform), ..Descriptor::default() }
    }

    fn selected(architecture: &str, arm: u8, entries: &[Descriptor]) -> Option<String> {
        let host = HostPlatform { os: "linux".to_owned(), architecture: architecture.to_owned(), arm };
        host.select(entries).and_then(|entry| entry.platform.as_ref()).map(ToString::to_string)
    }

    #[test]
    fn o03_arm64_falls_back_to_arm() {
        let entries = [entry("linux", "amd64", ""), entry("linux", "arm", "v6"), entry("linux", "arm", "v7")];
        assert_eq!(selected("arm64", 8, &entries).as_deref(), Some("linux/arm/v7"));
        assert_eq!(selected("arm", 6, &entries).as_deref(), Some("linux/arm/v6"));
        assert_eq!(selected("arm", 5, &entries), None);
    }

    #[test]
    fn own_architecture_is_preferred() {
        let entries = [
            entry("windows", "amd64", ""),
            entry("linux", "386", ""),
            entry("linux", "amd64", "v3"),
            entry("linux", "amd64", ""),
            entry("linux", "arm64", "v8"),
        ];
        assert_eq!(selected("amd64", 0, &entries).as_deref(), Some("linux/amd64"));
        assert_eq!(selected("amd64", 0, &entries[..3]).as_deref(), Some("linux/386"));
        assert_eq!(selected("arm64", 8, &entries).as_deref(), Some("linux/arm64/v8"));
        assert_eq!(selected("riscv64", 0, &entries), None);
        assert_eq!(selected("386", 0, &entries).as_deref(), Some("linux/386"));
    }
}
