//! `[registry/][group/]name[:constraint]` (docs/spec/fleeting.md, section 6.1).

use std::fmt;

use crate::version::{Constraint, VersionError};

/// Bytes of a reference; registries allow less.
const LENGTH_MAX: usize = 512;

/// The parts that a name may leave out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Defaults {
    /// Registry of a name without one.
    pub registry: &'static str,
    /// Group of a name that has neither registry nor group.
    pub group: &'static str,
}

/// A repository at a registry.
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

/// A repository, and a constraint on the version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// The repository.
    pub repository: Repository,
    /// The constraint.
    pub constraint: Constraint,
}

/// Reason why a text is not a valid reference.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// The part before the constraint.
    #[error(
        "{found:?} is not a valid reference: write NAME, GROUP/NAME or REGISTRY/GROUP/NAME, with :VERSION where needed ({why})"
    )]
    Name {
        /// What stands there.
        found: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The constraint.
    #[error("{name}")]
    Constraint {
        /// The part before it.
        name: String,
        /// What is wrong.
        source: VersionError,
    },
}

impl Repository {
    /// Reads `[registry/][group/]name`. The first segment is a registry if it has a dot or a port, or is `localhost`. GitLab's
    /// host of plugins sees a dot only, and cannot install from a registry with a port.
    ///
    /// # Errors
    /// [`ReferenceError::Name`].
    pub fn parse(name: &str, defaults: &Defaults) -> Result<Self, ReferenceError> {
        let bad = |why| ReferenceError::Name { found: name.to_owned(), why };
        if name.len() > LENGTH_MAX {
            return Err(bad("it is too long"));
        }
        let is_registry = |segment: &str| segment == "localhost" || segment.contains(['.', ':', '[']);
        let (registry, path) = match name.split_once('/') {
            None => (defaults.registry, format!("{}/{name}", defaults.group)),
            Some((first, rest)) if is_registry(first) => (first, rest.to_owned()),
            Some(_) => (defaults.registry, name.to_owned()),
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

impl Reference {
    /// Reads `[registry/][group/]name[:constraint]`. Without a constraint it is the highest release.
    ///
    /// # Errors
    /// [`ReferenceError`].
    pub fn parse(text: &str, defaults: &Defaults) -> Result<Self, ReferenceError> {
        let (name, constraint) = match text.split_once('@') {
            Some(parts) => parts,
            None => match text.rfind(':').filter(|at| !text[*at..].contains('/')) {
                Some(at) => (&text[..at], &text[at + 1..]),
                None => (text, "latest"),
            },
        };
        let source = |source| ReferenceError::Constraint { name: name.to_owned(), source };
        let repository = Repository::parse(name, defaults)?;
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

    const DEFAULTS: Defaults = Defaults { registry: "registry.gitlab.com", group: "gitlab-org/fleeting/plugins" };

    fn full(text: &str) -> String {
        Reference::parse(text, &DEFAULTS).unwrap().to_string()
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
    fn a_text_that_names_no_repository_is_an_error() {
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
            let error = Reference::parse(text, &DEFAULTS).unwrap_err();
            assert!(!error.to_string().is_empty(), "{text}");
        }
        let error = Reference::parse("aws@sha256:0123", &DEFAULTS).unwrap_err();
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains("is a digest"), "{source}");
    }
}
