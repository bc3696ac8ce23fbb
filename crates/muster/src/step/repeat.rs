//! `muster step repeat`: runs a step of a result tree again, with its recorded parameters, and compares what it produces.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use muster_agent_api::result::{CallRecord, MASKED, StepNode};
use muster_job::{Variable, error_chain};
use muster_steps::definition::{StepFileError, parse_value};
use serde_json::{Map, Value};

use super::deterministic::{Comparison, compare, compare_outputs};
use super::local::LocalAgent;
use super::request::{Pair, StepCall, record_calls, request};
use super::results::read_tree;
use super::run::{CommandError, JOB_ID, NOT_DETERMINISTIC, print_log, report, run_to_end};

/// Reference of the bundled step that runs a script.
const SCRIPT: &str = "dist://script";

/// Arguments of `muster step repeat`.
#[derive(Debug, clap::Args)]
pub(crate) struct RepeatArgs {
    /// Result tree: a file that `run --results` or `debug --results` wrote, or the output of `muster ci show RUN JOB --results`.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Path of the step to repeat: names of the steps from the outermost to this one, such as `release/pack` [default: the outermost step].
    #[arg(long, value_name = "PATH")]
    step: Option<String>,
    /// Input that replaces the recorded one. Required for a masked value. Can be repeated.
    #[arg(long = "input", value_name = "NAME=VALUE")]
    inputs: Vec<Pair>,
    /// Environment variable that replaces the recorded one. Required for a masked value. Can be repeated.
    #[arg(long, value_name = "NAME=VALUE")]
    env: Vec<Pair>,
    /// Variable of the job, for expressions such as `${{ vars.NAME }}`. Can be repeated.
    #[arg(long = "variable", value_name = "NAME=VALUE")]
    variables: Vec<Pair>,
    /// Fail if the file or directory PATH differs from RECORDED, which an earlier run wrote. Can be repeated.
    #[arg(long, value_name = "PATH=RECORDED")]
    compare: Vec<Pair>,
}

#[derive(Debug, thiserror::Error)]
enum RepeatError {
    #[error(transparent)]
    Command(#[from] CommandError),
    #[error("{0}")]
    Tree(String),
    #[error("the result tree has no step {0:?}; its steps are {1}")]
    Missing(String, String),
    #[error("the result tree has several steps; select one with --step: {0}")]
    Several(String),
    #[error(
        "the result tree has no step with recorded inputs; write a tree with `muster step run --results` or `muster ci show --results`"
    )]
    NoSteps,
    #[error(
        "{0:?} is a built-in step, which cannot be repeated; run the scripts of a saved job with `muster step run --job FILE`"
    )]
    Builtin(String),
    #[error(
        "the recorded parameters of {0:?} were cut because the result tree would be too large; run the step with `muster step run`"
    )]
    Truncated(String),
    #[error("the reference {0:?} contains an expression; repeat the step that contains this one")]
    Dynamic(String),
    #[error("the reference {0:?} is relative to a remote step; repeat the step that contains this one")]
    BelowRemote(String),
    #[error("the value of {name} is masked in the result tree; set it with --{option} {name}=VALUE")]
    Masked { name: String, option: &'static str },
    #[error("{0:?} is not a valid value")]
    Value(String, #[source] StepFileError),
    #[error("failed to compare {} with {}", path.display(), recorded.display())]
    Compare { path: PathBuf, recorded: PathBuf, source: io::Error },
}

pub(super) fn run(args: &RepeatArgs) -> ExitCode {
    crate::runtime::block_on(async {
        match Box::pin(repeat(args)).await {
            Ok(code) => code,
            Err(error) => super::fail(error_chain(&error)),
        }
    })
}

async fn repeat(args: &RepeatArgs) -> Result<ExitCode, RepeatError> {
    let tree = read_tree(&args.file).map_err(RepeatError::Tree)?;
    let work_dir = std::env::current_dir().map_err(CommandError::WorkDir)?;
    let recorded = select(&tree, args.step.as_deref())?;
    let mut plan = step_call(&recorded, args, &work_dir)?.plan(&work_dir);
    record_calls(&mut plan, true);
    let variables: Vec<_> = args.variables.iter().map(|Pair { name, value }| Variable::public(name, value)).collect();
    let request = request(JOB_ID, &plan, &variables).map_err(CommandError::from)?;
    let agent = LocalAgent::start().await.map_err(CommandError::from)?;
    let result = run_to_end(&agent, request, print_log).await.map_err(CommandError::from);
    agent.stop().await;
    let result = result?;
    let mut differences = Vec::new();
    if let (Some(first), Some(second)) = (recorded.last(), outermost_calls(&result.tree).first()) {
        compare_outputs("", first, second, &mut differences);
    }
    for Pair { name: path, value } in &args.compare {
        let (path, recorded) = (PathBuf::from(path), PathBuf::from(value));
        let found = compare(&recorded, &work_dir.join(&path), &path);
        differences.extend(found.map_err(|source| RepeatError::Compare { path, recorded, source })?);
    }
    // With replaced parameters, a difference does not mean that the step is nondeterministic.
    let message = match args.inputs.is_empty() && args.env.is_empty() && args.variables.is_empty() {
        true => NOT_DETERMINISTIC,
        false => "the result differs from the recorded one",
    };
    Ok(report(&Comparison { result, differences }, None, message)?)
}

/// Returns the outermost steps below a node that have a recorded call and are not built into the agent.
fn outermost_calls(node: &StepNode) -> Vec<&StepNode> {
    let is_repeatable = |step: &StepNode| step.call.as_ref().is_some_and(|call| !call.is_builtin());
    node.steps.iter().flat_map(|step| if is_repeatable(step) { vec![step] } else { outermost_calls(step) }).collect()
}

/// Returns whether a built-in step below a node has this name.
fn has_builtin(node: &StepNode, name: &str) -> bool {
    let is_builtin = |step: &StepNode| step.name == name && step.call.as_ref().is_some_and(|call| call.is_builtin());
    node.steps.iter().any(|step| is_builtin(step) || has_builtin(step, name))
}

/// Returns the steps on the path, from the outermost step to the selected step.
fn select<'t>(tree: &'t StepNode, path: Option<&str>) -> Result<Vec<&'t StepNode>, RepeatError> {
    let names = |steps: &[&StepNode]| steps.iter().map(|step| step.name.as_str()).collect::<Vec<_>>().join(", ");
    let mut level = outermost_calls(tree);
    let Some(path) = path else {
        return match level.len() {
            0 => Err(RepeatError::NoSteps),
            1 => Ok(level),
            _ => Err(RepeatError::Several(names(&level))),
        };
    };
    let mut selected = Vec::new();
    for name in path.split('/') {
        let step = level.iter().find(|step| step.name == name).copied();
        let step = step.ok_or_else(|| match has_builtin(tree, name) {
            true => RepeatError::Builtin(name.to_owned()),
            false => RepeatError::Missing(path.to_owned(), names(&level)),
        })?;
        selected.push(step);
        level = outermost_calls(step);
    }
    Ok(selected)
}

