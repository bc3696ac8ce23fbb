//! `cache`.

use crate::config::keywords;
use crate::config::parsing::{Fields, Path, Problems, flat_list, text, text_list};
use crate::node::{Node, Span, Value};

const MAX_CACHES: usize = 4;
const MAX_KEY_FILES: usize = 2;
const MAX_FALLBACK_KEYS: usize = 5;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CacheEntry {
    pub(crate) key: CacheKey,
    pub(crate) paths: Vec<String>,
    pub(crate) untracked: bool,
    pub(crate) when: String,
    pub(crate) policy: String,
    pub(crate) unprotect: bool,
    pub(crate) fallback_keys: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CacheKey {
    Text(String),
    /// The key depends on the last commits of the files if `by_commit` is true, and otherwise on their content.
    Files {
        files: Vec<String>,
        by_commit: bool,
        prefix: Option<String>,
    },
}

/// Parses the caches of a job. Nested lists are flattened, and nulls are ignored. A cache with neither `paths` nor
/// `untracked` is ignored.
pub(crate) fn caches(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<Vec<CacheEntry>> {
    let entries: Vec<CacheEntry> = match &node.value {
        Value::List(_) => {
            let list: Vec<&Node> = flat_list(node, at, problems)?.into_iter().filter(|item| !item.is_null()).collect();
            if list.len() > MAX_CACHES {
                problems.report(
                    node.span,
                    at,
                    format_args!("caches config is too long (maximum is {MAX_CACHES}, but it has {})", list.len()),
                );
            }
            list.into_iter().filter_map(|item| cache_entry(item, at, problems)).collect()
        }
        _ => cache_entry(node, at, problems).into_iter().collect(),
    };
    Some(entries.into_iter().filter(|entry| entry.untracked || !entry.paths.is_empty()).collect())
}

fn cache_entry(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<CacheEntry> {
    let fields = Fields::parse(node, at, keywords::CACHE, problems)?;
    let key = fields
        .get("key")
        .map_or_else(|| Some(CacheKey::Text("default".to_owned())), |node| key(node, at.key("key"), problems));
    let policy = fields.text("policy", problems).unwrap_or_else(|| "pull-push".to_owned());
    if !policy.contains('$') && !["pull-push", "pull", "push"].contains(&policy.as_str()) {
        let message = "should be one of: pull-push, push, pull, or a variable";
        problems.report(fields.key_span("policy"), at.key("policy"), message);
    }
    let fallback_keys = fields.text_list("fallback_keys", problems);
    let fallback_span = fields.key_span("fallback_keys");
    if fallback_keys.len() > MAX_FALLBACK_KEYS {
        let message = format!("has too many entries (maximum {MAX_FALLBACK_KEYS})");
        problems.report(fallback_span, at.key("fallback_keys"), message);
    }
    for key in &fallback_keys {
        check_key(key, fallback_span, at.key("fallback_keys"), problems);
    }
    Some(CacheEntry {
        key: key?,
        paths: fields.text_list("paths", problems),
        untracked: fields.flag("untracked", false, problems),
        when: fields
            .choice("when", &["on_success", "on_failure", "always"], problems)
            .unwrap_or_else(|| "on_success".to_owned()),
        policy,
        unprotect: fields.flag("unprotect", false, problems),
        fallback_keys,
    })
}

fn key(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<CacheKey> {
    if node.as_map().is_none() {
        let text = text(node, at, problems)?;
        return check_key(&text, node.span, at, problems).then_some(CacheKey::Text(text));
    }
    let fields = Fields::parse(node, at, &["files", "files_commits", "prefix"], problems)?;
    let (name, list, by_commit) = match (fields.get("files"), fields.get("files_commits")) {
        (Some(files), None) => ("files", files, false),
        (None, Some(files)) => ("files_commits", files, true),
        (Some(_), Some(_)) => {
            let message = "config uses both `files` and `files_commits`, which are mutually exclusive";
            problems.report(node.span, at, message);
            return None;
        }
        (None, None) => {
            problems.report(node.span, at, "config should have the key `files` or `files_commits`");
            return None;
        }
    };
    let at_list = at.key(name);
    let files = text_list(list, at_list, problems)?;
    if files.is_empty() || files.len() > MAX_KEY_FILES {
        let message = format!("config should have 1 to {MAX_KEY_FILES} entries, but it has {}", files.len());
        problems.report(list.span, at_list, message);
        return None;
    }
    let prefix = fields.text("prefix", problems);
    if let Some(prefix) = &prefix {
        check_key(prefix, fields.key_span("prefix"), at.key("prefix"), problems);
    }
    Some(CacheKey::Files { files, by_commit, prefix })
}

/// Reports a key that contains `/` or consists of dots only. Returns whether the key is valid.
fn check_key(key: &str, span: Span, at: Path<'_>, problems: &mut Problems) -> bool {
    let upper = key.to_ascii_uppercase();
    if key.contains('/') || upper.contains("%2F") {
        problems.report(span, at, "cannot contain the \"/\" character");
        return false;
    }
    if !key.is_empty() && upper.replace("%2E", ".").chars().all(|c| c == '.') {
        problems.report(span, at, "cannot be only \".\" or \"%2E\" characters");
        return false;
    }
    true
}
