//! `id_tokens`, `secrets`, `release`, `pages`, `inputs` of jobs, and keywords that only a server can implement.

use serde_json::Value as Json;

use crate::config::keywords;
use crate::config::parsing::{Fields, Path, Problems, choice, duration_or_never, flat_list, json, text, text_or_list};
use crate::node::{Map, Node, Span, Value};

const MAX_INPUTS: usize = 50;

pub(crate) fn id_tokens(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<Vec<(String, Vec<String>)>> {
    let map = map_of_any_keys(node, at, problems)?;
    let mut all = Vec::with_capacity(map.len());
    for (name, entry) in map.iter() {
        let at = at.key(name);
        let Some(fields) = Fields::parse(&entry.node, at, &["aud"], problems) else { continue };
        let Some(node) = fields.get("aud") else {
            problems.report(entry.node.span, at, "config should have the key `aud`");
            continue;
        };
        let Some(audiences) = text_or_list(node, at.key("aud"), problems) else { continue };
        let unique: std::collections::HashSet<&String> = audiences.iter().collect();
        if audiences.is_empty() || unique.len() != audiences.len() {
            problems.report(node.span, at.key("aud"), "should be a string or a non-empty array of unique strings");
            continue;
        }
        all.push((name.to_string(), audiences));
    }
    Some(all)
}

pub(crate) fn secrets(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<Vec<(String, Json)>> {
    let map = map_of_any_keys(node, at, problems)?;
    let mut all = Vec::with_capacity(map.len());
    for (name, entry) in map.iter() {
        let before = problems.error_count();
        secret(&entry.node, at.key(name), problems);
        if problems.error_count() == before {
            all.push((name.to_string(), json(&entry.node)));
        }
    }
    Some(all)
}

fn secret(node: &Node, at: Path<'_>, problems: &mut Problems) {
    let Some(fields) = Fields::parse(node, at, keywords::SECRET, problems) else { return };
    let providers: Vec<&str> =
        keywords::SECRET_PROVIDERS.iter().copied().filter(|key| fields.get(key).is_some()).collect();
    let [provider] = providers.as_slice() else {
        let message = format!("config must use exactly one of: {}", keywords::SECRET_PROVIDERS.join(", "));
        problems.report(node.span, at, message);
        return;
    };
    fields.flag("file", true, problems);
    let token = fields.text("token", problems);
    let Some(entry) = fields.get(provider) else { return };
    let at = at.key(provider);
    let required: &[&str] = match *provider {
        "vault" => return vault(entry, at, problems),
        "aws_secrets_manager" if entry.as_str().is_some() => return,
        "aws_secrets_manager" => &["secret_id"],
        "gcp_secret_manager" => {
            if token.is_none() {
                problems.report_with_help(
                    node.span,
                    at,
                    "also needs the key `token`",
                    "declare the token with `id_tokens` and refer to it: `token: $NAME`",
                );
            }
            &["name"]
        }
        _ => &["name"],
    };
    let Some(map) = map_of_any_keys(entry, at, problems) else { return };
    for key in required {
        if map.get(key).is_none_or(Node::is_null) {
            problems.report(entry.span, at, format_args!("config should have the key `{key}`"));
        }
    }
}

fn vault(node: &Node, at: Path<'_>, problems: &mut Problems) {
    if let Some(short) = node.as_str() {
        if !short.split('@').next().unwrap_or_default().contains('/') {
            problems.report_with_help(
                node.span,
                at,
                "should be `path/field[@engine]`",
                "put the field after the last `/`",
            );
        }
        return;
    }
    let Some(fields) = Fields::parse(node, at, &["engine", "path", "field"], problems) else { return };
    let _ = fields.required_text("path", problems);
    let _ = fields.required_text("field", problems);
    let Some(engine) = fields.get("engine") else {
        problems.report(node.span, at, "config should have the key `engine`");
        return;
    };
    if let Some(engine) = Fields::parse(engine, at.key("engine"), &["name", "path"], problems) {
        let _ = engine.choice("name", &["kv-v2", "kv-v1", "generic"], problems);
        let _ = engine.required_text("path", problems);
    }
}

/// Checks `release`. Returns it as the JSON that the runner gets.
pub(crate) fn release(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<Json> {
    let fields = Fields::parse(node, at, keywords::RELEASE, problems)?;
    let before = problems.error_count();
    let _ = fields.required_text("tag_name", problems);
    let _ = fields.required_text("description", problems);
    for key in ["name", "tag_message", "ref", "released_at"] {
        let _ = fields.text(key, problems);
    }
    let _ = fields.text_list("milestones", problems);
    let assets = fields.get("assets");
    if let Some(assets) = assets.and_then(|node| Fields::parse(node, at.key("assets"), &["links"], problems)) {
        let at = at.key("assets");
        let links = assets.get("links").and_then(|node| flat_list(node, at.key("links"), problems));
        for link in links.unwrap_or_default() {
            let keys = ["name", "url", "filepath", "link_type"];
            let Some(link) = Fields::parse(link, at.key("links"), &keys, problems) else { continue };
            let _ = link.required_text("name", problems);
            let _ = link.required_text("url", problems);
            let _ = link.text("filepath", problems);
            let _ = link.choice("link_type", &["runbook", "package", "image", "other"], problems);
        }
    }
    (problems.error_count() == before).then(|| json(node))
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PagesEntry {
    Disabled,
    /// The job publishes this directory.
    ///
    /// `None` means the directory in the deprecated `publish` of the job or, without it, the default directory.
    Publish(Option<String>),
}

pub(crate) fn pages(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<PagesEntry> {
    match node.value {
        Value::Bool(true) => Some(PagesEntry::Publish(None)),
        Value::Bool(false) => Some(PagesEntry::Disabled),
        _ => {
            let fields = Fields::parse(node, at, &["publish", "path_prefix", "expire_in"], problems)?;
            let _ = fields.text("path_prefix", problems);
            if let Some(node) = fields.get("expire_in") {
                let _ = duration_or_never(node, at.key("expire_in"), problems);
            }
            Some(PagesEntry::Publish(fields.text("publish", problems)))
        }
    }
}

/// Parses the declarations of a job's inputs. Each declaration needs a default.
pub(crate) fn inputs(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<Vec<(String, Json)>> {
    let map = map_of_any_keys(node, at, problems)?;
    if map.len() > MAX_INPUTS {
        problems.report(node.span, at, format_args!("config has {} inputs (maximum is {MAX_INPUTS})", map.len()));
    }
    let mut all = Vec::with_capacity(map.len());
    for (name, entry) in map.iter() {
        let before = problems.error_count();
        input(&entry.node, at.key(name), problems);
        if problems.error_count() == before {
            all.push((name.to_string(), json(&entry.node)));
        }
    }
    Some(all)
}

fn input(node: &Node, at: Path<'_>, problems: &mut Problems) {
    let keys = ["type", "default", "options", "regex", "description"];
    let Some(fields) = Fields::parse(node, at, &keys, problems) else { return };
    let kind = fields.choice("type", &["string", "number", "boolean", "array"], problems);
    let kind = kind.as_deref().unwrap_or("string");
    let _ = fields.text("description", problems);
    let Some(default) = fields.get("default") else {
        problems.report(node.span, at, "config should have the key `default`, because jobs do not prompt for inputs");
        return;
    };
    let fits = match &default.value {
        Value::String(_) => kind == "string",
        Value::Int(_) | Value::Float(_) => kind == "number",
        Value::Bool(_) => kind == "boolean",
        Value::List(_) => kind == "array",
        _ => false,
    };
    if !fits {
        let message = format!("default value is {}, but the type is {kind}", default.kind());
        problems.report(default.span, at, message);
    }
    if let Some(options) = fields.get("options").and_then(|node| flat_list(node, at.key("options"), problems)) {
        let value = default.scalar_text();
        if fits && !options.iter().any(|option| option.scalar_text() == value) {
            problems.report(default.span, at, "default value is not one of the options");
        }
    }
    if let Some((node, pattern)) = fields.get("regex").zip(fields.text("regex", problems)) {
        match problems.patterns.compile(&pattern, "") {
            Ok(regex) if default.as_str().is_some_and(|text| !regex.is_match(text)) => {
                problems.report(default.span, at, format_args!("default value does not match `{pattern}`"));
            }
            Ok(_) => {}
            Err(error) => problems.report(node.span, at.key("regex"), error),
        }
    }
}

pub(crate) fn check_server_only_keywords(fields: &Fields<'_>, problems: &mut Problems) {
    let at = fields.at();
    if let Some(node) = fields.get("identity") {
        let _ = choice(node, at.key("identity"), &["google_cloud"], problems);
    }
    if let Some(node) = fields.get("dast_configuration") {
        let _ = Fields::parse(node, at.key("dast_configuration"), &["site_profile", "scanner_profile"], problems);
    }
}

/// Parses the deprecated key `publish` of a pages job. Returns the directory and the position of the key.
pub(crate) fn publish(fields: &Fields<'_>, problems: &mut Problems) -> Option<(String, Span)> {
    let node = fields.get("publish")?;
    let at = fields.at();
    text(node, at.key("publish"), problems).map(|directory| (directory, fields.key_span("publish")))
}

fn map_of_any_keys<'a>(node: &'a Node, at: Path<'_>, problems: &mut Problems) -> Option<&'a Map> {
    let map = node.as_map();
    if map.is_none() {
        problems.report(node.span, at, format_args!("config should be a map, but it is {}", node.kind()));
    }
    map
}
