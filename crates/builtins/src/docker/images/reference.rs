//! References of images: `[registry/]path[:tag][@digest]`.
//!
//! References come from jobs and become parts of requests to the engine, so they are validated.

/// Default registry.
pub(super) const HUB: &str = "docker.io";

/// Maximum length of a name in bytes, as in Docker.
const MAX_NAME: usize = 255;
/// Maximum length of a tag in bytes, as in Docker.
const MAX_TAG: usize = 128;
/// Minimum number of hexadecimal digits of a digest.
const MIN_DIGEST: usize = 32;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reference {
    /// Reference as in the job.
    text: String,
    /// Registry and path in lower case, without tag and digest. The default registry is included.
    repository: String,
    /// Whether the reference has a tag or a digest.
    is_exact: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a valid name of an image: {reason}; write [REGISTRY/]NAME[:TAG] or [REGISTRY/]NAME@DIGEST")]
pub(super) struct ReferenceError {
    text: String,
    reason: &'static str,
}

impl Reference {
    /// Parses a reference by Docker's grammar.
    pub(super) fn parse(text: &str) -> Result<Self, ReferenceError> {
        let invalid = |reason| ReferenceError { text: text.to_owned(), reason };
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest)),
            None => (text, None),
        };
        let (name, tag) = match rest.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
            _ => (rest, None),
        };
        if name.is_empty() {
            return Err(invalid("the name is empty"));
        }
        if name.len() > MAX_NAME {
            return Err(invalid("the name has more than 255 characters"));
        }
        if digest.is_some_and(|digest| !is_digest(digest)) {
            return Err(invalid("the digest must be an algorithm, a colon and hexadecimal digits"));
        }
        if tag.is_some_and(|tag| !is_tag(tag)) {
            return Err(invalid(
                "a tag has at most 128 letters, digits and ._-, and begins with a letter, a digit or _",
            ));
        }
        let (registry, path) = match name.split_once('/') {
            Some((first, path)) if is_registry(first) => (first, path),
            _ => (HUB, name),
        };
        if !is_host(registry) {
            return Err(invalid("the registry is not a valid host name"));
        }
        if path.chars().any(|c| c.is_ascii_uppercase()) {
            return Err(invalid("the name must be in lower case"));
        }
        if !path.split('/').all(is_path_component) {
            return Err(invalid(
                "each part of the name must begin and end with a letter or digit, with `.`, `_`, `__` or hyphens in between",
            ));
        }
        let registry = match registry.to_ascii_lowercase().as_str() {
            "index.docker.io" | "registry-1.docker.io" => HUB.to_owned(),
            other => other.to_owned(),
        };
        let repository = format!("{registry}/{path}");
        Ok(Self { text: text.to_owned(), repository, is_exact: tag.is_some() || digest.is_some() })
    }

    /// Returns the reference as in the job.
    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the reference. Adds the tag `latest` if it has neither tag nor digest, because an engine would pull all
    /// tags.
    pub(super) fn for_pull(&self) -> String {
        if self.is_exact { self.text.clone() } else { format!("{}:latest", self.text) }
    }

    /// Returns registry and path, such as `docker.io/group/name`.
    pub(super) fn repository(&self) -> &str {
        &self.repository
    }

    /// Returns the registry, such as `docker.io`.
    pub(super) fn registry(&self) -> &str {
        self.repository.split('/').next().unwrap_or(HUB)
    }
}

/// Returns whether the first part of a name is a registry instead of a path component.
fn is_registry(first: &str) -> bool {
    first == "localhost" || first.contains(['.', ':', '[']) || first.chars().any(|c| c.is_ascii_uppercase())
}

fn is_host(text: &str) -> bool {
    let is_name = |host: &str| {
        let plain = host.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '.');
        plain && host.split('.').all(|label| !label.is_empty() && !label.starts_with('-') && !label.ends_with('-'))
    };
    let is_address = |host: &str| {
        let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        inner.is_some_and(|inner| inner.parse::<std::net::Ipv6Addr>().is_ok())
    };
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !text.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    let is_port = |port: &str| port.parse::<u16>().is_ok() && port.chars().all(|c| c.is_ascii_digit());
    (is_name(host) || is_address(host)) && port.is_none_or(is_port)
}

