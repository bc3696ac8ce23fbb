//! Comments that describe the job below them: `# @Description Builds the image`.

use std::collections::BTreeMap;

use crate::node::Map;

/// The descriptions of the top-level keys of `root`, read from the comment lines directly above each in `text`.
pub(crate) fn descriptions(text: &str, root: &Map) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    if !text.contains("@Description") {
        return found;
    }
    let lines: Vec<&str> = text.lines().collect();
    let mut last_line = 0;
    for (name, entry) in root.iter() {
        // Of several keys on one line the comment describes the first.
        if std::mem::replace(&mut last_line, entry.key_span.line) == entry.key_span.line {
            continue;
        }
        let above = lines.get(..(entry.key_span.line as usize).saturating_sub(1)).unwrap_or_default();
        let comments = above.iter().rev().map_while(|line| line.trim_start().strip_prefix('#'));
        for comment in comments {
            if let Some(description) = comment.trim_start().strip_prefix("@Description") {
                found.insert(name.to_string(), description.trim().to_owned());
                break;
            }
        }
    }
    found
}
