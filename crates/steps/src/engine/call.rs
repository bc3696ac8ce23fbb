//! Calls one step: finds its file, evaluates its inputs, runs it and collects its outputs (docs/spec/steps.md, section 4.3).

use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use muster_agent_api::development::{FakeStep, matches_path};
use muster_agent_api::result::{CallRecord, StepNode};
use muster_job::{StepLimits, StepReference};
use serde_json::{Map, Value};

use super::bundled;
use super::disk_limits::call_with_limits;
use super::exec::ValueFiles;
use super::inputs::{
    checked_inputs, expand_key, expand_keys, expand_values, expanded_inputs, expression_error, with_defaults,
};
use super::pauses::PausableStep;
use super::reference::{Target, clean, is_dynamic};
use super::results::{ExecResult, reference};
use super::sequence::Sequence;
use super::user_steps::{Frame, MAX_DEPTH, Record, RecordedCalls, StepError, UserSteps};
use crate::definition::{Body, Call, Kind, Outputs, Parameter, STEP_FILE_LIMIT, Spec, StepEntry, StepFile};
use crate::expression::{Scope, to_text};
use crate::log::{Log, Stream};
use crate::remote::{ReferenceError, RemoteStep};

/// Index of a rule of the step policy, and the limits of the rule.
pub(super) type RuleLimits<'r> = (usize, &'r StepLimits);

pub(super) struct Invocation<'i> {
    pub(super) file: &'i StepFile,
    dir: &'i Path,
    pub(super) inputs: Map<String, Value>,
    pub(super) caller_input_names: Vec<String>,
    /// Variables that take precedence over exports, without the `env` of the step file.
    env: IndexMap<String, String>,
    depth: usize,
    /// Empty for a step file that no other step calls.
    pub(super) name: &'i str,
    pub(super) path: &'i str,
    pub(super) reference: Value,
    /// Reference of the step as its caller wrote it: the expressions are not evaluated.
    pub(super) text: &'i str,
}

/// Details of a step for the results file. `call_env` and `env` lack the exports of the step itself.
#[derive(Default)]
pub(super) struct Details {
    /// Environment without the `env` of the file.
    pub(super) call_env: IndexMap<String, String>,
    /// Environment with the `env` of the file.
    pub(super) env: IndexMap<String, String>,
    /// Process of the step. `None` means that the step needs no process, or that its command is invalid.
    pub(super) exec: Option<ExecResult>,
    pub(super) exports: IndexMap<String, String>,
    pub(super) inner: Record,
}

