//! Parses references to remote steps.

use std::fmt;

use muster_job::{StepReference, without_user_info};

use super::Source;
use crate::expression::Dialect;

/// Possible names of the step file. The first existing file is used.
const STEP_FILES: [&str; 2] = ["func.yml", "step.yml"];
const LEGACY_STEP_FILES: [&str; 1] = ["step.yml"];

/// Reference to a remote step as a mapping, which may contain expressions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// `git: {url, rev, dir, file}`
    Git {
        /// URL of the repository.
        url: String,
        /// Revision.
        rev: String,
        /// Directory of the step. Empty means the top directory.
        dir: String,
        /// Name of the step file. Empty means the default names.
        file: String,
    },
    /// `oci: {registry, repository, tag, dir, file}`
    Oci {
        /// Host of the registry.
        registry: String,
        /// Path of the repository.
        repository: String,
        /// Tag or digest. Empty means `latest`.
        tag: String,
        /// Directory of the step. Empty means the top directory.
        dir: String,
        /// Name of the step file. Empty means the default names.
        file: String,
    },
}

impl Location {
    pub(crate) fn is_dynamic(&self) -> bool {
        let texts = match self {
            Self::Git { url, rev, dir, file } => vec![url, rev, dir, file],
            Self::Oci { registry, repository, tag, dir, file } => vec![registry, repository, tag, dir, file],
        };
        texts.into_iter().any(|text| text.contains("${{"))
    }
}

impl fmt::Display for Location {
    /// Omits credentials, directory and file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Git { url, rev, .. } => write!(f, "{}@{rev}", without_user_info(url)),
            Self::Oci { registry, repository, tag, .. } => write!(f, "{registry}/{repository}:{tag}"),
        }
    }
}

/// Step in a Git repository or an OCI registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteStep {
    /// Source that contains the step.
    pub source: Source,
    /// Directory of the step in its source. Empty means the top directory.
    pub dir: String,
    /// Possible names of the step file. The first existing file is used.
    pub names: Vec<String>,
}

/// Reference that cannot be resolved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// There is no bundled step with this name.
    #[error(
        "fetching dist step: fetch: distributed step {0:?} not found; use script, step/oci/build, step/oci/fetch or step/oci/promote"
    )]
    Bundled(String),
    /// There is no built-in step with this name. The second field has all names that lists of steps may use.
    #[error(
        "there is no built-in step {0:?} for lists of steps; use one of {known}, or keep the step in the repository and call it as `./directory`",
        known = .1.join(", ")
    )]
    Builtin(String, &'static [&'static str]),
    /// gitlab-runner sent a whole job as one step.
    #[error(
        "the step `builtin://concrete`, with which gitlab-runner sends a whole job, is not supported; set the variable FF_CONCRETE to false in the job or in the runner's configuration"
    )]
    WholeJob,
    /// The text is neither a local nor a remote reference.
    #[error(
        "expecting url@rev. got {0:?}; write a local step as `./directory`, or a step in a registry as `registry/repository:tag`"
    )]
    NoRevision(String),
    /// The URL of a repository cannot be used.
    #[error("{0:?} is not a valid URL of a step; use https://HOST/PATH")]
    Url(String),
    /// Legacy dialect: the host has no dot.
    #[error("escaping path: malformed module path {0:?}: missing dot in first path element")]
    HostWithoutDot(String),
    /// The revision is `.git`.
    #[error(".git version not allowed; use a tag, a branch or the hash of a commit")]
    GitRevision,
    /// The tag or digest of an image is invalid.
    #[error("{0:?} is not a valid tag or digest; use a tag such as 1.2.3, or sha256: and 64 hexadecimal digits")]
    Tag(String),
    /// The name of an image is invalid.
    #[error("{0:?} is not a valid name of a registry and a repository; use HOST/PATH:TAG")]
    Image(String),
    /// The directory or file is outside of the source.
    #[error("{0:?} is not a valid directory or file of a step; use a path inside its repository or image")]
    Outside(String),
}

pub(crate) fn default_files(dialect: Dialect) -> Vec<String> {
    match dialect {
        Dialect::Legacy => LEGACY_STEP_FILES.map(str::to_owned).to_vec(),
        Dialect::Current => STEP_FILES.map(str::to_owned).to_vec(),
    }
}

