//! `environment` and `resource_group`.

use crate::config::keywords;
use crate::config::parsing::{Fields, Path, Problems, duration_or_never, text};
use crate::model::Environment;
use crate::node::{Node, Span};

const ACTIONS: &[&str] = &["start", "prepare", "stop", "verify", "access"];
const TIERS: &[&str] = &["production", "staging", "testing", "development", "other"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EnvironmentEntry {
    /// The environment. Variables in its name are not expanded yet.
    pub(crate) environment: Environment,
    pub(crate) span: Span,
    pub(crate) on_stop_span: Span,
}

pub(crate) fn environment(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<EnvironmentEntry> {
    if let Some(name) = node.as_str() {
        check_name(name, node.span, at, problems)?;
        let environment = Environment { name: name.to_owned(), action: "start".to_owned(), ..Environment::default() };
        return Some(EnvironmentEntry { environment, span: node.span, on_stop_span: node.span });
    }
    if node.as_map().is_none() {
        problems.report(node.span, at, format_args!("config should be a hash or a string, but it is {}", node.kind()));
        return None;
    }
    let fields = Fields::parse(node, at, keywords::ENVIRONMENT, problems)?;
    let name = fields.required_text("name", problems);
    if let (Some(name), Some(node)) = (&name, fields.get("name")) {
        let _ = check_name(name, node.span, at.key("name"), problems);
    }
    let action = fields.choice("action", ACTIONS, problems).unwrap_or_else(|| "start".to_owned());
    let url = fields.text("url", problems);
    if let Some(url) = url.as_deref().filter(|url| !is_url(url)) {
        let message = format!("should be an HTTP or HTTPS URL, or contain a variable, but it is `{url}`");
        problems.report(fields.key_span("url"), at.key("url"), message);
    }
    let auto_stop_in = fields.get("auto_stop_in").and_then(|node| auto_stop_in(node, &action, &fields, problems));
    let deployment_tier = fields.text("deployment_tier", problems);
    if let Some(tier) = deployment_tier.as_deref().filter(|tier| !tier.contains('$') && !TIERS.contains(tier)) {
        let message = format!("must be one of {} or a variable, but it is `{tier}`", TIERS.join(", "));
        problems.report(fields.key_span("deployment_tier"), at.key("deployment_tier"), message);
    }
    let on_stop = fields.text("on_stop", problems);
    let environment = Environment { name: name?, url, on_stop, action, auto_stop_in, deployment_tier };
    Some(EnvironmentEntry { environment, span: node.span, on_stop_span: fields.key_span("on_stop") })
}

fn auto_stop_in(node: &Node, action: &str, fields: &Fields<'_>, problems: &mut Problems) -> Option<String> {
    let at = fields.at();
    let at = at.key("auto_stop_in");
    if action == "stop" {
        problems.report(node.span, at, "can't be used with `action: stop`");
    }
    // The value of a variable is not known yet, so it cannot be checked here.
    if node.as_str().is_some_and(|text| text.contains('$')) {
        return text(node, at, problems);
    }
    duration_or_never(node, at, problems)
}

fn check_name(name: &str, span: Span, at: Path<'_>, problems: &mut Problems) -> Option<()> {
    if name.trim().is_empty() {
        problems.report(span, at, "can't be blank");
        return None;
    }
    let has_valid_chars = name.chars().all(|c| c.is_alphanumeric() || "-_/${}. ".contains(c));
    if !has_valid_chars || name.starts_with('/') || name.ends_with('/') {
        let message = "can contain only letters, digits, '-', '_', '/', '$', '{', '}', '.', and spaces, but it cannot \
                    start or end with '/'";
        problems.report(span, at, message);
        return None;
    }
    Some(())
}

fn is_url(url: &str) -> bool {
    url.contains('$') || url.starts_with("http://") || url.starts_with("https://")
}

pub(crate) fn resource_group(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<String> {
    let name = text(node, at, problems)?;
    check_name(&name, node.span, at, problems)?;
    Some(name)
}
