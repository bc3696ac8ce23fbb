//! `artifacts`.

use crate::config::keywords;
use crate::config::parsing::{Fields, Path, Problems, boolean, duration_or_never, text_or_list};
use crate::model::Artifacts;
use crate::node::Node;

pub(crate) fn artifacts(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<Artifacts> {
    let fields = Fields::parse(node, at, keywords::ARTIFACTS, problems)?;
    let paths = fields.text_list("paths", problems);
    if let Some(expose_as) = fields.get("expose_as") {
        check_expose_as(&fields, expose_as, &paths, problems);
    }
    let expire_in = fields.get("expire_in").and_then(|node| duration_or_never(node, at.key("expire_in"), problems));
    let reports = fields.get("reports").map(|node| reports(node, at.key("reports"), problems)).unwrap_or_default();
    Some(Artifacts {
        name: fields.text("name", problems),
        paths,
        exclude: fields.text_list("exclude", problems),
        untracked: fields.flag("untracked", false, problems),
        when: fields
            .choice("when", &["on_success", "on_failure", "always"], problems)
            .unwrap_or_else(|| "on_success".to_owned()),
        expire_in,
        expose_as: fields.text("expose_as", problems),
        access: access(&fields, problems),
        reports,
    })
}

fn access(fields: &Fields<'_>, problems: &mut Problems) -> String {
    let at = fields.at();
    if fields.get("public").is_some() && fields.get("access").is_some() {
        problems.report(fields.span(), at, "config uses both `public` and `access`, which are mutually exclusive");
    }
    let access = fields.choice("access", &["all", "developer", "maintainer", "none"], problems);
    let public = fields.get("public").and_then(|node| boolean(node, at.key("public"), problems));
    access.unwrap_or_else(|| if public == Some(false) { "developer" } else { "all" }.to_owned())
}

fn check_expose_as(fields: &Fields<'_>, node: &Node, paths: &[String], problems: &mut Problems) {
    let at = fields.at();
    if paths.is_empty() {
        problems.report(node.span, at.key("expose_as"), "needs `paths`");
    }
    if paths.iter().any(|path| path.contains('*')) {
        let span = fields.get("paths").map_or(node.span, |paths| paths.span);
        problems.report(span, at.key("paths"), "can't contain '*' when used with 'expose_as'");
    }
    let title = node.as_str().unwrap_or_default();
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | ' ');
    if node.as_str().is_some() && (!title.chars().all(is_allowed) || !title.starts_with(|c| c != '-' && c != ' ')) {
        let message = "can contain only letters, digits, '-', '_' and spaces";
        problems.report_with_help(
            node.span,
            at.key("expose_as"),
            message,
            "remove other characters, and start it with a letter, a digit or `_`",
        );
    }
}

/// Returns types and paths. `coverage_report` becomes `cobertura` or `jacoco`.
fn reports(node: &Node, at: Path<'_>, problems: &mut Problems) -> Vec<(String, Vec<String>)> {
    let Some(fields) = Fields::parse(node, at, keywords::REPORTS, problems) else { return Vec::new() };
    let mut all = Vec::new();
    for kind in node.as_map().into_iter().flat_map(crate::node::Map::keys) {
        let Some(value) = fields.get(kind) else { continue };
        let at = at.key(kind);
        match &**kind {
            "coverage_report" => all.extend(coverage_report(value, at, problems)),
            known if keywords::REPORTS.contains(&known) => {
                all.extend(text_or_list(value, at, problems).map(|paths| (kind.to_string(), paths)));
            }
            _ => {}
        }
    }
    all
}

fn coverage_report(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<(String, Vec<String>)> {
    let fields = Fields::parse(node, at, &["coverage_format", "path"], problems)?;
    if fields.get("coverage_format").is_none() {
        problems.report(node.span, at, "config should have the key `coverage_format`");
    }
    let format = fields.choice("coverage_format", &["cobertura", "jacoco"], problems);
    let path = fields.required_text("path", problems);
    Some((format?, vec![path?]))
}
