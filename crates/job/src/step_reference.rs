//! Canonical texts of step references, which the rules of a step policy match (docs/spec/steps.md, section 2).

use std::fmt;

/// Names of step files that a reference need not contain.
const DEFAULT_FILES: [&str; 2] = ["func.yml", "step.yml"];

/// Names of the built-in steps that an operator can replace by other steps.
pub const REPLACEABLE_BUILTINS: [&str; 6] =
    ["checkout", "cache/restore", "cache/save", "artifacts/download", "artifacts/upload", "script"];

/// Step that a job calls. Its `Display` text is what a rule of a policy matches:
///
/// ```text
/// script                                        a script of a `run:` list
/// local:./ci/build                              a step in the repository, relative to the project directory
/// local:/opt/steps/build                        a step on the machine
/// git:git.example.com/steps/build@v1            a git reference; `http://` is kept, `https://` is left out
/// git:git.example.com/a/-/steps/lint@v1         the same with a directory, from the top of the repository
/// oci:registry.example.com/steps/build:1.2      an OCI image
/// builtin:cache/save                            a step that is built into Muster
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StepReference {
    /// A shell script, written in the `run:` list itself.
    Script,
    /// A step file of the repository or of the machine.
    Local {
        /// Path, either absolute or relative to the project directory.
        path: String,
    },
    /// A step in a git repository.
    Git {
        /// URL of the repository.
        url: String,
        /// Directory or file in the repository, from its top directory.
        path: String,
        /// Tag, branch or commit.
        revision: String,
    },
    /// A step in an OCI image.
    Oci {
        /// Registry and repository.
        image: String,
        /// Tag, or digest.
        version: String,
        /// Directory or file in the image. Empty means its root directory.
        path: String,
    },
    /// A step that is built into Muster.
    Builtin {
        /// Name without `builtin://`.
        name: String,
    },
}

impl StepReference {
    /// Directory of a repository to which the path of a git reference in the short form is relative.
    pub const GIT_TEXT_DIR: &str = "steps";

    /// Parses a reference in the short form (docs/spec/steps.md, section 2.3), which must not contain expressions.
    /// `None` means that it is invalid.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        if text.starts_with(['.', '/']) {
            return Some(Self::Local { path: text.to_owned() });
        }
        if let Some(name) = text.strip_prefix("builtin://").or_else(|| text.strip_prefix("dist://")) {
            // `script_legacy` is the form in which gitlab-runner sends a script.
            let is_script = matches!(name, "script" | "script_legacy");
            return Some(if is_script { Self::Script } else { Self::Builtin { name: name.to_owned() } });
        }
        if let Some((url, revision)) = text.rsplit_once('@').filter(|(_, revision)| !revision.contains([':', '/'])) {
            let (url, path) = url.split_once("/-/").unwrap_or((url, ""));
            return Some(Self::git(url, &format!("{}/{path}", Self::GIT_TEXT_DIR), revision));
        }
        let (image, path) = text.split_once(' ').unwrap_or((text, ""));
        let (name, version) = match image.rsplit_once('@') {
            // A tag before a digest is only a comment.
            Some((name, digest)) => match name.rsplit_once(':') {
                Some((untagged, tag)) if !tag.contains('/') => (untagged, digest),
                _ => (name, digest),
            },
            None => image.rsplit_once(':')?,
        };
        Some(Self::oci(name, version, path))
    }

    /// Returns the step in a git repository. `path` is relative to the top directory of the repository.
    #[must_use]
    pub fn git(url: &str, path: &str, revision: &str) -> Self {
        Self::Git { url: url.to_owned(), path: step_path(path), revision: revision.to_owned() }
    }

    /// Returns the step in an OCI image. `image` is the registry with the repository, `path` is relative to the image's root.
    #[must_use]
    pub fn oci(image: &str, version: &str, path: &str) -> Self {
        Self::Oci { image: image.to_owned(), version: version.to_owned(), path: step_path(path) }
    }
}

