//! Directory names of installed plugins: `<directory>/<registry>/<path>/<version>/plugin`.
//! See docs/spec/fleeting.md, section 6.5.

use std::path::{Path, PathBuf};

/// Returns the directory of all installed versions of a plugin.
/// `path` is the path of the repository within the registry.
pub(crate) fn repository_directory(plugins: &Path, registry: &str, path: &str) -> PathBuf {
    plugins.join(escape(registry)).join(escape(path))
}

/// Escapes a name.
///
/// An upper-case letter becomes `!` and its lower-case letter, so that names differ on case-insensitive file systems, too. A colon
/// becomes `!`, because `:` separates paths in environment variables. In a name that starts with an IPv6 address in brackets, an upper-case
/// letter becomes only its lower-case letter.
pub(crate) fn escape(text: &str) -> String {
    text.chars().fold(String::new(), |mut escaped, letter| {
        if letter == ':' {
            escaped.push('!');
            return escaped;
        }
        if letter.is_ascii_uppercase() && !text.starts_with('[') {
            escaped.push('!');
        }
        escaped.push(letter.to_ascii_lowercase());
        escaped
    })
}

/// Reverses [`escape`]. Returns `None` for a text with an upper-case letter, a colon or an invalid `!`.
///
/// In an address in brackets, `!` is always a colon, because [`escape`] writes no `!` for letters of such an address.
/// Elsewhere, `!` is a colon only before a digit, such as the first digit of a port.
#[cfg(feature = "install")]
pub(crate) fn unescape(escaped: &str) -> Option<String> {
    let mut text = String::new();
    let mut letters = escaped.chars().peekable();
    let mut in_address = false;
    while let Some(letter) = letters.next() {
        in_address = (in_address || letter == '[') && letter != ']';
        match letter {
            '!' if in_address => text.push(':'),
            '!' => match letters.peek().copied() {
                Some(next) if next.is_ascii_lowercase() => {
                    text.push(next.to_ascii_uppercase());
                    letters.next();
                }
                Some(next) if next.is_ascii_digit() => text.push(':'),
                _ => return None,
            },
            _ if letter.is_ascii_uppercase() || letter == ':' => return None,
            _ => text.push(letter),
        }
    }
    Some(text)
}

#[cfg(all(test, feature = "install"))]
mod tests {
    use super::*;

    #[test]
    fn escaped_names_can_be_unescaped() {
        for (text, escaped) in [
            ("registry.gitlab.com", "registry.gitlab.com"),
            ("Group/P", "!group/!p"),
            ("localhost:5000", "localhost!5000"),
            ("[::1]:5000", "[!!1]!5000"),
            ("[fe80::a]", "[fe80!!a]"),
        ] {
            assert_eq!(escape(text), escaped);
            assert_eq!(unescape(escaped).as_deref(), Some(text));
        }
        assert_eq!(unescape("a!"), None);
        assert_eq!(unescape("A"), None);
    }
}