impl UserSteps<'_> {
    pub(super) async fn run_entry(
        &self,
        entry: &StepEntry,
        path: &str,
        frame: &Frame<'_>,
        record: &mut Record,
    ) -> Result<Map<String, Value>, StepError> {
        if frame.depth >= MAX_DEPTH {
            return Err(StepError::Call(format!("steps are nested more than {MAX_DEPTH} levels deep")));
        }
        let scope = self.entry_scope(entry, frame);
        let inputs = match &entry.call {
            Call::Script(text) => Map::from_iter([("script".to_owned(), Value::String(text.clone()))]),
            _ => expand_keys(&entry.inputs, &scope)?,
        };
        let fake = self.fake(entry, path, &scope)?;
        let (file, dir, limits) = match fake {
            Some(fake) => (fake_file(fake), PathBuf::new(), None),
            None => {
                let (target, limits) = self.target(entry, &scope, frame.dir)?;
                let (file, dir) = match target {
                    Target::Script => (script_file(), PathBuf::new()),
                    Target::Bundled(name) => (bundled::file(self, &name)?, PathBuf::new()),
                    Target::File { dir, names } => (load(&dir, &names).await?, dir),
                    Target::Remote(step) => {
                        // Boxed, because the future is large.
                        let fetched = Box::pin(self.fetch(&step.source)).await;
                        let dir = fetched.map_err(|error| self.fetch_error(entry, error))?.join(step.dir);
                        (load(&dir, &step.names).await?, dir)
                    }
                };
                (file, dir, limits)
            }
        };
        let caller_input_names = inputs.keys().cloned().collect();
        let inputs = match fake {
            // The specification of a faked step is not known.
            Some(_) => expanded_inputs(&inputs, &scope)?,
            None => checked_inputs(&file, &inputs, self.inputs_of_replaced_builtin(frame.depth), &scope)?,
        };
        let remote_text = if let Call::Remote(location) = &entry.call { location.to_string() } else { String::new() };
        let invocation = Invocation {
            file: &file,
            dir: &dir,
            inputs,
            caller_input_names,
            env: self.entry_env(entry, frame, &scope)?,
            depth: frame.depth + 1,
            name: &entry.name,
            path,
            reference: reference(&entry.call, self.settings.dialect),
            text: match &entry.call {
                Call::Script(_) => "script",
                Call::Step(text) => text,
                Call::Remote(_) => &remote_text,
            },
        };
        match limits {
            None => self.call(invocation, record).await,
            // Boxed, so that this future takes less memory for the many steps without their own limits.
            Some(limits) => Box::pin(call_with_limits(self, invocation, limits, record)).await,
        }
    }

    /// Returns the fake that replaces a step.
    fn fake(&self, entry: &StepEntry, path: &str, scope: &Scope) -> Result<Option<&FakeStep>, StepError> {
        if self.fakes().is_empty() {
            return Ok(None);
        }
        let Call::Step(text) = &entry.call else { return Ok(find_fake(self.fakes(), path, None)) };
        let site = "failed to load: fetching step: interpolating reference";
        let reference = scope.expand_text(text).map_err(expression_error(site))?;
        Ok(find_fake(self.fakes(), path, Some(&reference)))
    }

    fn fakes(&self) -> &[FakeStep] {
        self.development.map(|development| development.fakes.as_slice()).unwrap_or_default()
    }

    fn target(
        &self,
        entry: &StepEntry,
        scope: &Scope,
        dir: &Path,
    ) -> Result<(Target, Option<RuleLimits<'_>>), StepError> {
        let text = match &entry.call {
            Call::Script(_) => return Ok((Target::Script, self.check_policy(&StepReference::Script)?)),
            Call::Remote(location) => {
                let step = self.step_at(location, scope)?;
                let limits = self.check_policy(&step.reference())?;
                return Ok((Target::Remote(step), limits));
            }
            Call::Step(text) => text,
        };
        let site = "failed to load: fetching step: interpolating reference";
        let reference = scope.expand_text(text).map_err(expression_error(site))?;
        // In the legacy dialect (step-runner 0.11.0), a dynamic reference is relative to the directory of the agent
        // (docs/spec/steps.md, section 2.5).
        let base = if self.is_legacy() && is_dynamic(text) { Path::new("") } else { dir };
        let target = Target::parse(&reference, base, self.settings.dialect)?;
        let step = match &target {
            // The policy applies to the source that is fetched, not to the author's spelling of the reference.
            Target::Remote(step) => Some(step.reference()),
            Target::Script | Target::Bundled(_) | Target::File { .. } => StepReference::parse(&reference),
        };
        // A step that needs no rule has the limits of its caller.
        let limits = match step.and_then(|step| self.as_called(step, base)) {
            Some(step) => self.check_policy(&step)?,
            None => None,
        };
        Ok((target, limits))
    }

    /// Checks a step against the operator's policy. Returns the limits of the rule that allows the step.
    pub(super) fn check_policy(&self, step: &StepReference) -> Result<Option<RuleLimits<'_>>, StepError> {
        let Some(policy) = self.policy else { return Ok(None) };
        policy.check_call(step).map_err(|violation| StepError::Refused(Box::new(violation)))?;
        Ok(policy.limits_of(step))
    }

    /// Returns the step that a step file in `base` calls, in the form that a policy uses. A local step in the project
    /// is relative to the project.
    ///
    /// `None` means that the step needs no rule, because it came with its caller from outside of the project: in the same
    /// repository or image, or below the caller's directory on the machine.
    fn as_called(&self, step: StepReference, base: &Path) -> Option<StepReference> {
        let StepReference::Local { path } = &step else { return Some(step) };
        // In the legacy dialect, an empty base is the directory of the agent.
        let base = if base.as_os_str().is_empty() { Path::new("/proc/self/cwd") } else { base };
        let absolute = clean(&base.join(path));
        let is_from_outside = !base.starts_with(self.work_dir) && base != Path::new("/proc/self/cwd");
        let source = || self.remote.source_dir(&clean(base)).unwrap_or_else(|| clean(base));
        let path = match absolute.strip_prefix(self.work_dir) {
            Ok(inside) => Path::new(".").join(inside),
            Err(_) if path.starts_with('.') && is_from_outside && absolute.starts_with(source()) => return None,
            Err(_) => absolute,
        };
        Some(StepReference::Local { path: path.to_string_lossy().into_owned() })
    }

    /// Checks a reference without expressions before its sequence starts (docs/spec/steps.md, section 1.5).
    ///
    /// # Errors
    /// The reference has a form that cannot be called.
    pub(super) fn check_reference(&self, entry: &StepEntry, path: &str) -> Result<(), StepError> {
        let reference = if let Call::Step(text) = &entry.call { Some(&**text) } else { None };
        let dialect = self.settings.dialect;
        match &entry.call {
            _ if find_fake(self.fakes(), path, reference).is_some() => Ok(()),
            // Whether a local or bundled step exists is checked right before it runs.
            Call::Step(text) if !is_dynamic(text) => match Target::parse(text, Path::new(""), dialect) {
                Err(ReferenceError::Bundled(_) | ReferenceError::Builtin(..)) | Ok(_) => Ok(()),
                Err(error) => Err(error.into()),
            },
            Call::Remote(location) if !location.is_dynamic() => Ok(RemoteStep::at(location, dialect).map(drop)?),
            Call::Remote(_) | Call::Step(_) | Call::Script(_) => Ok(()),
        }
    }

    /// Runs a step file that no other step calls, with default inputs. Returns its outputs.
    ///
    /// # Errors
    /// An input has no default, or the step fails.
    pub(super) async fn run_file(
        &self,
        path: &str,
        file: &StepFile,
        nodes: &mut Vec<StepNode>,
    ) -> Result<Map<String, Value>, StepError> {
        let invocation = Invocation {
            file,
            dir: self.work_dir,
            inputs: with_defaults(file, Map::new())?,
            caller_input_names: Vec::new(),
            env: IndexMap::new(),
            depth: 0,
            name: "",
            path,
            reference: Value::Null,
            text: "",
        };
        Box::pin(self.read_lock_file()).await?;
        let mut record = Record::default();
        let result = self.call(invocation, &mut record).await;
        nodes.append(&mut record.nodes);
        if let Some(result) = record.results.first() {
            self.write_results(result).await;
        }
        result
    }

    pub(super) async fn call(
        &self,
        invocation: Invocation<'_>,
        record: &mut Record,
    ) -> Result<Map<String, Value>, StepError> {
        self.mask_sensitive(&invocation.file.spec.inputs, &invocation.inputs);
        let mut details = Details::default();
        if self.records_results() {
            details.call_env = self.full_env(&invocation.env);
            details.env.clone_from(&details.call_env);
        }
        let result = self.perform(&invocation, &mut details).await;
        if let (Ok(outputs), Outputs::Declared(declared)) = (&result, &invocation.file.spec.outputs) {
            self.mask_sensitive(declared, outputs);
        }
        record.nodes.append(&mut details.inner.nodes);
        record.call = match self.recorded_calls {
            RecordedCalls::None => None,
            RecordedCalls::WithoutValues => Some(CallRecord::without_values(invocation.text, &invocation.inputs)),
            RecordedCalls::Complete => {
                let outputs = result.as_ref().ok().cloned().unwrap_or_default();
                Some(self.limit_record(self.call_record(&invocation, &details, &outputs)))
            }
        };
        if self.records_results() {
            let outputs = result.as_ref().cloned().unwrap_or_default();
            record.results.push(self.step_result(invocation, details, result.is_ok(), outputs));
        }
        result
    }

    async fn perform(
        &self,
        invocation: &Invocation<'_>,
        details: &mut Details,
    ) -> Result<Map<String, Value>, StepError> {
        let Invocation { file, dir, inputs, env, depth, path, .. } = invocation;
        let files = self
            .create_value_files()
            .map_err(|error| StepError::System(format!("failed to create the output file: {error}")))?;
        let mut frame = Frame {
            dir,
            env: env.clone(),
            inputs: inputs.clone(),
            steps: Map::new(),
            matrix: Map::new(),
            output_file: files.output.path(),
            export_file: files.export.path(),
            depth: *depth,
            path: (*path).to_owned(),
        };
        if !matches!(file.body, Body::Run { .. }) {
            self.announce(invocation.name);
        }
        let scope = self.scope(&frame);
        for (key, value) in &file.env {
            let key = expand_key(key, &scope)?;
            let site = format!("expand step env: env variable {key:?}");
            let value = scope.expand_text(value).map_err(expression_error(&site))?;
            frame.env.insert(key, value);
        }
        let is_recorded = self.recorded_calls == RecordedCalls::Complete;
        if is_recorded || self.records_results() || self.development.is_some() {
            details.env = self.full_env(&frame.env);
        }
        if let Some(result) = (PausableStep { steps: self, invocation, frame: &frame, details }).before().await {
            return result;
        }
        let result = self.run_body(invocation, &mut frame, &files, details).await;
        PausableStep { steps: self, invocation, frame: &frame, details }.after(result).await
    }

    async fn run_body(
        &self,
        invocation: &Invocation<'_>,
        frame: &mut Frame<'_>,
        files: &ValueFiles,
        details: &mut Details,
    ) -> Result<Map<String, Value>, StepError> {
        let Invocation { file, inputs, .. } = invocation;
        match &file.body {
            Body::Script => {
                let text = inputs.get("script").map(to_text).unwrap_or_default();
                self.script(&text, &frame.env, &mut details.exec).await.map(|()| Map::new())
            }
            Body::Exec { command, work_dir } => {
                self.exec(command, work_dir.as_deref(), frame, &mut details.exec).await?;
                self.collect(file, files, &mut details.exports).await
            }
            Body::Bundled(name) => bundled::run(self, name, frame, &mut details.exec).await,
            Body::Fake(fake) => self.run_fake(fake, &mut details.exports),
            Body::Run { entries, .. } => {
                let inner = Frame {
                    env: frame.env.clone(),
                    inputs: frame.inputs.clone(),
                    steps: Map::new(),
                    matrix: Map::new(),
                    path: frame.path.clone(),
                    ..*frame
                };
                frame.steps = Sequence::run(self, entries, inner, &mut details.inner).await?;
                self.sequence_outputs(file, frame)
            }
        }
    }

    fn run_fake(
        &self,
        fake: &FakeStep,
        exported: &mut IndexMap<String, String>,
    ) -> Result<Map<String, Value>, StepError> {
        self.log.write(Stream::Output, fake.log.as_bytes());
        self.log.end_lines();
        if fake.exit_code != 0 {
            return Err(StepError::Exit(fake.exit_code));
        }
        exported.extend(fake.exports.clone());
        self.export(exported);
        Ok(fake.outputs.clone())
    }

    fn sequence_outputs(&self, file: &StepFile, frame: &Frame<'_>) -> Result<Map<String, Value>, StepError> {
        let Body::Run { outputs, delegate, .. } = &file.body else { return Ok(Map::new()) };
        if file.spec.outputs == Outputs::Delegate {
            let name = delegate.as_deref().unwrap_or_default();
            let outputs = frame.steps.get(name).and_then(|step| step.get("outputs")?.as_object().cloned());
            return outputs
                .ok_or_else(|| StepError::Step(format!("outputs: delegate: could not find step with name {name:?}")));
        }
        expand_values(outputs, &self.scope(frame), |key| format!("outputs: expand {key:?}"))
    }

    fn entry_env(
        &self,
        entry: &StepEntry,
        frame: &Frame<'_>,
        scope: &Scope,
    ) -> Result<IndexMap<String, String>, StepError> {
        // In the legacy dialect, a step keeps the variables that exist when it starts (docs/spec/steps.md, section 4.2).
        let mut env = if self.is_legacy() { self.full_env(&frame.env) } else { frame.env.clone() };
        for (key, value) in &entry.env {
            let key = expand_key(key, scope)?;
            let site = format!("failed to load: env {key:?}");
            let value = scope.expand_text(value).map_err(expression_error(&site))?;
            env.insert(key, value);
        }
        Ok(env)
    }

    fn mask_sensitive(&self, parameters: &IndexMap<String, Parameter>, values: &Map<String, Value>) {
        let sensitive = parameters.iter().filter(|(_, parameter)| parameter.is_sensitive);
        sensitive.filter_map(|(name, _)| values.get(name)).for_each(|value| self.log.add_sensitive(value));
    }
}

