//! Calls one step: finds its file, evaluates its inputs, runs it and collects its outputs (docs/spec/steps.md, section 4.3).

use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use muster_agent_api::result::StepNode;
use serde_json::{Map, Value};

use super::user_steps::{Frame, MAX_DEPTH, StepError, UserSteps};
use crate::definition::{Body, Call, Outputs, StepEntry, StepFile};
use crate::expression::{expand, expand_text};
use muster_files::Limit;

/// Name of the step file in a step's directory.
const STEP_FILE: &str = "step.yml";
const STEP_FILE_LIMIT: Limit = Limit { bytes: 1024 * 1024, remedy: "split the step into several" };

impl UserSteps<'_> {
    /// Runs one step of a sequence. Returns its outputs.
    pub(super) async fn run_entry(
        &self,
        entry: &StepEntry,
        frame: &Frame<'_>,
        nodes: &mut Vec<StepNode>,
    ) -> Result<Map<String, Value>, StepError> {
        if frame.depth >= MAX_DEPTH {
            return Err(StepError::Step(format!("steps are nested more than {MAX_DEPTH} levels deep")));
        }
        let scope = self.scope(frame);
        let reference = match &entry.call {
            Call::Script(text) => {
                let text =
                    expand_text(text, &scope).map_err(expression_error("failed to load: expand input \"script\""))?;
                return self.script(&text, &self.entry_env(entry, frame, &scope)?).await.map(|()| Map::new());
            }
            Call::Unsupported(kind) => {
                return Err(StepError::Step(format!(
                    "{kind} are not supported; keep the step in the repository and call it as `./directory`"
                )));
            }
            Call::Step(reference) => expand_text(reference, &scope)
                .map_err(expression_error("failed to load: fetching step: interpolating reference"))?,
        };
        if let Some(name) = reference.strip_prefix("builtin://") {
            // The manager uses built-in steps in a job's plan. A `run:` list must not call them, because their inputs
            // are not checked.
            return Err(StepError::Step(format!("there is no built-in step {name:?}")));
        }
        let path = local_path(&reference, frame.dir)?;
        let file = load(&path).await?;
        let inputs = self.checked_inputs(entry, &file, &scope)?;
        let env = self.entry_env(entry, frame, &scope)?;
        self.call(&file, path.parent().unwrap_or(Path::new("/")), inputs, env, frame.depth + 1, nodes).await
    }

    /// Runs a step file that is not called by another step. Its inputs have their defaults.
    ///
    /// # Errors
    /// An input has no default, or the step fails.
    pub(super) async fn run_file(&self, file: &StepFile, nodes: &mut Vec<StepNode>) -> Result<(), StepError> {
        let inputs = with_defaults(file, Map::new())?;
        self.call(file, self.work_dir, inputs, IndexMap::new(), 0, nodes).await.map(drop)
    }

    async fn call(
        &self,
        file: &StepFile,
        dir: &Path,
        inputs: Map<String, Value>,
        mut env: IndexMap<String, String>,
        depth: usize,
        nodes: &mut Vec<StepNode>,
    ) -> Result<Map<String, Value>, StepError> {
        let files = self
            .value_files()
            .map_err(|error| StepError::System(format!("failed to create the output file: {error}")))?;
        let mut frame = Frame {
            dir,
            env: env.clone(),
            inputs,
            steps: Map::new(),
            output_file: files.output.path(),
            export_file: files.export.path(),
            depth,
        };
        let scope = self.scope(&frame);
        for (key, value) in &file.env {
            let value = expand_text(value, &scope)
                .map_err(expression_error(&format!("expand step env: env variable {key:?}")))?;
            env.insert(key.clone(), value);
        }
        frame.env = env;
        match &file.body {
            Body::Exec { command, work_dir } => {
                self.exec(command, work_dir.as_deref(), &frame).await?;
                self.collect(file, &files).await
            }
            Body::Run { entries, outputs, delegate } => {
                let inner = Frame { env: frame.env.clone(), inputs: frame.inputs.clone(), steps: Map::new(), ..frame };
                frame.steps = self.run_sequence(entries, inner, nodes).await?;
                match (&file.spec.outputs, delegate) {
                    (Outputs::Delegate, Some(name)) => {
                        let outputs = frame.steps.get(name).and_then(|step| step.get("outputs")?.as_object().cloned());
                        outputs.ok_or_else(|| {
                            StepError::Step(format!("outputs: delegate: could not find step with name {name:?}"))
                        })
                    }
                    _ => self.expand_map(outputs, &self.scope(&frame), |key| format!("outputs: expand {key:?}")),
                }
            }
        }
    }

    fn inputs(&self, entry: &StepEntry, scope: &Value) -> Result<Map<String, Value>, StepError> {
        self.expand_map(&entry.inputs, scope, |key| format!("failed to load: expand input {key:?}"))
    }

    /// Returns the inputs for a step file, completed with its defaults.
    fn checked_inputs(
        &self,
        entry: &StepEntry,
        file: &StepFile,
        scope: &Value,
    ) -> Result<Map<String, Value>, StepError> {
        if let Some(name) = entry.inputs.keys().find(|name| !file.spec.inputs.contains_key(*name)) {
            return Err(StepError::Step(format!("failed to load: step does not accept input with name {name:?}")));
        }
        with_defaults(file, self.inputs(entry, scope)?)
    }

    fn entry_env(
        &self,
        entry: &StepEntry,
        frame: &Frame<'_>,
        scope: &Value,
    ) -> Result<IndexMap<String, String>, StepError> {
        let mut env = frame.env.clone();
        for (key, value) in &entry.env {
            let value = expand_text(value, scope).map_err(expression_error(&format!("failed to load: env {key:?}")))?;
            env.insert(key.clone(), value);
        }
        Ok(env)
    }

    fn expand_map(
        &self,
        map: &Map<String, Value>,
        scope: &Value,
        description: impl Fn(&str) -> String,
    ) -> Result<Map<String, Value>, StepError> {
        let expanded = |(key, value): (&String, &Value)| {
            Ok((key.clone(), expand(value, scope).map_err(expression_error(&description(key)))?))
        };
        map.iter().map(expanded).collect()
    }
}