pub(crate) fn split(path: &str, dialect: Dialect) -> (&str, Option<&str>) {
    let path = path.trim_end_matches('/');
    let is_file = |name: &str| name.ends_with(".yml") || (dialect == Dialect::Current && name.ends_with(".yaml"));
    match path.rsplit_once('/') {
        Some(("", file)) if is_file(file) => ("/", Some(file)),
        Some((dir, file)) if is_file(file) => (dir, Some(file)),
        _ if path.is_empty() => ("/", None),
        _ => (path, None),
    }
}

/// Like [`split`], for a path in a source. A mere file name has an empty directory.
fn split_inside(path: &str, dialect: Dialect) -> (&str, Option<&str>) {
    match split(path, dialect) {
        ("/", file) => ("", file),
        (file, None) if !file.contains('/') && split(&format!("./{file}"), dialect).1.is_some() => ("", Some(file)),
        other => other,
    }
}

/// Returns whether the text is the only spelling of its host and path.
///
/// Otherwise, a reference could evade the rules of a policy.
fn is_plain(text: &str) -> bool {
    let (host, path) = text.split_once('/').unwrap_or((text, ""));
    let has_other_spelling = [".", ":443", ":80"].iter().any(|end| host.ends_with(end));
    let is_valid = |c: char| c.is_ascii_graphic() && !matches!(c, '\\' | '%' | '?' | '#');
    !host.is_empty()
        && !has_other_spelling
        && text.chars().all(is_valid)
        && path.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

impl RemoteStep {
    /// Parses a reference to a remote step: `url[/-/path]@rev`, or in the current dialect `registry/repository:tag
    /// [path]`.
    ///
    /// # Errors
    /// [`ReferenceError`]. A text without a revision is [`ReferenceError::NoRevision`].
    pub fn parse(text: &str, dialect: Dialect) -> Result<Self, ReferenceError> {
        let text = text.trim();
        let no_revision = || ReferenceError::NoRevision(text.to_owned());
        if dialect == Dialect::Current {
            let mut words = text.split_ascii_whitespace();
            let (image, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            let is_image = match image.rsplit_once('@') {
                Some((_, revision)) => revision.starts_with("sha256:"),
                None => !image.contains("://") && image.rsplit('/').next().is_some_and(|name| name.contains(':')),
            };
            if is_image && words.next().is_none() && image.contains('/') {
                return Self::image(image, path, dialect);
            }
        }
        let (url, revision) = text.rsplit_once('@').ok_or_else(no_revision)?;
        if url.is_empty() || revision.is_empty() {
            return Err(no_revision());
        }
        let (url, path) = url.split_once("/-/").unwrap_or((url, ""));
        let (dir, file) = split_inside(path, dialect);
        let dir = format!("{}/{dir}", StepReference::GIT_TEXT_DIR);
        Self::git(url, revision, &dir, file.unwrap_or_default(), dialect)
    }

    /// Returns the step in the form that a policy uses.
    #[must_use]
    pub fn reference(&self) -> StepReference {
        let file = match self.names.as_slice() {
            [file] => file.as_str(),
            _ => "",
        };
        let path = format!("{}/{file}", self.dir);
        match &self.source {
            Source::Git { url, revision } => StepReference::git(url, &path, revision),
            Source::Oci { registry, repository, tag } => {
                StepReference::oci(&format!("{registry}/{repository}"), tag, &path)
            }
        }
    }

    /// Returns the step at a location with evaluated expressions.
    ///
    /// # Errors
    /// [`ReferenceError`].
    pub fn at(location: &Location, dialect: Dialect) -> Result<Self, ReferenceError> {
        match location {
            Location::Git { url, rev, dir, file } => Self::git(url, rev, dir, file, dialect),
            Location::Oci { registry, repository, tag, dir, file } => {
                Self::oci(registry, repository, tag, dir, file, dialect)
            }
        }
    }

    fn git(url: &str, revision: &str, dir: &str, file: &str, dialect: Dialect) -> Result<Self, ReferenceError> {
        let url = url.trim().trim_end_matches('/');
        let url = if url.contains("://") { url.to_owned() } else { format!("https://{url}") };
        let source = Source::Git { url, revision: revision.trim().to_owned() };
        let name = source.name();
        let rest = name.strip_prefix("https://").or_else(|| name.strip_prefix("http://")).unwrap_or_default();
        let host = rest.split_once('/').map_or("", |(host, _)| host);
        if !is_plain(rest) {
            return Err(ReferenceError::Url(name));
        }
        if dialect == Dialect::Legacy && !host.contains('.') {
            return Err(ReferenceError::HostWithoutDot(rest.to_owned()));
        }
        if source.version() == ".git" {
            return Err(ReferenceError::GitRevision);
        }
        Self::inside(source, dir, file, dialect)
    }

    fn image(image: &str, path: &str, dialect: Dialect) -> Result<Self, ReferenceError> {
        let invalid = || ReferenceError::Image(image.to_owned());
        let (name, tag) = match image.split_once('@') {
            // A tag before a digest has no effect.
            Some((name, digest)) => {
                let end = name.rfind(':').filter(|end| !name.get(*end..).is_some_and(|rest| rest.contains('/')));
                (end.map_or(name, |end| name.get(..end).unwrap_or(name)), digest)
            }
            None => image.rsplit_once(':').ok_or_else(invalid)?,
        };
        let (registry, repository) = name.split_once('/').ok_or_else(invalid)?;
        let (dir, file) = split_inside(path, dialect);
        Self::oci(registry, repository, tag, dir, file.unwrap_or_default(), dialect)
    }

    fn oci(
        registry: &str,
        repository: &str,
        tag: &str,
        dir: &str,
        file: &str,
        dialect: Dialect,
    ) -> Result<Self, ReferenceError> {
        let (registry, repository) = (registry.trim().to_ascii_lowercase(), repository.trim().trim_matches('/'));
        if !is_plain(&format!("{registry}/{repository}")) {
            return Err(ReferenceError::Image(format!("{registry}/{repository}:{tag}")));
        }
        let tag = if tag.trim().is_empty() { "latest" } else { tag.trim() };
        let is_host = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
        let is_path = |segment: &str| {
            let is_path_char = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
            !segment.is_empty() && segment.chars().all(is_path_char) && !segment.starts_with(['.', '-'])
        };
        if registry.is_empty() || !registry.chars().all(is_host) || !repository.split('/').all(is_path) {
            return Err(ReferenceError::Image(format!("{registry}/{repository}")));
        }
        let is_tag_char = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        let is_tag = tag.len() <= 128 && tag.chars().all(is_tag_char) && !tag.starts_with(['.', '-']);
        let digits = tag.strip_prefix("sha256:").unwrap_or_default();
        let is_digest = digits.len() == 64 && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if !is_tag && !is_digest {
            return Err(ReferenceError::Tag(tag.to_owned()));
        }
        let (registry, repository, tag) = (registry, repository.to_owned(), tag.to_owned());
        Self::inside(Source::Oci { registry, repository, tag }, dir, file, dialect)
    }

    fn inside(source: Source, dir: &str, file: &str, dialect: Dialect) -> Result<Self, ReferenceError> {
        let parts: Vec<&str> = dir.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
        if parts.contains(&"..") || file.contains('/') || file == ".." || dir.contains('\0') || file.contains('\0') {
            return Err(ReferenceError::Outside(format!("{dir}/{file}")));
        }
        let names = if file.is_empty() { default_files(dialect) } else { vec![file.to_owned()] };
        Ok(Self { source, dir: parts.join("/"), names })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str, dialect: Dialect) -> String {
        match RemoteStep::parse(text, dialect) {
            Ok(step) => format!("{} {}/{}", step.source, step.dir, step.names.join("|")),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn c089_git_reference_names_a_step_in_the_directory_named_steps() {
        for (text, expected) in [
            ("gitlab.com/g/p@v1", "https://gitlab.com/g/p@v1 steps/step.yml"),
            ("https://gitlab.com/g/p@v1", "https://gitlab.com/g/p@v1 steps/step.yml"),
            ("http://gitlab.com/g/p@v1", "http://gitlab.com/g/p@v1 steps/step.yml"),
            ("gitlab.com/g/p/-/a/b@main", "https://gitlab.com/g/p@main steps/a/b/step.yml"),
            ("gitlab.com/g/p/-/x.yml@main", "https://gitlab.com/g/p@main steps/x.yml"),
            ("gitlab.com/g/p/-/a/x.yml@main", "https://gitlab.com/g/p@main steps/a/x.yml"),
            ("u:t0k@gitlab.com/g/p.git@feature/x", "https://gitlab.com/g/p.git@feature/x steps/step.yml"),
        ] {
            assert_eq!(parsed(text, Dialect::Legacy), expected, "{text}");
            let current = expected.replace("/step.yml", "/func.yml|step.yml");
            assert_eq!(parsed(text, Dialect::Current), current, "{text}");
        }
        let step = RemoteStep::parse("u:t0k@gitlab.com/g/p.git@v1", Dialect::Current).unwrap();
        assert!(matches!(&step.source, Source::Git { url, .. } if url == "https://u:t0k@gitlab.com/g/p.git"));
        assert_eq!(step.source.password(), Some("t0k"));
        assert!(!format!("{step:?}").contains("t0k"));
    }

    #[test]
    fn image_reference_names_a_registry_a_repository_and_a_tag_or_digest() {
        let digest = format!("sha256:{}", "0a".repeat(32));
        for (text, expected) in [
            ("r.example/g/echo:1", "r.example/g/echo:1 /func.yml|step.yml".to_owned()),
            ("R.Example/g/echo:1", "r.example/g/echo:1 /func.yml|step.yml".to_owned()),
            ("127.0.0.1:5000/echo:1 reverse/func.yml", "127.0.0.1:5000/echo:1 reverse/func.yml".to_owned()),
            ("r.example/echo:1 a/b", "r.example/echo:1 a/b/func.yml|step.yml".to_owned()),
            ("r.example/echo:1 x.yml", "r.example/echo:1 /x.yml".to_owned()),
            ("r.example/echo:", "r.example/echo:latest /func.yml|step.yml".to_owned()),
            (&format!("r.example/echo@{digest}"), format!("r.example/echo@{digest} /func.yml|step.yml")),
            (&format!("r.example:1/echo:1@{digest}"), format!("r.example:1/echo@{digest} /func.yml|step.yml")),
        ] {
            assert_eq!(parsed(text, Dialect::Current), expected, "{text}");
        }
    }

    #[test]
    fn invalid_references_are_rejected_with_a_remedy() {
        for (text, part) in [
            ("numdef", "expecting url@rev. got \"numdef\""),
            ("@v1", "expecting url@rev"),
            ("ssh://gitlab.com/g/p@v1", "use https://HOST/PATH"),
            ("gitlab.com@v1", "use https://HOST/PATH"),
            // Other spellings of a URL would not match the rules of a policy.
            ("gitlab.com/steps/../evil@v1", "use https://HOST/PATH"),
            ("gitlab.com/steps/%2e%2e/evil@v1", "use https://HOST/PATH"),
            ("gitlab.com//evil@v1", "use https://HOST/PATH"),
            ("gitlab.com\\evil/x@v1", "use https://HOST/PATH"),
            ("gitlab.com:443/g/p@v1", "use https://HOST/PATH"),
            ("gitlab.com./g/p@v1", "use https://HOST/PATH"),
            ("gitlab.com/g/p@.git", ".git version not allowed"),
            ("gitlab.com/g/p/-/../x@v1", "use a path inside"),
            ("r.example/../echo:1", "use HOST/PATH:TAG"),
            ("r.example/echo:1 ../x", "use a path inside"),
            ("r.example/echo@sha256:12", "is not a valid tag or digest"),
        ] {
            let found = parsed(text, Dialect::Current);
            assert!(found.contains(part), "{text}: {found}");
        }
        assert!(parsed("localhost/g/p@v1", Dialect::Legacy).contains("malformed module path \"localhost/g/p\""));
        assert!(parsed("r.example/echo:1", Dialect::Legacy).contains("expecting url@rev"));
    }

    #[test]
    fn fuzz_references() {
        let samples: [&[u8]; 3] = [
            b"gitlab-ci-token:t0ken@gitlab.com/g/p/-/a/x.yml@v1",
            b"r.example:5000/g/echo:1.0.0@sha256:0a a/b/func.yml",
            b"https://gitlab.com/g/p@feature/x",
        ];
        let words = ["@", "/-/", "sha256:", "://", "..", ".yml", ":", " ", "/"];
        muster_fuzz::fuzz("references of steps", muster_fuzz::Corpus { samples: &samples, words: &words }, |input| {
            let text = String::from_utf8_lossy(input);
            for dialect in [Dialect::Current, Dialect::Legacy] {
                if let Ok(step) = RemoteStep::parse(&text, dialect) {
                    assert!(!step.dir.split('/').any(|part| part == ".."), "{text}");
                    assert!(step.names.iter().all(|name| !name.contains('/')), "{text}");
                }
            }
        });
    }
}
