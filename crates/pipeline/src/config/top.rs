//! Parses the top level of a configuration: the keywords and the jobs (docs/spec/pipeline-yaml.md, section 1.1).

use std::collections::HashSet;
use std::sync::Arc;

use crate::config::defaults::Defaults;
use crate::config::job::{self, JobEntry, JobParserContext};
use crate::config::keywords;
use crate::config::parsing::{Path, Problems, flat_list, suggest};
use crate::config::rules::Expressions;
use crate::config::size_budget::SizeBudget;
use crate::config::variables::{self, VariableEntry};
use crate::config::workflow::{self, Workflow};
use crate::diagnostic::Diagnostic;
use crate::gaps::Gaps;
use crate::node::{Entry, Map, Node, Span, Value};

const MAX_NAME: usize = 255;
const DEFAULT_STAGES: [&str; 3] = ["build", "test", "deploy"];
pub(crate) const FIRST_STAGE: &str = ".pre";
pub(crate) const LAST_STAGE: &str = ".post";

#[derive(Debug)]
pub(crate) struct Config {
    /// Stages in order, from `.pre` to `.post`, without duplicates.
    pub(crate) stages: Vec<String>,
    /// True if `stages` has errors, which have been reported. Some stages may be missing.
    pub(crate) lacks_stages: bool,
    pub(crate) variables: Vec<VariableEntry>,
    pub(crate) workflow: Workflow,
    pub(crate) jobs: Vec<JobEntry>,
    /// Names of visible jobs that could not be parsed completely. Other jobs may refer to them. Errors that result only
    /// from missing parts must not be reported.
    pub(crate) broken: HashSet<Arc<str>>,
    /// True if includes were skipped, so that jobs may refer to unknown names.
    pub(crate) includes_were_skipped: bool,
}

/// Parses the merged tree. Returns what could be parsed, and the tree with defaults and without hidden keys.
///
/// `complete` means that the configuration was loaded without errors. Otherwise parts may be missing, and errors that
/// result only from missing parts are not reported. `gaps` describes what is missing.
pub(crate) fn config(root: &Node, complete: bool, gaps: &Gaps, problems: &mut Problems) -> (Config, Node) {
    let empty = Map::default();
    let map = root.as_map().unwrap_or(&empty);
    if root.as_map().is_none() && !root.is_null() {
        let message = format!("the configuration should be a map of jobs and keywords, but it is {}", root.kind());
        problems.push(Diagnostic::error(root.span, message));
    }
    let mut expressions = Expressions::default();
    let value = |key: &str| map.get(key).filter(|node| !node.is_null());
    let defaults = Defaults::read(map, problems);
    let before = problems.error_count();
    let stages = stages(value("stages"), problems);
    let lacks_stages = problems.error_count() > before;
    let variables = value("variables");
    let variables =
        variables.map(|node| variables::global(node, Path::root("variables"), problems)).unwrap_or_default();
    let workflow =
        value("workflow").and_then(|node| workflow::workflow(node, Path::root("workflow"), &mut expressions, problems));

    let mut context = JobParserContext { defaults, complete, gaps, expressions, size_budget: SizeBudget::default() };
    let mut jobs = Vec::with_capacity(map.len());
    let mut preview = Map::default();
    let mut visible = 0_usize;
    let mut broken = HashSet::new();
    for (name, entry) in map.iter().filter(|(name, _)| !name.starts_with('.')) {
        let mut node = entry.node.clone();
        if !keywords::TOP_LEVEL.contains(&&**name) {
            visible += 1;
            if is_job(name, entry, problems)
                && let Some((job, full)) = job::job(name, entry, &mut context, problems)
            {
                if job.is_broken {
                    broken.insert(name.clone());
                }
                jobs.push(job);
                node = full;
            } else {
                broken.insert(name.clone());
            }
        }
        preview.insert(name.clone(), entry.key_span, node);
    }
    if visible == 0 && complete && !gaps.includes_were_skipped {
        let help = "add a job: a top-level key with a `script`, whose name does not begin with `.`";
        let message = "jobs config should contain at least one visible job";
        problems.push(Diagnostic::error(root.span, message).help(help));
    }
    let mut stages = stages;
    if gaps.includes_were_skipped {
        add_stages(&mut stages, &jobs);
    }
    let (workflow, includes_were_skipped) = (workflow.unwrap_or_default(), gaps.includes_were_skipped);
    let config = Config { stages, lacks_stages, variables, workflow, jobs, broken, includes_were_skipped };
    (config, Node::new(Value::Map(Arc::new(preview)), root.span))
}