impl fmt::Display for StepReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Script => f.write_str("script"),
            Self::Local { path } => write!(f, "local:{}", local_path(path)),
            Self::Git { url, path, revision } => {
                let (scheme, rest) = match url.split_once("://") {
                    Some((scheme, rest)) if !scheme.eq_ignore_ascii_case("https") => (format!("{scheme}://"), rest),
                    Some((_, rest)) => (String::new(), rest),
                    None => (String::new(), url.as_str()),
                };
                let (host, repository) = rest.split_once('/').unwrap_or((rest, ""));
                // Credentials of the URL are neither matched nor shown.
                let host = host.rsplit_once('@').map_or(host, |(_, host)| host).to_lowercase();
                let repository = repository.trim_end_matches('/').trim_end_matches(".git");
                let path = match path.as_str() {
                    Self::GIT_TEXT_DIR => String::new(),
                    "" => "/-/.".to_owned(),
                    path => format!("/-/{path}"),
                };
                write!(f, "git:{scheme}{host}/{repository}{path}@{revision}")
            }
            Self::Oci { image, version, path } => {
                let separator = if version.contains(':') { '@' } else { ':' };
                let path = if path.is_empty() { String::new() } else { format!(" {path}") };
                write!(f, "oci:{image}{separator}{version}{path}")
            }
            Self::Builtin { name } => write!(f, "builtin:{name}"),
        }
    }
}

/// Returns a path in a repository or image without leading slash, `.`, `..`, and default name of a step file.
fn step_path(path: &str) -> String {
    let path = clean(&format!("/{}", path.trim()));
    let path = path.trim_start_matches('/');
    let (dir, file) = path.rsplit_once('/').unwrap_or(("", path));
    if DEFAULT_FILES.contains(&file) { dir.to_owned() } else { path.to_owned() }
}

/// Returns the path of a local step without default name of its step file.
fn local_path(path: &str) -> String {
    let path = clean(path);
    match path.rsplit_once('/') {
        Some((dir, file)) if DEFAULT_FILES.contains(&file) => clean(if dir.is_empty() { "/" } else { dir }),
        _ => path,
    }
}

/// Removes `.`, `..` and empty parts, as far as possible without the file system. A relative path starts with `./` or
/// `../`, so that a rule for `./**` also matches the directory itself.
fn clean(path: &str) -> String {
    let is_absolute = path.starts_with('/');
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match (part, parts.last()) {
            ("" | ".", _) => {}
            ("..", Some(last)) if *last != ".." => drop(parts.pop()),
            ("..", None) if is_absolute => {}
            (part, _) => parts.push(part),
        }
    }
    let joined = parts.join("/");
    match joined.as_str() {
        _ if is_absolute => format!("/{joined}"),
        outside if parts.last() == Some(&"..") => format!("{outside}/"),
        outside if outside.starts_with("../") => outside.to_owned(),
        inside => format!("./{inside}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_have_one_canonical_text() {
        for (reference, text) in [
            ("./ci/../ci//build/", "local:./ci/build"),
            (".", "local:./"),
            ("../a", "local:../a"),
            ("./ci/../../..", "local:../../"),
            ("./..evil/step", "local:./..evil/step"),
            ("./step.yml", "local:./"),
            ("./..evil/step.yml", "local:./..evil"),
            ("/opt/steps/build/func.yml", "local:/opt/steps/build"),
            ("/step.yml", "local:/"),
            ("../step.yml", "local:../"),
            ("/opt/../srv/x.yml", "local:/srv/x.yml"),
            ("git.Example.com/steps/build@v1", "git:git.example.com/steps/build@v1"),
            ("https://user:pw@git.example.com/steps/build.git@v1", "git:git.example.com/steps/build@v1"),
            ("http://git.example.com/a/-/lint@main", "git:http://git.example.com/a/-/steps/lint@main"),
            ("git.example.com/a/-/lint/../b/step.yml@main", "git:git.example.com/a/-/steps/b@main"),
            (
                "registry.example.com:5000/steps/echo:1 reverse/func.yml",
                "oci:registry.example.com:5000/steps/echo:1 reverse",
            ),
            ("registry.example.com/echo@sha256:ab12", "oci:registry.example.com/echo@sha256:ab12"),
            ("registry.example.com:5000/echo:1@sha256:ab12", "oci:registry.example.com:5000/echo@sha256:ab12"),
            ("builtin://function/oci/build", "builtin:function/oci/build"),
            ("dist://script", "script"),
            ("builtin://script_legacy", "script"),
        ] {
            assert_eq!(StepReference::parse(reference).unwrap().to_string(), text, "{reference}");
        }
        assert_eq!(StepReference::git("git.example.com/a", "", "v1").to_string(), "git:git.example.com/a/-/.@v1");
        assert_eq!(StepReference::parse("nothing"), None);
    }
}