/// Returns the recorded call of the last step. Inputs and environment variables in `args` replace the recorded values.
fn step_call(steps: &[&StepNode], args: &RepeatArgs, work_dir: &Path) -> Result<StepCall, RepeatError> {
    let records: Vec<&CallRecord> = steps.iter().filter_map(|step| step.call.as_deref()).collect();
    let (Some(step), Some(record)) = (steps.last(), records.last()) else {
        return Err(RepeatError::NoSteps);
    };
    if record.truncated {
        return Err(RepeatError::Truncated(step.name.clone()));
    }
    let mut inputs = record.inputs.clone();
    for Pair { name, value } in &args.inputs {
        let value = match inputs.get(name) {
            None | Some(Value::String(_)) => Value::String(value.clone()),
            Some(_) => {
                parse_value(name, value).map_err(|error| RepeatError::Value(format!("{name}={value}"), error))?
            }
        };
        inputs.insert(name.clone(), value);
    }
    let mut env = record.env.clone();
    env.extend(args.env.iter().map(|Pair { name, value }| (name.clone(), Value::String(value.clone()))));
    for (values, option) in [(&inputs, "input"), (&env, "env")] {
        if let Some(name) = masked_name(values) {
            return Err(RepeatError::Masked { name, option });
        }
    }
    // Escape the recorded values, so that they are not evaluated again.
    let literal = |values: Map<String, Value>| values.into_iter().map(|(name, value)| (name, escaped(value))).collect();
    let (inputs, env) = (literal(inputs), literal(env));
    Ok(StepCall { name: step.name.clone(), reference: reference(&records, work_dir)?, inputs, env })
}

fn masked_name(values: &Map<String, Value>) -> Option<String> {
    values.iter().find(|(_, value)| value.to_string().contains(MASKED)).map(|(name, _)| name.clone())
}

/// Escapes the expressions in all strings of a value.
fn escaped(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(text.replace("${{", "\\${{")),
        Value::Array(items) => items.into_iter().map(escaped).collect(),
        Value::Object(entries) => entries.into_iter().map(|(key, value)| (key, escaped(value))).collect(),
        other => other,
    }
}

/// Returns the reference of the last step. Local references are relative to the calling step, or to `work_dir` for the
/// first step.
fn reference(records: &[&CallRecord], work_dir: &Path) -> Result<String, RepeatError> {
    let mut base = Some(work_dir.to_owned());
    let mut reference = String::new();
    for record in records {
        let text = record.step.trim();
        if text.contains("${{") {
            return Err(RepeatError::Dynamic(text.to_owned()));
        }
        if text == "script" {
            SCRIPT.clone_into(&mut reference);
        } else if text.starts_with(['.', '/']) {
            let path = base.as_ref().ok_or_else(|| RepeatError::BelowRemote(text.to_owned()))?.join(text);
            reference = path.to_string_lossy().into_owned();
            let is_file = path.extension().is_some_and(|extension| extension == "yml" || extension == "yaml");
            base = if is_file { path.parent().map(Path::to_owned) } else { Some(path) };
        } else {
            text.clone_into(&mut reference);
            base = None;
        }
    }
    Ok(reference)
}
