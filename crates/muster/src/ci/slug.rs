//! Names made fit for URLs and folders (pipeline-yaml 4.6).

/// GitLab's slug of a ref, path or job: lower case, all but `0-9a-z` as `-`, at most 63 bytes, no `-` at the ends.
pub(super) fn slug(text: &str) -> String {
    let lower = text.to_lowercase();
    let mapped: String = lower.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let cut = mapped.get(..63).unwrap_or(&mapped);
    cut.trim_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slugs_are_gitlabs() {
        assert_eq!(slug("Feature/ÄB_c"), "feature--b-c");
        assert_eq!(slug("-x-"), "x");
        assert_eq!(slug(&format!("{}-z", "a".repeat(62))), "a".repeat(62));
    }
}
