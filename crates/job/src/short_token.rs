//! Short form of runner tokens for logs and directory names.

/// Returns the part of a token that may be shown: up to nine characters after its prefix.
#[must_use]
pub fn short_token(token: &str) -> String {
    let rest = match token.strip_prefix("glrt-") {
        Some(rest) => without_partition_prefix(rest),
        None => match token.strip_prefix("glrtr-").or_else(|| token.strip_prefix("glcbt-")) {
            Some(rest) => rest,
            None => without_legacy_prefix(without_partition_prefix(token)),
        },
    };
    rest.chars().take(9).collect()
}

fn without_partition_prefix(token: &str) -> &str {
    ["t1_", "t2_", "t3_"].iter().find_map(|prefix| token.strip_prefix(prefix)).unwrap_or(token)
}

/// Removes the prefix `GR` with seven hexadecimal digits.
fn without_legacy_prefix(token: &str) -> &str {
    let digits = |rest: &&str| rest.get(..7).is_some_and(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
    token.strip_prefix("GR").filter(digits).and_then(|rest| rest.get(7..)).unwrap_or(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_token_omits_prefix_and_secret_part() {
        for (token, short) in [
            ("glrt-t1_abcdefghijklm", "abcdefghi"),
            ("glrt-abcdefghijklm", "abcdefghi"),
            ("t3_abcdefghijklm", "abcdefghi"),
            ("glcbt-64_abcdefghijklm", "64_abcdef"),
            ("GR1348941abcdefghijklm", "abcdefghi"),
            ("abc", "abc"),
        ] {
            assert_eq!(short_token(token), short);
        }
    }
}