/// Returns whether a path component is valid: letters and digits, separated by `.`, `_`, `__` or any number of `-`.
fn is_path_component(part: &str) -> bool {
    let is_letter_or_digit = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_separator = |text: &str| matches!(text, "." | "_" | "__") || text.chars().all(|c| c == '-');
    let ends_are_valid = part.starts_with(is_letter_or_digit) && part.ends_with(is_letter_or_digit);
    ends_are_valid && part.split(is_letter_or_digit).filter(|between| !between.is_empty()).all(is_separator)
}

fn is_tag(tag: &str) -> bool {
    let first_is_valid = tag.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    tag.len() <= MAX_TAG && first_is_valid && tag.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}

fn is_digest(digest: &str) -> bool {
    let Some((algorithm, value)) = digest.split_once(':') else { return false };
    let is_plain = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric());
    algorithm.split(['+', '.', '-', '_']).all(is_plain)
        && value.len() >= MIN_DIGEST
        && value.chars().all(|c| c.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn registry_and_path_are_found() {
        let cases = [
            ("busybox", "docker.io/busybox"),
            ("group/app:1.2", "docker.io/group/app"),
            ("index.docker.io/group/app", "docker.io/group/app"),
            ("localhost/app", "localhost/app"),
            ("localhost:5000/app:1", "localhost:5000/app"),
            ("Registry.Example.com/group/sub/app:V1", "registry.example.com/group/sub/app"),
            ("[::1]:5000/app", "[::1]:5000/app"),
            ("r.example/a__b/c--d.e_f", "r.example/a__b/c--d.e_f"),
        ];
        for (text, repository) in cases {
            assert_eq!(Reference::parse(text).unwrap().repository(), repository, "{text}");
        }
    }

    #[test]
    fn latest_is_pulled_if_there_is_neither_tag_nor_digest() {
        let pulled = |text: &str| Reference::parse(text).unwrap().for_pull();
        assert_eq!(pulled("busybox"), "busybox:latest");
        assert_eq!(pulled("localhost:5000/app"), "localhost:5000/app:latest");
        assert_eq!(pulled("busybox:1.36"), "busybox:1.36");
        let by_digest = format!("busybox@{DIGEST}");
        assert_eq!(pulled(&by_digest), by_digest);
        let both = format!("localhost:5000/app:1@{DIGEST}");
        assert_eq!(pulled(&both), both);
    }

    #[test]
    fn id_of_an_image_is_a_reference() {
        let id = Reference::parse(DIGEST).unwrap();
        assert_eq!(id.for_pull(), DIGEST);
        assert!(Reference::parse("0123456789ab").is_ok());
    }

    #[test]
    fn invalid_names_are_rejected_with_reason() {
        let cases = [
            ("", "the name is empty"),
            (":tag", "the name is empty"),
            ("BusyBox", "the name must be in lower case"),
            ("r.example/App", "the name must be in lower case"),
            ("Registry.Example.com/Group", "the name must be in lower case"),
            ("../containers/json?all=1", "the registry is not a valid host name"),
            ("a/../b", "must begin and end with a letter or digit"),
            ("a//b", "must begin and end with a letter or digit"),
            ("a b", "must begin and end with a letter or digit"),
            ("a?b", "must begin and end with a letter or digit"),
            ("a#b", "must begin and end with a letter or digit"),
            ("a%2fb", "must begin and end with a letter or digit"),
            ("a___b", "must begin and end with a letter or digit"),
            ("app:", "a tag has at most"),
            ("app:-1", "a tag has at most"),
            ("app:a b", "a tag has at most"),
            ("app@sha256:12", "the digest must be"),
            ("app@", "the digest must be"),
            ("-r.example/app", "the registry is not a valid host name"),
            ("r.example:port/app", "the registry is not a valid host name"),
            ("r.example:+80/app", "the registry is not a valid host name"),
        ];
        for (text, reason) in cases {
            let error = Reference::parse(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{text:?}: {error}");
        }
        assert!(Reference::parse(&"a".repeat(256)).is_err());
    }

    proptest::proptest! {
        #[test]
        fn parsed_reference_cannot_change_the_path_of_a_request(text in "[ -~]{0,40}") {
            if Reference::parse(&text).is_ok() {
                assert!(!text.contains([' ', '?', '#', '%', '\\']) && !text.split('/').any(|part| matches!(part, "" | "." | "..")));
            }
        }
    }
}
