//! Requests to an agent: a single step, or the scripts of a saved job.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use muster_agent_api::plan::{Call, JobPlan, Step, job_steps};
use muster_agent_api::step_runner::{Job, RunRequest};
use muster_config::settings::RunnerSettings;
use muster_executor::{Directories, Slot, SlotKey};
use muster_job::{Secret, Variable};
use muster_manager::lower::{Certificates, DockerFiles, JobContext, LowerError, lower};
use muster_runner_api::payload::JobPayload;
use muster_steps::definition::{Kind, StepFile, StepFileError, parse_value};
use serde_json::{Map, Value, json};
use url::Url;

/// Names of the step file in a directory.
const STEP_FILES: [&str; 2] = ["func.yml", "step.yml"];

#[derive(Debug, thiserror::Error)]
pub(super) enum RequestError {
    #[error("{0:?} is not of the form NAME=VALUE")]
    Pair(String),
    #[error("failed to read {}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{} is not a valid step file", path.display())]
    StepFile { path: PathBuf, source: StepFileError },
    #[error("{0} is not a valid value: {1}")]
    Value(String, StepFileError),
    #[error("{} is not a valid job payload: {message}", path.display())]
    Payload { path: PathBuf, message: String },
    #[error("failed to prepare the job")]
    Lower(#[from] LowerError),
    #[error("{}: the path is not UTF-8; rename it", .0.display())]
    NotUtf8(PathBuf),
    #[error("{} is neither a directory with a step nor a step file; name a directory, or a file that ends with .yml or .yaml", .0.display())]
    NotStepFile(PathBuf),
    #[error("failed to encode the request as JSON")]
    Json(#[from] serde_json::Error),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) name: String,
    pub(super) value: String,
}

impl std::str::FromStr for Pair {
    type Err = RequestError;

    fn from_str(text: &str) -> Result<Self, RequestError> {
        let (name, value) = text.split_once('=').ok_or_else(|| RequestError::Pair(text.to_owned()))?;
        Ok(Self { name: name.to_owned(), value: value.to_owned() })
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct StepCall {
    /// Name of the step in the log and in the result.
    pub(super) name: String,
    /// Reference of the step. Local paths are absolute.
    pub(super) reference: String,
    pub(super) inputs: Map<String, Value>,
    pub(super) env: Map<String, Value>,
}

impl StepCall {
    /// Returns the call of `step`: a directory, a step file, or a reference to another step.
    ///
    /// An input that the step file declares as a string is used as it is. Any other input is parsed as YAML.
    pub(super) fn new(step: &str, inputs: &[Pair], env: &[Pair]) -> Result<Self, RequestError> {
        let path = Path::new(step);
        let (reference, file) = if path.exists() {
            let path = super::local::absolute(path);
            let file = step_file(&path)?;
            let text = path.to_str().ok_or_else(|| RequestError::NotUtf8(path.clone()))?;
            (text.to_owned(), Some(file))
        } else {
            (step.to_owned(), None)
        };
        let spec = match &file {
            Some(path) => Some(read_step_file(path)?.spec),
            None => None,
        };
        let is_string = |name: &str| {
            spec.as_ref().and_then(|spec| spec.inputs.get(name)).is_some_and(|input| input.kind == Kind::String)
        };
        let value = |Pair { name, value }: &Pair| {
            let value = match is_string(name) {
                true => Value::String(value.clone()),
                false => {
                    parse_value(name, value).map_err(|error| RequestError::Value(format!("{name}={value}"), error))?
                }
            };
            Ok((name.clone(), value))
        };
        Ok(Self {
            name: name(step),
            reference,
            inputs: inputs.iter().map(value).collect::<Result<_, RequestError>>()?,
            env: env.iter().map(|Pair { name, value }| (name.clone(), json!(value))).collect(),
        })
    }

    pub(super) fn plan(&self, work_dir: &Path) -> JobPlan {
        let Self { name, reference, inputs, env } = self;
        let definition = json!({"run": [{"name": name, "step": reference, "inputs": inputs, "env": env}]});
        let work_dir = work_dir.to_string_lossy().into_owned();
        JobPlan {
            project_dir: work_dir.clone(),
            builds_dir: work_dir,
            steps: vec![Step::new("run", "", Call::StepFile(format!("{{}}\n---\n{definition}")))],
            bare: true,
            output_limit: u64::MAX,
            ..JobPlan::default()
        }
    }
}

/// Returns the step file at a path: a file in the directory, or the path itself.
fn step_file(path: &Path) -> Result<PathBuf, RequestError> {
    if path.is_dir() {
        let file = STEP_FILES.iter().map(|name| path.join(name)).find(|file| file.exists());
        return file.ok_or_else(|| RequestError::NotStepFile(path.to_owned()));
    }
    let is_yaml = path.extension().is_some_and(|extension| extension == "yml" || extension == "yaml");
    if is_yaml { Ok(path.to_owned()) } else { Err(RequestError::NotStepFile(path.to_owned())) }
}

fn read_step_file(path: &Path) -> Result<StepFile, RequestError> {
    let failed = |source| RequestError::File { path: path.to_owned(), source };
    let text = std::fs::read_to_string(path).map_err(failed)?;
    StepFile::parse(&text).map_err(|source| RequestError::StepFile { path: path.to_owned(), source })
}

/// Returns a name for a step: the last part of its reference, as an identifier.
fn name(reference: &str) -> String {
    let reference = reference.split('@').next().unwrap_or_default().trim_end_matches('/');
    let path = super::local::absolute(Path::new(reference));
    let is_step_file = path.file_name().is_some_and(|name| STEP_FILES.iter().any(|file| name == *file));
    let path = if is_step_file { path.parent().unwrap_or(&path) } else { &path };
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let name: String = stem.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    match name.chars().next() {
        None => "step".to_owned(),
        Some(first) if first.is_ascii_digit() => format!("_{name}"),
        Some(_) => name,
    }
}

/// Sets whether the result of a plan contains the complete call of each step.
pub(super) fn record_calls(plan: &mut JobPlan, is_recorded: bool) {
    plan.record_calls = is_recorded;
    plan.development.full_records = is_recorded;
}

pub(super) fn request(id: &str, plan: &JobPlan, variables: &[Variable]) -> Result<RunRequest, RequestError> {
    let variables = variables.iter().map(|variable| muster_agent_api::step_runner::Variable {
        key: variable.key.clone(),
        value: variable.value.clone(),
        file: variable.file,
        masked: variable.masked,
    });
    Ok(RunRequest {
        id: id.to_owned(),
        work_dir: plan.project_dir.clone(),
        job: Some(Job { variables: variables.collect(), build_dir: plan.project_dir.clone() }),
        steps: job_steps(plan)?,
        ..RunRequest::default()
    })
}

/// Returns the plan and variables of a saved answer to a job request.
///
/// The scripts run in `work_dir`. Sources, caches, artifacts, images, services and hooks are ignored.
pub(super) fn saved_job(path: &Path, work_dir: &Path) -> Result<(JobPlan, Vec<Variable>), RequestError> {
    let body = std::fs::read(path).map_err(|source| RequestError::File { path: path.to_owned(), source })?;
    let invalid = |message| RequestError::Payload { path: path.to_owned(), message };
    let mut payload = JobPayload::read(&body).map_err(invalid)?;
    if let Some(message) = payload.decode_error() {
        return Err(invalid(message.to_owned()));
    }
    payload.image = None;
    payload.services.clear();
    payload.cache.clear();
    payload.dependencies.clear();
    payload.artifacts.clear();
    payload.hooks.clear();
    let work_dir_text = work_dir.to_str().ok_or_else(|| RequestError::NotUtf8(work_dir.to_owned()))?;
    for (key, value) in [("GIT_STRATEGY", "none"), ("GIT_CLONE_PATH", work_dir_text)] {
        payload.variables.push(Variable::public(key, value));
    }
    let url =
        coordinator_url(&payload).map_err(|error| invalid(format!("CI_SERVER_URL is not a valid URL: {error}")))?;
    let runner = RunnerSettings {
        executor: "shell".to_owned(),
        custom_build_dir: Some(true),
        output_limit: u64::MAX,
        ..RunnerSettings::new(url, Secret::new("local"), 0)
    };
    let builds = work_dir.parent().unwrap_or(work_dir).to_owned();
    let key = SlotKey { runner: "local".to_owned(), project_id: payload.job_info.project_id };
    let context = JobContext {
        // The job has no caches.
        directories: Directories { cache: builds.clone(), builds, shared: false },
        slot: Slot { id: 0, project_slot: 0, key },
        runner: Arc::new(runner),
        host_name: "localhost".to_owned(),
        reschedule_notes: Vec::new(),
        connection_lines: Vec::new(),
        suspend_support: Err(String::new()),
        certificates: Certificates::default(),
        docker: DockerFiles::default(),
        share: None,
        cache_objects: BTreeMap::new(),
        cache_chunks: BTreeMap::new(),
        secrets: Vec::new(),
    };
    let job = lower(&payload, &context)?;
    Ok((job.plan, job.variables))
}

/// Returns the URL of the job's coordinator. Muster itself does not connect to it.
fn coordinator_url(payload: &JobPayload) -> Result<Url, url::ParseError> {
    let variable = payload.variables.iter().rev().find(|variable| variable.key == "CI_SERVER_URL");
    Url::parse(variable.map_or("http://localhost", |variable| &variable.value))
}
