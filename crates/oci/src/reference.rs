//! References: `[registry/][group/]name[:constraint]` (docs/spec/fleeting.md, section 6.1).

use std::fmt;

use crate::version::{Constraint, VersionError};

/// Maximum length of a repository name in bytes.
const MAX_BYTES: usize = 512;

/// Values for the omitted parts of a reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Defaults {
    /// Registry of a name without a registry.
    pub registry: &'static str,
    /// Group of a name without registry and group.
    pub group: &'static str,
}

/// A repository at a registry.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Repository {
    /// Host name of the registry, with an optional port.
    pub registry: String,
    /// Path at the registry.
    pub path: String,
}

impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.path)
    }
}

/// A repository with a version constraint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// The repository.
    pub repository: Repository,
    /// The version constraint.
    pub constraint: Constraint,
}

/// Reason why a text is not a valid reference.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// The name of the repository is invalid.
    #[error(
        "{found:?} is not a valid reference; write NAME, GROUP/NAME or REGISTRY/GROUP/NAME, optionally with :VERSION ({reason})"
    )]
    Name {
        /// The invalid text.
        found: String,
        /// Problem with the name.
        reason: &'static str,
    },
    /// The version constraint is invalid.
    #[error("{name}: invalid version")]
    Constraint {
        /// Name of the repository.
        name: String,
        /// Problem with the constraint.
        source: VersionError,
    },
}

impl Repository {
    /// Parses `[registry/][group/]name`.
    ///
    /// The first segment is a registry if it contains a dot or a port, or is `localhost`.
    ///
    /// # Errors
    /// [`ReferenceError::Name`].
    pub fn parse(name: &str, defaults: &Defaults) -> Result<Self, ReferenceError> {
        let invalid = |reason| ReferenceError::Name { found: name.to_owned(), reason };
        if name.len() > MAX_BYTES {
            return Err(invalid("too long"));
        }
        let is_registry = |segment: &str| segment == "localhost" || segment.contains(['.', ':', '[']);
        let (registry, path) = match name.split_once('/') {
            None => (defaults.registry, format!("{}/{name}", defaults.group)),
            Some((first, rest)) if is_registry(first) => (first, rest.to_owned()),
            Some(_) => (defaults.registry, name.to_owned()),
        };
        let is_host_char = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
        if registry.is_empty() || !registry.chars().all(is_host_char) || registry.starts_with(['.', '-', ':']) {
            return Err(invalid("the registry is not a valid host name"));
        }
        if let Some((_, port)) = registry.rsplit_once(':')
            && !registry.ends_with(']')
            && port.parse::<u16>().is_err()
        {
            return Err(invalid("the registry's port is not a number"));
        }
        for segment in path.split('/') {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
            if segment.is_empty() || !segment.chars().all(is_plain) || segment.starts_with(['.', '-']) {
                return Err(invalid("segments consist of letters, digits and -._, and do not start with . or -"));
            }
        }
        Ok(Self { registry: registry.to_owned(), path })
    }
}

impl Reference {
    /// Parses `[registry/][group/]name[:constraint]`. The default constraint is `latest`.
    ///
    /// An `@` can replace the colon. A digest is an error.
    pub fn parse(text: &str, defaults: &Defaults) -> Result<Self, ReferenceError> {
        let (name, constraint) = match text.split_once('@') {
            Some(parts) => parts,
            None => text.rsplit_once(':').filter(|(_, tag)| !tag.contains('/')).unwrap_or((text, "latest")),
        };
        let invalid = |source| ReferenceError::Constraint { name: name.to_owned(), source };
        let repository = Repository::parse(name, defaults)?;
        if constraint.is_empty() {
            return Err(invalid(VersionError::Constraint { found: String::new() }));
        }
        Ok(Self { repository, constraint: constraint.parse().map_err(invalid)? })
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
    fn o01_defaults_complete_a_reference() {
        assert_eq!(full("aws"), "registry.gitlab.com/gitlab-org/fleeting/plugins/aws:latest");
        assert_eq!(full("aws:1.2"), "registry.gitlab.com/gitlab-org/fleeting/plugins/aws:1.2");
        assert_eq!(full("g/p"), "registry.gitlab.com/g/p:latest");
        assert_eq!(full("r.example/g/p:1"), "r.example/g/p:1");
        assert_eq!(full("aws:^1.2"), "registry.gitlab.com/gitlab-org/fleeting/plugins/aws:^1.2");
    }

    /// Unlike gitlab-runner, which reads `localhost` as a group, and does not support ports.
    #[test]
    fn registry_may_have_a_port_or_be_localhost() {
        assert_eq!(full("localhost/x"), "localhost/x:latest");
        assert_eq!(full("localhost:5000/g/p:1.2"), "localhost:5000/g/p:1.2");
        assert_eq!(full("127.0.0.1:5000/p"), "127.0.0.1:5000/p:latest");
        assert_eq!(full("[::1]:5000/p"), "[::1]:5000/p:latest");
        assert_eq!(full("r.example/g/v1:2"), "r.example/g/v1:2", "gitlab-runner rejects a repository that ends in /v1");
    }

    #[test]
    fn invalid_references_are_rejected() {
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
