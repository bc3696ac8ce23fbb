//! `only` and `except`, which GitLab has deprecated but many configurations still use.

use crate::config::parsing::{Fields, Path, Problems, flat_text_list};
use crate::config::rules::{self, Changes, Condition, Expressions, PathTest};
use crate::node::{Node, Span, Value};
use crate::ref_match::RefPattern;

#[derive(Debug, Clone)]
pub(crate) struct RefPolicy {
    /// Position of the value. `None` means that the policy is the implicit `only`.
    pub(crate) span: Option<Span>,
    /// `refs`: keywords, names, and patterns such as `/^v/`.
    pub(crate) refs: Option<Vec<RefPattern>>,
    /// `variables`: this part of the policy is met if any of these expressions is true.
    pub(crate) variables: Option<Vec<Condition>>,
    pub(crate) changes: Option<Changes>,
    pub(crate) kubernetes: bool,
}

/// Value of `only` for a job with neither `only` nor `rules`. Also the default of `only:refs`.
const DEFAULT_ONLY: [&str; 2] = ["branches", "tags"];

pub(crate) fn default_only() -> RefPolicy {
    let refs = DEFAULT_ONLY.iter().filter_map(|word| RefPattern::parse(word).ok()).collect();
    RefPolicy { span: None, refs: Some(refs), variables: None, changes: None, kubernetes: false }
}

pub(crate) fn only(
    node: &Node,
    at: Path<'_>,
    expressions: &mut Expressions,
    problems: &mut Problems,
) -> Option<RefPolicy> {
    // `only` has the same form as `except`, but `only:refs` has a default.
    let mut policy = except(node, at, expressions, problems)?;
    policy.refs = policy.refs.or_else(|| default_only().refs);
    Some(policy)
}

pub(crate) fn except(
    node: &Node,
    at: Path<'_>,
    expressions: &mut Expressions,
    problems: &mut Problems,
) -> Option<RefPolicy> {
    let span = Some(node.span);
    if !matches!(node.value, Value::Map(_)) {
        let refs = refs(node, at, problems)?;
        return Some(RefPolicy { span, refs: Some(refs), variables: None, changes: None, kubernetes: false });
    }
    let fields = Fields::parse(node, at, &["refs", "variables", "changes", "kubernetes"], problems)?;
    if node.as_map().is_some_and(crate::node::Map::is_empty) {
        problems.report(node.span, at, "can't be blank");
        return None;
    }
    let before = problems.error_count();
    let kubernetes = fields.choice("kubernetes", &["active"], problems).is_some();
    let refs = fields.get("refs").and_then(|node| refs(node, at.key("refs"), problems));
    let variables = fields.get("variables").and_then(|node| {
        let at = at.key("variables");
        let items = crate::config::parsing::flat_list(node, at, problems)?;
        Some(items.into_iter().filter_map(|item| expressions.read(item, at, problems)).collect())
    });
    let changes = fields.get("changes").and_then(|node| {
        let at = at.key("changes");
        if node.as_map().is_none() {
            return rules::changes(node, at, problems);
        }
        let paths = Fields::parse(node, at, &["paths"], problems)?.text_list("paths", problems);
        Some(Changes { paths: PathTest::Globs(paths), compare_to: None })
    });
    (problems.error_count() == before).then_some(RefPolicy { span, refs, variables, changes, kubernetes })
}

fn refs(node: &Node, at: Path<'_>, problems: &mut Problems) -> Option<Vec<RefPattern>> {
    if node.as_list().is_none() {
        let message = format!("should be an array of conditions or a hash, but it is {}", node.kind());
        problems.report(node.span, at, message);
        return None;
    }
    let refs = flat_text_list(node, at, problems)?;
    let mut read = |text: &String| {
        let pattern = RefPattern::parse_within(text, &mut problems.patterns);
        pattern.map_err(|error| problems.report(node.span, at, error)).ok()
    };
    refs.iter().map(&mut read).collect()
}
