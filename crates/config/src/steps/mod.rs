//! Reads `[runners.steps]`: the operator's steps, and the policy file.

mod policy;
mod replacements;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use muster_job::{ExportKind, is_identifier};
use serde_json::{Map, Value as Json};

use super::problem::shown_name;
use super::tree::{Table, Value, json};
use crate::settings::{CONTAINER_EXECUTORS, HostServiceSettings, OperatorAction, OperatorStep, StepsSettings};

/// End of a message that begins with the step, or with the replacement of a built-in step.
const RELATIVE_STEP: &str = "is relative to the job's directory, whose content the job controls";
const RELATIVE_STEP_HELP: &str = "use an absolute path, or a git or OCI reference";
const DEFAULT_STEP_TIMEOUT: Duration = Duration::from_secs(300);
const DEFAULT_SERVICE_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) struct StepsProblem {
    /// List (`before`, `before_upload`, `after`, `replace` or `services`), and index in it.
    /// `None` if the problem is not about a single entry.
    pub(super) step: Option<(&'static str, usize)>,
    pub(super) message: String,
    pub(super) help: String,
}

/// When a step of the operator runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Position {
    Before,
    BeforeUpload,
    After,
}

impl Position {
    fn key(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::BeforeUpload => "before_upload",
            Self::After => "after",
        }
    }

    fn description(self) -> &'static str {
        match self {
            Self::Before => "before the job",
            Self::BeforeUpload => "before the upload",
            Self::After => "after the job",
        }
    }
}

/// A step of the operator as written in a file.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
struct StepSource {
    name: String,
    #[serde(deserialize_with = "policy::one_or_more")]
    script: Vec<String>,
    step: Option<String>,
    inputs: Map<String, Json>,
    env: BTreeMap<String, String>,
    timeout: Option<String>,
    required: Option<bool>,
    exports: BTreeMap<String, String>,
}

/// Returns the settings and all problems. Reads the policy file only if `may_read` is true.
pub(super) fn read(runner: &Table, executor: &str, may_read: bool) -> (StepsSettings, Vec<StepsProblem>) {
    let Some(table) = runner.table("steps") else { return (StepsSettings::default(), Vec::new()) };
    let mut problems = Vec::new();
    let mut list = |position: Position| {
        let configured = table.tables(position.key()).iter().map(step_source);
        let (steps, invalid) = checked(configured, position, position != Position::After);
        problems.extend(invalid.into_iter().map(|(index, message, help)| StepsProblem {
            step: Some((position.key(), index)),
            message,
            help,
        }));
        steps
    };
    let mut settings = StepsSettings {
        before: list(Position::Before),
        after: list(Position::After),
        before_upload: list(Position::BeforeUpload),
        ..StepsSettings::default()
    };
    let (replace, invalid) = replacements::read(table);
    settings.replace = replace;
    problems.extend(invalid);
    for (index, configured) in table.tables("services").iter().enumerate() {
        match service(configured) {
            Ok(service) => settings.services.push(service),
            Err((message, help)) => problems.push(StepsProblem { step: Some(("services", index)), message, help }),
        }
    }
    if !settings.services.is_empty() && CONTAINER_EXECUTORS.contains(&executor) {
        let message = "services of jobs in containers are containers, and not programs of the operator".to_owned();
        let help = "remove [[runners.steps.services]], or use another executor".to_owned();
        problems.push(StepsProblem { step: Some(("services", 0)), message, help });
    }
    if let Some(path) = table.str("policy").filter(|_| may_read) {
        match policy::read(Path::new(path)) {
            Ok(file) => {
                // The authors of the policy and of the entry may differ, so the policy's steps surround the entry's.
                settings.before.splice(0..0, file.before);
                settings.after.extend(file.after);
                // Another step may add files, which the steps of the policy must see.
                settings.before_upload.extend(file.before_upload);
                settings.policy = Some(file.policy);
            }
            Err((message, help)) => problems.push(StepsProblem { step: None, message, help }),
        }
    }
    let lists = [&settings.before, &settings.after, &settings.before_upload];
    let is_used =
        lists.iter().any(|list| !list.is_empty()) || settings.policy.is_some() || !settings.replace.is_empty();
    if executor == "custom" && is_used {
        let message = "the custom executor supports neither steps of the operator nor a step policy".to_owned();
        let help = "remove [runners.steps], and let the programs of the driver do this work".to_owned();
        problems.push(StepsProblem { step: None, message, help });
    }
    settings.problem = problems.first().map(|problem| format!("{}; {}", problem.message, problem.help));
    (settings, problems)
}

fn step_source(table: &Table) -> StepSource {
    let owned = |key: &str| table.str(key).map(str::to_owned);
    StepSource {
        name: owned("name").unwrap_or_default(),
        script: table.strings("script").map(|(line, _)| line.to_owned()).collect(),
        step: owned("step"),
        inputs: inputs(table),
        env: string_map(table, "env"),
        timeout: table.time("timeout").map(|timeout| format!("{}ns", timeout.as_nanos())),
        required: table.bool("required"),
        exports: string_map(table, "exports"),
    }
}

fn inputs(table: &Table) -> Map<String, Json> {
    match table.node("inputs").map(|node| &node.value) {
        Some(Value::Any(text)) => json(text).as_object().cloned().unwrap_or_default(),
        _ => Map::new(),
    }
}