/// Adds the step's defaults to the inputs that are not given.
fn with_defaults(file: &StepFile, mut inputs: Map<String, Value>) -> Result<Map<String, Value>, StepError> {
    for (name, parameter) in &file.spec.inputs {
        if inputs.contains_key(name) {
            continue;
        }
        let default = parameter
            .default
            .clone()
            .ok_or_else(|| StepError::Step(format!("failed to load: input {name:?} required, but not defined")))?;
        inputs.insert(name.clone(), default);
    }
    Ok(inputs)
}

/// Returns a function that adds a description of the text to the error of an expression in that text.
pub(super) fn expression_error(description: &str) -> impl FnOnce(crate::expression::ExpressionError) -> StepError {
    let description = description.to_owned();
    move |source| StepError::Expression { description, source }
}

/// Returns the path of the step file to which a local reference refers (docs/spec/steps.md, section 2.4).
fn local_path(reference: &str, dir: &Path) -> Result<PathBuf, StepError> {
    let is_local = reference.starts_with(['.', '/']);
    if !is_local {
        return Err(StepError::Step(format!(
            "failed to load: {reference:?}: only local steps are supported; keep the step in the repository and call it as \
             `./directory`"
        )));
    }
    let path = dir.join(reference);
    let is_file = path.extension().is_some_and(|extension| extension == "yml" || extension == "yaml");
    Ok(if is_file { path } else { path.join(STEP_FILE) })
}

async fn load(path: &Path) -> Result<StepFile, StepError> {
    let failed = |error: String| StepError::Step(format!("failed to load: loading file {:?}: {error}", path.display()));
    let text = muster_files::read(path.to_owned(), STEP_FILE_LIMIT).await;
    let text = text.map_err(|error| failed(format!("reading file: {}", error.problem)))?;
    StepFile::parse(&text).map_err(|error| failed(error.to_string()))
}
