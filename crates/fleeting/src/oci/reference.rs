//! `[registry/][group/]name[:constraint]` (fleeting.md 6.1).

use std::fmt;
use std::str::FromStr;

use super::version::{Constraint, VersionError};

/// Where a plugin without a registry comes from.
pub const DEFAULT_REGISTRY: &str = "registry.gitlab.com";
/// Where a plugin without a group comes from.
const DEFAULT_GROUP: &str = "gitlab-org/fleeting/plugins";
/// Bytes of a reference; registries allow less.
const LENGTH_MAX: usize = 512;

/// A repository of plugins at a registry.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Repository {
    /// Host, with its port where it has one.
    pub registry: String,
    /// Path at the registry.
    pub path: String,
}

impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.path)
    }
}

/// A plugin, and which versions of it will do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// Which plugin.
    pub repository: Repository,
    /// Which versions.
    pub constraint: Constraint,
}

/// A text that names no plugin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// The part before the constraint.
    #[error(
        "{found:?} names no plugin: write NAME, GROUP/NAME or REGISTRY/GROUP/NAME, with :VERSION where needed ({why})"
    )]
    Name {
        /// What stands there.
        found: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The constraint.
    #[error("plugin {name}")]
    Constraint {
        /// The part before it.
        name: String,
        /// What is wrong.
        source: VersionError,
    },
}

impl FromStr for Repository {
    type Err = ReferenceError;

    /// The first segment is a registry where it has a dot or a port, or is `localhost`. The Go host sees a dot only, and
    /// cannot install from a registry with a port.
    fn from_str(name: &str) -> Result<Self, ReferenceError> {
        let bad = |why| ReferenceError::Name { found: name.to_owned(), why };
        if name.len() > LENGTH_MAX {
            return Err(bad("it is too long"));
        }
        let is_registry = |segment: &str| segment == "localhost" || segment.contains(['.', ':', '[']);
        let (registry, path) = match name.split_once('/') {
            None => (DEFAULT_REGISTRY, format!("{DEFAULT_GROUP}/{name}")),
            Some((first, rest)) if is_registry(first) => (first, rest.to_owned()),
            Some(_) => (DEFAULT_REGISTRY, name.to_owned()),
        };
        let host_part = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
        if registry.is_empty() || !registry.chars().all(host_part) || registry.starts_with(['.', '-', ':']) {
            return Err(bad("the registry is no host"));
        }
        if let Some((_, port)) = registry.rsplit_once(':')
            && !registry.ends_with(']')
            && port.parse::<u16>().is_err()
        {
            return Err(bad("the registry's port is no number"));
        }
        for segment in path.split('/') {
            let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
            if segment.is_empty() || !segment.chars().all(plain) || segment.starts_with(['.', '-']) {
                return Err(bad("between slashes stand letters, digits and -._, and neither . nor - first"));
            }
        }
        Ok(Self { registry: registry.to_owned(), path })
    }
}

impl FromStr for Reference {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        let (name, constraint) = match text.split_once('@') {
            Some(parts) => parts,
            None => match text.rfind(':').filter(|at| !text[*at..].contains('/')) {
                Some(at) => (&text[..at], &text[at + 1..]),
                None => (text, "latest"),
            },
        };
        let source = |source| ReferenceError::Constraint { name: name.to_owned(), source };
        let repository = name.parse()?;
        if constraint.is_empty() {
            return Err(source(VersionError::Constraint { found: String::new() }));
        }
        Ok(Self { repository, constraint: constraint.parse().map_err(source)? })
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.repository, self.constraint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full(text: &str) -> String {
        text.parse::<Reference>().unwrap().to_string()
    }

    #[test]
    fn o01_what_a_reference_leaves_away_is_added() {
        assert_eq!(full("aws"), "registry.gitlab.com/gitlab-org/fleeting/plugins/aws:latest");
        assert_eq!(full("aws:1.2"), "registry.gitlab.com/gitlab-org/fleeting/plugins/aws:1.2");
        assert_eq!(full("g/p"), "registry.gitlab.com/g/p:latest");
        assert_eq!(full("r.example/g/p:1"), "r.example/g/p:1");
        assert_eq!(full("aws:^1.2"), "registry.gitlab.com/gitlab-org/fleeting/plugins/aws:^1.2");
    }

    /// Go: `localhost/x` becomes `registry.gitlab.com/localhost/x`, and a registry with a port cannot be used.
    #[test]
    fn peers_defect_1_a_registry_may_have_a_port_and_be_localhost() {
        assert_eq!(full("localhost/x"), "localhost/x:latest");
        assert_eq!(full("localhost:5000/g/p:1.2"), "localhost:5000/g/p:1.2");
        assert_eq!(full("127.0.0.1:5000/p"), "127.0.0.1:5000/p:latest");
        assert_eq!(full("[::1]:5000/p"), "[::1]:5000/p:latest");
        assert_eq!(full("r.example/g/v1:2"), "r.example/g/v1:2", "Go refuses a repository that ends in /v1");
    }

    #[test]
    fn what_names_no_plugin_is_told() {
        for text in [
            "",
            "a//b",
            "../x",
            "a/../b",
            "r.example/",
            "r.example/../x",
            "a b",
            "r.example:x/p",
            "/x",
            "aws:",
            "aws:v1",
            "a/-b",
        ] {
            let error = text.parse::<Reference>().unwrap_err();
            assert!(!error.to_string().is_empty(), "{text}");
        }
        let error = "aws@sha256:0123".parse::<Reference>().unwrap_err();
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains("is a digest"), "{source}");
    }
}
