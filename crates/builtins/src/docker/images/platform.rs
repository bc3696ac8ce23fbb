//! Platforms of images: `os[/architecture[/variant]]`.

use muster_job::go_architecture_of;

/// Operating systems for which images exist.
const SYSTEMS: [&str; 3] = ["linux", "windows", "freebsd"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Platform {
    os: String,
    /// Architecture as in Go, such as `amd64`. Empty means the engine's.
    architecture: String,
    /// Variant of the architecture, such as `v8`. Empty means the default.
    variant: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a valid platform; write OS/ARCHITECTURE, such as linux/arm64")]
pub(super) struct PlatformError(String);

impl Platform {
    /// Parses a platform. The default operating system is Linux.
    pub(super) fn parse(text: &str) -> Result<Self, PlatformError> {
        let is_plain = |part: &&str| {
            !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
        };
        let parts: Vec<&str> = text.split('/').filter(is_plain).collect();
        let (os, architecture, variant) = match parts.as_slice() {
            _ if parts.len() != text.split('/').count() => return Err(PlatformError(text.to_owned())),
            [os] if SYSTEMS.contains(&os.to_ascii_lowercase().as_str()) => (*os, "", ""),
            [architecture] => ("linux", *architecture, ""),
            [os, architecture] => (*os, *architecture, ""),
            [os, architecture, variant] => (*os, *architecture, *variant),
            _ => return Err(PlatformError(text.to_owned())),
        };
        let architecture = architecture.to_ascii_lowercase();
        let architecture = match architecture.as_str() {
            "x86-64" => "amd64".to_owned(),
            name => go_architecture_of(name).to_owned(),
        };
        Ok(Self { os: os.to_ascii_lowercase(), architecture, variant: variant.to_ascii_lowercase() })
    }

    pub(super) fn has_known_os(&self) -> bool {
        SYSTEMS.contains(&self.os.as_str())
    }

    /// Returns whether an image runs on this platform.
    ///
    /// An empty value of the image is unknown, and matches. So does a lower variant: `arm/v7` can run `arm/v6`.
    pub(super) fn matches(&self, os: &str, architecture: &str, variant: &str) -> bool {
        let matches = |own: &str, image: &str| own.is_empty() || image.is_empty() || own == image;
        let number = |variant: &str| variant.trim_start_matches('v').parse::<u32>().ok();
        let matches_variant = match (number(&self.variant), number(variant)) {
            (Some(own), Some(image)) => image <= own,
            _ => matches(&self.variant, variant),
        };
        matches(&self.os, os) && matches(&self.architecture, architecture) && matches_variant
    }
}

impl std::fmt::Display for Platform {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.os)?;
        for part in [&self.architecture, &self.variant].into_iter().filter(|part| !part.is_empty()) {
            write!(f, "/{part}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn platform_without_operating_system_is_of_linux() {
        let cases = [
            ("arm64", "linux/arm64"),
            ("aarch64", "linux/arm64"),
            ("linux", "linux"),
            ("Linux/AMD64", "linux/amd64"),
            ("linux/x86_64", "linux/amd64"),
            ("linux/arm/v7", "linux/arm/v7"),
            ("windows/amd64", "windows/amd64"),
        ];
        for (text, expected) in cases {
            let platform = Platform::parse(text).unwrap();
            assert_eq!(platform.to_string(), expected);
            assert!(platform.has_known_os(), "{text}");
        }
        assert!(!Platform::parse("solaris/amd64").unwrap().has_known_os());
    }

    #[test]
    fn invalid_platforms_are_rejected() {
        for text in ["", "/", "linux/", "linux/amd64/v1/x", "linux amd64", "linux/amd64&x=1"] {
            assert!(Platform::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn image_matches_if_it_runs_on_the_platform() {
        let platform = Platform::parse("linux/arm64").unwrap();
        assert!(platform.matches("linux", "arm64", "v8"));
        assert!(platform.matches("", "", ""));
        assert!(!platform.matches("linux", "amd64", ""));
        assert!(!Platform::parse("linux/arm/v6").unwrap().matches("linux", "arm", "v7"));
        assert!(Platform::parse("linux/arm/v7").unwrap().matches("linux", "arm", "v6"));
    }
}