fn string_map(table: &Table, key: &str) -> BTreeMap<String, String> {
    let entries = table.table(key).into_iter().flat_map(Table::entries);
    let texts = entries.filter_map(|(key, node)| match &node.value {
        Value::Str(value) => Some((key.to_owned(), value.clone())),
        _ => None,
    });
    texts.collect()
}

fn service(table: &Table) -> Result<HostServiceSettings, (String, String)> {
    let image = table.str("image").unwrap_or_default();
    let command: Vec<String> = table.strings("command").map(|(word, _)| word.to_owned()).collect();
    let port = table.int("port").unwrap_or_default();
    if image.is_empty() || command.is_empty() {
        let message = "a service of the operator needs `image` and `command`".to_owned();
        return Err((message, "set both".to_owned()));
    }
    let Ok(port) = u16::try_from(port) else {
        return Err((format!("{port} is not a valid port"), "write a number from 1 to 65535".to_owned()));
    };
    let timeout = table.time("timeout").unwrap_or(DEFAULT_SERVICE_TIMEOUT);
    Ok(HostServiceSettings { image: image.to_owned(), command, env: string_map(table, "env"), port, timeout })
}

/// Returns the valid steps, and the index, message and help of each problem.
fn checked(
    configured: impl Iterator<Item = StepSource>,
    position: Position,
    required_by_default: bool,
) -> (Vec<OperatorStep>, Vec<(usize, String, String)>) {
    let (mut steps, mut problems, mut names) = (Vec::new(), Vec::new(), BTreeSet::new());
    for (index, step) in configured.enumerate() {
        match checked_step(step, position, required_by_default) {
            Ok(step) if !names.insert(step.name.clone()) => {
                let message = format!("two steps {} have the name `{}`", position.description(), step.name);
                problems.push((index, message, "give each step a different name".to_owned()));
            }
            Ok(step) => steps.push(step),
            Err((message, help)) => problems.push((index, message, help)),
        }
    }
    (steps, problems)
}

fn checked_step(
    step: StepSource,
    position: Position,
    required_by_default: bool,
) -> Result<OperatorStep, (String, String)> {
    let StepSource { name, script, step, inputs, env, timeout, required, exports } = step;
    let invalid = |message: String, help: &str| Err((message, help.to_owned()));
    let shown = shown_name(&name);
    if !is_identifier(&name) {
        return invalid(
            format!("`{shown}` is not a valid name of a step {}", position.description()),
            "set `name` to a letter or underscore, followed by letters, digits and underscores",
        );
    }
    if let Some(key) = env.keys().find(|key| !is_identifier(key)) {
        return invalid(
            format!("step `{shown}`: `{}` is not a valid variable name", shown_name(key)),
            "rename the variable",
        );
    }
    let action = match (script.is_empty(), step) {
        (false, None) if inputs.is_empty() => OperatorAction::Script(script),
        (false, None) => {
            return invalid(format!("step `{shown}`: a script has no inputs"), "write them to `env`");
        }
        (true, Some(reference)) if is_relative(&reference) => {
            return invalid(format!("step `{shown}` {RELATIVE_STEP}"), RELATIVE_STEP_HELP);
        }
        (true, Some(reference)) => OperatorAction::Step { reference, inputs },
        _ => return invalid(format!("step `{shown}` needs either `script` or `step`"), "set one of the two"),
    };
    let exports = checked_exports(exports, position, &action)
        .map_err(|(message, help)| (format!("step `{shown}`: {message}"), help))?;
    let timeout = match timeout.as_deref().map(muster_job::GoDuration::parse) {
        None => DEFAULT_STEP_TIMEOUT,
        Some(Some(muster_job::GoDuration::NonNegative(timeout))) if !timeout.is_zero() => timeout,
        Some(_) => return invalid(format!("step `{shown}`: the timeout is not valid"), "write for example \"90s\""),
    };
    Ok(OperatorStep { name, action, env, timeout, required: required.unwrap_or(required_by_default), exports })
}

fn is_relative(reference: &str) -> bool {
    reference.trim().starts_with('.')
}

fn checked_exports(
    configured: BTreeMap<String, String>,
    position: Position,
    action: &OperatorAction,
) -> Result<BTreeMap<String, ExportKind>, (String, String)> {
    if configured.is_empty() {
        return Ok(BTreeMap::new());
    }
    if position != Position::Before || matches!(action, OperatorAction::Script(_)) {
        let message = "only a `step` before the job can have `exports`".to_owned();
        return Err((
            message,
            "move the step to [[runners.steps.before]], and use `step` instead of `script`".to_owned(),
        ));
    }
    let kind = |(name, kind): (String, String)| {
        if !is_identifier(&name) {
            let message = format!("`{}` is not a valid variable name", shown_name(&name));
            return Err((message, "rename the variable".to_owned()));
        }
        match ExportKind::parse(&kind) {
            Some(kind) => Ok((name, kind)),
            None => {
                let message = format!("`{}` is not a valid kind of the export {name}", shown_name(&kind));
                Err((message, format!("write {}", ExportKind::NAMES)))
            }
        }
    };
    configured.into_iter().map(kind).collect()
}
