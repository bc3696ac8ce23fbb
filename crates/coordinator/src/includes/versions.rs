//! Resolves the version of a component to a tag.

/// Parses `1.2.3` or `v1.2.3`, and ignores build metadata (`+...`). `None` for pre-releases and other tags.
pub(super) fn parse(text: &str) -> Option<(u64, u64, u64)> {
    let text = text.strip_prefix('v').unwrap_or(text);
    let text = text.split_once('+').map_or(text, |(text, _)| text);
    let mut parts = text.split('.').map(|part| part.parse().ok());
    let version = (parts.next()??, parts.next()??, parts.next()??);
    parts.next().is_none().then_some(version)
}

/// Returns the tag of the newest version that matches `requested`, which is `~latest`, `1` or `1.2`.
pub(super) fn newest<'a>(tags: impl Iterator<Item = &'a str>, requested: &str) -> Option<&'a str> {
    let parts: Option<Vec<u64>> = match requested {
        "~latest" => Some(Vec::new()),
        _ => requested.split('.').map(|part| part.parse().ok()).collect(),
    };
    let parts = parts.filter(|parts| parts.len() < 3)?;
    tags.filter_map(|tag| parse(tag).map(|version| (version, tag)))
        .filter(|((major, minor, patch), _)| [*major, *minor, *patch].starts_with(&parts))
        .max()
        .map(|(_, tag)| tag)
}
