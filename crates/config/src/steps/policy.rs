//! Reads the file of `[runners.steps] policy`.

use std::ops::Range;
use std::path::Path;

use muster_job::{PolicyRule, StepLimits, StepPolicy};
use muster_taskscaler::resources::{cpu_milli, memory_bytes};
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use super::{Position, StepSource, checked};
use crate::settings::OperatorStep;

/// A valid policy file. Its steps are required by default.
pub(super) struct PolicyFile {
    pub(super) policy: StepPolicy,
    pub(super) before: Vec<OperatorStep>,
    pub(super) after: Vec<OperatorStep>,
    pub(super) before_upload: Vec<OperatorStep>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    default: Option<Spanned<String>>,
    #[serde(default)]
    rules: Vec<Rule>,
    #[serde(default)]
    before: Vec<Spanned<StepSource>>,
    #[serde(default)]
    after: Vec<Spanned<StepSource>>,
    #[serde(default)]
    before_upload: Vec<Spanned<StepSource>>,
    #[serde(default)]
    limits: Limits,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    allow: Option<Spanned<String>>,
    deny: Option<Spanned<String>>,
    #[serde(default)]
    reason: String,
    limits: Option<Spanned<Limits>>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Limits {
    network: Option<Spanned<String>>,
    cpu: Option<Spanned<String>>,
    memory: Option<Spanned<String>>,
    file_size: Option<Spanned<String>>,
    disk: Option<Spanned<String>>,
}

/// Location, message and remedy.
type Problem = (Option<Range<usize>>, String, String);

/// Reads a policy file. An error is a pair: a message, which names file and line, and a remedy.
pub(super) fn read(path: &Path) -> Result<PolicyFile, (String, String)> {
    let text = crate::text_file::read(path).map_err(|error| {
        let help = "create the file, or fix its path and its permissions".to_owned();
        (format!("failed to read the step policy {}: {error}", path.display()), help)
    })?;
    parse(&text, path).map_err(|(span, message, help)| {
        let line = span.map(|span| format!(":{}", line_number(&text, span.start))).unwrap_or_default();
        (format!("{}{line}: {message}", path.display()), help)
    })
}

fn line_number(text: &str, at: usize) -> u64 {
    let before = text.as_bytes().get(..at).unwrap_or_default();
    before.iter().fold(1, |line, byte| line + u64::from(*byte == b'\n'))
}

fn parse(text: &str, path: &Path) -> Result<PolicyFile, Problem> {
    let File { default, rules, before, after, before_upload, limits } = toml::from_str(text).map_err(|error| {
        let help = "see docs/reference/step-policy.md for the keys of a policy".to_owned();
        (error.span(), error.message().to_owned(), help)
    })?;
    let denied_by_default = match default.as_ref().map(|default| default.get_ref().as_str()) {
        None | Some("allow") => None,
        Some("deny") => default.as_ref().map(|default| line_number(text, default.span().start)),
        Some(other) => {
            let message = format!("{other:?} is not a valid default");
            return Err((default.map(|default| default.span()), message, "write \"allow\" or \"deny\"".to_owned()));
        }
    };
    let policy = StepPolicy {
        file: path.display().to_string(),
        rules: rules.into_iter().map(|rule| checked_rule(rule, text)).collect::<Result<_, _>>()?,
        denied_by_default,
        limits: checked_limits(limits)?,
    };
    Ok(PolicyFile {
        policy,
        before: steps(before, Position::Before)?,
        after: steps(after, Position::After)?,
        before_upload: steps(before_upload, Position::BeforeUpload)?,
    })
}

fn checked_rule(rule: Rule, text: &str) -> Result<PolicyRule, Problem> {
    const KINDS: [&str; 6] = ["local:", "git:", "oci:", "builtin:", "script", "*"];
    let (pattern, is_allowed) = match (rule.allow, rule.deny) {
        (Some(pattern), None) => (pattern, true),
        (None, Some(pattern)) => (pattern, false),
        (allow, _) => {
            let message = "a rule needs either `allow` or `deny`".to_owned();
            return Err((allow.map(|pattern| pattern.span()), message, "write one of the two".to_owned()));
        }
    };
    let (span, pattern) = (pattern.span(), pattern.into_inner());
    if !KINDS.iter().any(|kind| pattern.starts_with(kind)) {
        let message = format!("the pattern {pattern:?} matches no step");
        let help = "begin it with `local:`, `git:`, `oci:` or `builtin:`, or write `script`".to_owned();
        return Err((Some(span), message, help));
    }
    if let Some(path) = pattern.strip_prefix("local:")
        && (path == "." || path.ends_with("/step.yml") || path.ends_with("/func.yml"))
    {
        let message = format!("the pattern {pattern:?} matches no step");
        let help = "write the directory of the step, without the name of its file; the top directory is `local:./`";
        return Err((Some(span), message, help.to_owned()));
    }
    let limits = match rule.limits {
        None => StepLimits::default(),
        Some(limits) if !is_allowed || pattern.starts_with("builtin:") => {
            let message = "the rule cannot have limits".to_owned();
            let help = "give limits to rules that allow steps of `run:` lists; the limits in [limits] apply to all processes of the job's author";
            return Err((Some(limits.span()), message, help.to_owned()));
        }
        Some(limits) => checked_limits(limits.into_inner())?,
    };
    Ok(PolicyRule { line: line_number(text, span.start), pattern, is_allowed, reason: rule.reason, limits })
}

fn checked_limits(limits: Limits) -> Result<StepLimits, Problem> {
    let Limits { network, cpu, memory, file_size, disk } = limits;
    let no_network = match network.as_ref().map(|network| network.get_ref().as_str()) {
        None | Some("host") => false,
        Some("none") => true,
        Some(other) => {
            let message = format!("{other:?} is not a valid value of `network`");
            return Err((network.map(|network| network.span()), message, "write \"none\" or \"host\"".to_owned()));
        }
    };
    Ok(StepLimits {
        no_network,
        cpu_milli: amount("cpu", cpu, cpu_milli, "1.5")?,
        memory_bytes: amount("memory", memory, memory_bytes, "2Gi")?,
        file_bytes: amount("file_size", file_size, memory_bytes, "1Gi")?,
        disk_bytes: amount("disk", disk, memory_bytes, "10Gi")?,
    })
}

fn amount<T>(
    key: &str,
    text: Option<Spanned<String>>,
    parse: fn(&str) -> Option<T>,
    example: &str,
) -> Result<Option<T>, Problem> {
    let Some(text) = text else { return Ok(None) };
    let invalid = || {
        let message = format!("{:?} is not a valid value of `{key}`", text.get_ref());
        (Some(text.span()), message, format!("write for example \"{example}\""))
    };
    parse(text.get_ref()).ok_or_else(invalid).map(Some)
}

fn steps(configured: Vec<Spanned<StepSource>>, position: Position) -> Result<Vec<OperatorStep>, Problem> {
    let spans: Vec<_> = configured.iter().map(Spanned::span).collect();
    let (steps, problems) = checked(configured.into_iter().map(Spanned::into_inner), position, true);
    match problems.into_iter().next() {
        Some((index, message, help)) => Err((spans.get(index).cloned(), message, help)),
        None => Ok(steps),
    }
}

pub(super) fn one_or_more<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Texts {
        One(String),
        More(Vec<String>),
    }
    Ok(match Texts::deserialize(from)? {
        Texts::One(text) => vec![text],
        Texts::More(texts) => texts,
    })
}