/// Adds the stages of `jobs` that are missing from `stages`. The key `stages` may be in an include that was skipped.
fn add_stages(stages: &mut Vec<String>, jobs: &[JobEntry]) {
    let last = stages.pop();
    for job in jobs {
        let name = &job.stage.name;
        if !stages.contains(name) && last.as_ref() != Some(name) {
            stages.push(name.clone());
        }
    }
    stages.extend(last);
}

/// Returns true if the entry can be a job. Otherwise, reports why it cannot.
fn is_job(name: &Arc<str>, entry: &Entry, problems: &mut Problems) -> bool {
    let reject = |message: String, help: &str, problems: &mut Problems| {
        problems.push(Diagnostic::error(entry.key_span, message).help(help));
        false
    };
    match &**name {
        "types" => return reject("`types` is not supported".to_owned(), "use `stages`", problems),
        "spec" => {
            let help = "put `spec` before the jobs, and a line `---` after it";
            return reject("`spec` is only allowed in the header of a file".to_owned(), help, problems);
        }
        _ => {}
    }
    if name.trim().is_empty() {
        return reject("jobs name can't be blank".to_owned(), "give the job a name", problems);
    }
    if keywords::FORBIDDEN_JOB_NAMES.contains(&&**name) {
        return reject(format!("jobs:{name} is a reserved name"), "give the job another name", problems);
    }
    let length = name.chars().count();
    if length > MAX_NAME {
        let message = format!("jobs:{name} name is too long (maximum is {MAX_NAME} characters, but it has {length})");
        return reject(message, "give the job a shorter name", problems);
    }
    if entry.node.as_map().is_some() {
        return true;
    }
    let message = format!(
        "jobs:{name} config should be a map that implements a script:, run:, or trigger: keyword, but it is {}",
        entry.node.kind()
    );
    let mut diagnostic = Diagnostic::error(entry.key_span, message);
    diagnostic.help = if keywords::JOB.contains(&&**name) {
        Some(format!("`{name}` is a keyword of jobs: move it into a job{}", default_hint(name)))
    } else {
        suggest(name, keywords::TOP_LEVEL).map(|known| format!("did you mean `{known}`?"))
    };
    problems.push(diagnostic);
    false
}

fn default_hint(name: &str) -> &'static str {
    if keywords::DEFAULT.contains(&name) { " or under `default`" } else { "" }
}

/// Parses `stages`: flattens nested lists, removes duplicates, and adds `.pre` and `.post`.
fn stages(node: Option<&Node>, problems: &mut Problems) -> Vec<String> {
    let at = Path::root("stages");
    let mut names: Vec<String> = Vec::new();
    match node {
        None => names.extend(DEFAULT_STAGES.iter().map(|name| (*name).to_owned())),
        Some(node) => {
            let items = flat_list(node, at, problems).unwrap_or_default();
            if items.is_empty() && node.as_list().is_some() {
                problems.report(node.span, at, "config should contain at least one stage");
            }
            for item in items {
                match item.as_str() {
                    Some(name) => add_valid_stage(name, item.span, &mut names, problems),
                    None => problems.report(
                        item.span,
                        at,
                        format_args!("config should be an array of strings, but it contains {}", item.kind()),
                    ),
                }
            }
        }
    }
    let mut seen = HashSet::new();
    let listed = names.into_iter().filter(|name| name != FIRST_STAGE && name != LAST_STAGE);
    let all = std::iter::once(FIRST_STAGE.to_owned()).chain(listed).chain(std::iter::once(LAST_STAGE.to_owned()));
    all.filter(|name| seen.insert(name.clone())).collect()
}

fn add_valid_stage(name: &str, span: Span, names: &mut Vec<String>, problems: &mut Problems) {
    let at = Path::root("stages");
    if name.trim().is_empty() {
        problems.report(span, at, "config has a blank name");
    } else if name.chars().count() > MAX_NAME {
        problems.report(
            span,
            at,
            format_args!("config has a name that is too long (maximum is {MAX_NAME} characters)"),
        );
    } else {
        names.push(name.to_owned());
    }
}