fn script_file() -> StepFile {
    let script = Parameter { kind: Kind::String, default: None, is_sensitive: false };
    let spec = Spec { inputs: IndexMap::from_iter([("script".to_owned(), script)]), outputs: Outputs::default() };
    StepFile { spec, body: Body::Script, env: IndexMap::new() }
}

fn find_fake<'f>(fakes: &'f [FakeStep], path: &str, reference: Option<&str>) -> Option<&'f FakeStep> {
    let reference = reference.map(str::trim);
    fakes.iter().find(|fake| reference == Some(&*fake.step) || matches_path(&fake.step, path))
}

fn fake_file(fake: &FakeStep) -> StepFile {
    StepFile { spec: Spec::default(), body: Body::Fake(Box::new(fake.clone())), env: IndexMap::new() }
}

pub(super) async fn load(dir: &Path, names: &[String]) -> Result<StepFile, StepError> {
    let mut result = Err(StepError::Step(format!("failed to load: {:?} has no step file", dir.display())));
    for name in names {
        let path = dir.join(name);
        let failed =
            |error: String| StepError::Step(format!("failed to load: loading file {:?}: {error}", path.display()));
        match muster_files::read(path.clone(), STEP_FILE_LIMIT).await {
            Ok(text) => return StepFile::parse(&text).map_err(|error| failed(error.to_string())),
            Err(error) => {
                let is_missing = error.is_missing();
                result = Err(failed(format!("reading file: {}", error.problem)));
                if !is_missing {
                    break;
                }
            }
        }
    }
    result
}
