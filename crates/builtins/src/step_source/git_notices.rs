//! Notices about the steps of a Git repository: the file `notices.toml` on its branch `muster-notices`.
//!
//! Notices are on a separate branch, because they apply to commits that already exist.

use muster_steps::remote::{Notice, NoticeKind};
use serde::Deserialize;

pub(super) const BRANCH: &str = "refs/heads/muster-notices";
pub(super) const FILE: &str = "notices.toml";
pub(super) const MAX_FILE_BYTES: usize = 1024 * 1024;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NoticeFile {
    #[serde(default)]
    notice: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// Tag or branch as users of the step write it, or a commit.
    version: String,
    deprecated: Option<String>,
    defective: Option<String>,
}

/// Returns the notices about a step.
///
/// `revision` is the version as the user wrote it, and `commit` its hash.
pub(super) fn parse(text: &str, revision: &str, commit: &str) -> Result<Vec<Notice>, toml::de::Error> {
    let file: NoticeFile = toml::from_str(text)?;
    let applies = |entry: &Entry| entry.version == revision || entry.version == commit;
    let notices = file.notice.into_iter().filter(applies).flat_map(|Entry { deprecated, defective, .. }| {
        let kinds = [(NoticeKind::Deprecated, deprecated), (NoticeKind::Defective, defective)];
        kinds.into_iter().filter_map(|(kind, message)| Some(Notice { kind, message: message? }))
    });
    Ok(notices.filter(|notice| !notice.message.is_empty()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_apply_to_their_tag_or_commit() {
        let text = "[[notice]]\nversion = 'v1'\ndeprecated = 'use v2'\ndefective = 'loses words'\n\
            [[notice]]\nversion = 'abc'\ndefective = 'is slow'\n[[notice]]\nversion = 'v2'\ndeprecated = ''\n";
        let messages = |revision, commit| {
            let notices = parse(text, revision, commit).unwrap();
            notices.iter().map(|notice| format!("{}: {}", notice.kind.name(), notice.message)).collect::<Vec<_>>()
        };
        assert_eq!(messages("v1", "1"), ["deprecated: use v2", "defective: loses words"]);
        assert_eq!(messages("main", "abc"), ["defective: is slow"]);
        assert!(messages("v2", "2").is_empty());
        assert!(parse("", "v1", "1").unwrap().is_empty());
        for invalid in ["[[notice]]\ndeprecated = 'x'\n", "[[notice]]\nversion = 'v1'\nbroken = 'x'\n", "x"] {
            assert!(parse(invalid, "v1", "1").is_err(), "{invalid}");
        }
    }
}
