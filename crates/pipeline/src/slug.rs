//! Slugs: names converted for use in host names, labels and paths (docs/spec/pipeline-yaml.md, section 4.6).

use sha2::{Digest, Sha256};

const MAX_SLUG: usize = 63;

const MAX_ENVIRONMENT_SLUG: usize = 24;

/// Length in bytes to which the name of an environment is truncated before a suffix is added.
const ENVIRONMENT_STEM: usize = 17;

const SUFFIX_LENGTH: usize = 6;

/// Returns the slug of a ref, path or job name, for `CI_COMMIT_REF_SLUG` and similar variables.
///
/// Converts to lower case, replaces every character except `0-9a-z` with `-`, truncates to 63 bytes, and removes `-` at
/// both ends.
#[must_use]
pub fn slug(text: &str) -> String {
    let mut slug = plain(text);
    slug.truncate(MAX_SLUG);
    slug.trim_matches('-').to_owned()
}

/// Returns `CI_ENVIRONMENT_SLUG`: at most 24 bytes, starting with a letter.
///
/// The slug of a name that had to be converted or truncated gets a suffix, so that the slugs of similar names differ. If the
/// only problem is a `-` at the end, the `-` is removed and there is no suffix.
#[must_use]
pub fn environment_slug(name: &str) -> String {
    let mut slug = plain(name);
    if !slug.starts_with(|char: char| char.is_ascii_lowercase()) {
        slug.insert_str(0, "env-");
    }
    let mut last = '\0';
    slug.retain(|char| {
        let repeated = char == '-' && last == '-';
        last = char;
        !repeated
    });
    if slug.len() <= MAX_ENVIRONMENT_SLUG && slug == name {
        return slug.strip_suffix('-').map(str::to_owned).unwrap_or(slug);
    }
    slug.truncate(ENVIRONMENT_STEM);
    if !slug.ends_with('-') {
        slug.push('-');
    }
    slug + &base36_tail(&Sha256::digest(name.as_bytes()))
}

/// Converts to lower case, and replaces every character except `0-9a-z` with `-`. The result is therefore ASCII.
fn plain(text: &str) -> String {
    text.chars()
        .flat_map(char::to_lowercase)
        .map(|char| if char.is_ascii_digit() || char.is_ascii_lowercase() { char } else { '-' })
        .collect()
}

/// Returns the last digits, in base 36, of the big-endian number in `bytes`.
fn base36_tail(bytes: &[u8]) -> String {
    const BASE: u64 = 36;
    let modulus = BASE.pow(6);
    let mut rest = bytes.iter().fold(0u64, |number, byte| (number * 256 + u64::from(*byte)) % modulus);
    let mut digits = [0u8; SUFFIX_LENGTH];
    for digit in digits.iter_mut().rev() {
        *digit = u8::try_from(rest % BASE).unwrap_or_default();
        rest /= BASE;
    }
    digits.iter().map(|digit| char::from(if *digit < 10 { b'0' + digit } else { b'a' + digit - 10 })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slug_has_only_lower_case_letters_digits_and_inner_hyphens() {
        assert_eq!(slug("Feat/A_1"), "feat-a-1");
        assert_eq!(slug("--Über/main--"), "ber-main");
        assert_eq!(slug(&"x".repeat(80)), "x".repeat(63));
        assert_eq!(slug(&format!("{}/y", "x".repeat(62))), "x".repeat(62));
        assert_eq!(slug("///"), "");
    }

    #[test]
    fn environment_slug_has_suffix_only_if_converted_or_truncated() {
        for name in ["production", "staging-1234567890123456", "review-1"] {
            assert_eq!(environment_slug(name), name);
        }
        assert_eq!(environment_slug("foo-"), "foo");
        assert_eq!(environment_slug("staging-12345678-"), "staging-12345678");
        for (name, stem) in [
            ("staging-12345678901234567", "staging-123456789-"),
            ("9-staging-123456789012345", "env-9-staging-123-"),
            ("staging-12345678-01234567", "staging-12345678-"),
            ("PRODUCTION", "production-"),
            ("review/1-foo", "review-1-foo-"),
            ("1/foo", "env-1-foo-"),
            ("foo--bar", "foo-bar-"),
            ("*-foo", "env-foo-"),
            ("", "env-"),
        ] {
            let slug = environment_slug(name);
            assert_eq!(&slug[..slug.len() - SUFFIX_LENGTH], stem, "{name}");
            assert!(slug.len() <= MAX_ENVIRONMENT_SLUG, "{slug}");
        }
        assert_ne!(environment_slug("a/b"), environment_slug("a.b"));
    }

    #[test]
    fn suffix_is_the_end_of_the_number_in_base_36() {
        assert_eq!(base36_tail(&[0xaa; 32]), "q517sa");
        assert_eq!(base36_tail(&[35]), "00000z");
    }
}
