//! Comments that describe a job, such as `# @Description Builds the image`.

use std::collections::BTreeMap;

use crate::node::Map;

/// Returns the descriptions of the keys of `root`, by key. A description is in the comment lines directly above its
/// key.
pub(crate) fn descriptions(text: &str, root: &Map) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    if !text.contains("@Description") {
        return found;
    }
    let lines: Vec<&str> = text.lines().collect();
    let mut last_line = 0;
    for (name, entry) in root.iter() {
        // If several keys are on one line, the comment describes the first.
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
