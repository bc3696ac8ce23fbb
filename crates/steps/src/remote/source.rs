//! Sources of steps.

use std::fmt;

use muster_job::without_user_info;

/// Content that a server has under a name and a version. May contain several steps.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Source {
    /// Commit of a Git repository.
    Git {
        /// URL, `http` or `https`. It may contain a user and a password.
        url: String,
        /// Tag, branch or commit hash, which may be shortened to 8 digits.
        revision: String,
    },
    /// Image in an OCI registry.
    Oci {
        /// Host of the registry, with its port.
        registry: String,
        /// Path of the repository.
        repository: String,
        /// Tag, or digest that starts with `sha256:`.
        tag: String,
    },
}

impl Source {
    /// Returns the name of the repository, without credentials.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Git { url, .. } => without_user_info(url),
            Self::Oci { registry, repository, .. } => format!("{registry}/{repository}"),
        }
    }

    /// Returns the revision or tag.
    #[must_use]
    pub fn version(&self) -> &str {
        match self {
            Self::Git { revision, .. } => revision,
            Self::Oci { tag, .. } => tag,
        }
    }

    /// Returns the password in the URL of the source, which must not appear in messages.
    pub(crate) fn password(&self) -> Option<&str> {
        let Self::Git { url, .. } = self else { return None };
        let authority = url.split_once("://")?.1.split('/').next()?;
        authority.rsplit_once('@')?.0.split_once(':').map(|(_, password)| password)
    }
}

impl fmt::Display for Source {
    /// Writes the source without credentials: `https://host/path@revision`, `registry/repository:tag` or
    /// `registry/repository@digest`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_digest = matches!(self, Self::Oci { tag, .. } if tag.contains(':'));
        let separator = if is_digest || matches!(self, Self::Git { .. }) { '@' } else { ':' };
        write!(f, "{}{separator}{}", self.name(), self.version())
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
