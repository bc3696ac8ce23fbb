//! `default`, the deprecated global keywords with the same meaning, and `inherit` (docs/spec/pipeline-yaml.md, section
//! 2.6).
//!
//! A default applies to each job that does not set the keyword. Values are not merged. Invalid defaults are reported here, and not used.

use std::collections::HashMap;
use std::sync::Arc;

use crate::config::keywords;
use crate::config::parsing::{Fields, Path, Problems, choice};
use crate::config::{artifacts, behavior, cache, extras, image, parsing, scripts, size_budget};
use crate::node::{Entry, Map, Node, Span, Value};

#[derive(Debug, Default)]
pub(crate) struct Defaults {
    values: Map,
    /// Size of each default in bytes.
    bytes: HashMap<Arc<str>, usize>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Inherit {
    pub(crate) default: Filter,
    pub(crate) variables: Filter,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Filter {
    #[default]
    All,
    None,
    Only(Vec<String>),
}

impl Filter {
    pub(crate) fn selects(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::Only(names) => names.iter().any(|known| known == name),
        }
    }
}

impl Defaults {
    pub(crate) fn read(root: &Map, problems: &mut Problems) -> Self {
        let mut values = Map::default();
        let path = Path::root("default");
        let section = root.get("default").filter(|node| !node.is_null());
        let fields = section.and_then(|node| Fields::parse(node, path, keywords::DEFAULT, problems));
        if let (Some(fields), Some(map)) = (fields, section.and_then(Node::as_map)) {
            for (key, entry) in map.iter().filter(|(_, entry)| !entry.node.is_null()) {
                if keywords::DEFAULT.contains(&&**key) && is_valid(&fields, key, entry, path, problems) {
                    values.insert(key.clone(), entry.key_span, entry.node.clone());
                }
            }
        }
        for key in keywords::GLOBAL_DEFAULTS {
            let Some(entry) = root.entry(key).filter(|entry| !entry.node.is_null()) else { continue };
            if entry
                .node
                .as_map()
                .is_some_and(|map| ["script", "trigger", "run"].iter().any(|key| map.get(key).is_some()))
            {
                let message = format!("jobs cannot be named `{key}`, because it is a top-level keyword");
                problems.push(crate::diagnostic::Diagnostic::error(entry.key_span, message).help("rename the job"));
                continue;
            }
            if let Some(duplicate) = section.and_then(Node::as_map).and_then(|map| map.entry(key)) {
                let message = format!("`{key}` is defined in top-level and `default:` entry");
                let diagnostic = crate::diagnostic::Diagnostic::error(entry.key_span, message)
                    .related(duplicate.key_span, "the same key in `default`")
                    .help(format!("remove `{key}` at the top level"));
                problems.push(diagnostic);
            } else if value_is_valid(key, &entry.node, Path::root(key), problems) {
                values.insert(*key, entry.key_span, entry.node.clone());
            }
        }
        let bytes = values.iter().map(|(key, entry)| (Arc::clone(key), size_budget::bytes(&entry.node))).collect();
        Self { values, bytes }
    }

    pub(crate) fn bytes(&self, inherited: &[(String, Span)]) -> usize {
        inherited.iter().filter_map(|(key, _)| self.bytes.get(key.as_str())).sum()
    }

    /// Returns the job's map with defaults, and the keys and positions of these defaults. The map is `None` if the job
    /// inherits nothing.
    pub(crate) fn apply(&self, job: &Map, bridge: bool, inherit: &Inherit) -> (Option<Map>, Vec<(String, Span)>) {
        let is_set = |key: &str| job.get(key).is_some_and(|node| !node.is_null());
        let mut inherited = Vec::new();
        let mut with_defaults: Option<Map> = None;
        for (key, entry) in self.values.iter() {
            let is_allowed = if bridge {
                keywords::DEFAULT_OF_TRIGGER_JOBS.contains(&&**key)
            } else {
                // `before_script` or `after_script` together with `run` is an error, so jobs with `run` do not inherit them.
                !(is_set("run") && matches!(&**key, "before_script" | "after_script"))
            };
            if !is_allowed || is_set(key) || !inherit.default.selects(key) {
                continue;
            }
            let map = with_defaults.get_or_insert_with(|| job.clone());
            map.insert(key.clone(), entry.key_span, entry.node.clone());
            inherited.push((key.to_string(), entry.key_span));
        }
        (with_defaults, inherited)
    }
}

fn is_valid(fields: &Fields<'_>, key: &str, entry: &Entry, at: Path<'_>, problems: &mut Problems) -> bool {
    if key == "identity" {
        extras::check_server_only_keywords(fields, problems);
    }
    value_is_valid(key, &entry.node, at.key(key), problems)
}

/// Checks a default by parsing it like the keyword of a job.
fn value_is_valid(key: &str, node: &Node, at: Path<'_>, problems: &mut Problems) -> bool {
    let before = problems.error_count();
    match key {
        "after_script" | "before_script" => drop(scripts::script(node, at, problems)),
        "artifacts" => drop(artifacts::artifacts(node, at, problems)),
        "cache" => drop(cache::caches(node, at, problems)),
        "hooks" => drop(scripts::hooks(node, at, problems)),
        "id_tokens" => drop(extras::id_tokens(node, at, problems)),
        "image" => drop(image::image(node, at, problems)),
        "interruptible" => _ = parsing::boolean(node, at, problems),
        "retry" => drop(behavior::retry(node, at, problems)),
        "services" => drop(image::services(node, at, problems)),
        "tags" => drop(behavior::tags(node, at, problems)),
        "timeout" => _ = parsing::duration(node, at, problems),
        _ => {}
    }
    problems.error_count() == before
}

pub(crate) fn inherit(node: &Node, at: Path<'_>, problems: &mut Problems) -> Inherit {
    let Some(fields) = Fields::parse(node, at, &["default", "variables"], problems) else { return Inherit::default() };
    let default = fields.get("default").map(|node| filter(node, at.key("default"), problems)).unwrap_or_default();
    if let (Filter::Only(_), Some(list)) = (&default, fields.get("default").and_then(Node::as_list)) {
        for word in list {
            let _ = choice(word, at.key("default"), keywords::DEFAULT, problems);
        }
    }
    let variables = fields.get("variables").map(|node| filter(node, at.key("variables"), problems)).unwrap_or_default();
    Inherit { default, variables }
}

fn filter(node: &Node, at: Path<'_>, problems: &mut Problems) -> Filter {
    match &node.value {
        Value::Bool(true) => Filter::All,
        Value::Bool(false) => Filter::None,
        Value::List(_) => parsing::flat_text_list(node, at, problems).map_or(Filter::All, Filter::Only),
        _ => {
            problems.report(node.span, at, "should be a boolean value or an array of names");
            Filter::All
        }
    }
}
