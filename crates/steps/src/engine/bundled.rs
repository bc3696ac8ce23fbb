//! Runs the steps that come with the agent: the step that fetches an image, and the steps of the port
//! [`BundledSteps`](crate::bundled::BundledSteps).

use indexmap::IndexMap;
use rustix::process::Signal;
use serde_json::{Map, Value, json};

use super::reference::OCI_FETCH;
use super::results::ExecResult;
use super::user_steps::{Frame, StepError, UserSteps};
use crate::bundled::BundledCall;
use crate::definition::{Body, Kind, Outputs, Parameter, Spec, StepFile};
use crate::expression::to_text;
use crate::failure::PortError;
use crate::log::{Log, Stream};
use crate::remote::{Location, ReferenceError, RemoteStep};
use crate::style;

pub(super) fn file(steps: &UserSteps<'_>, name: &str) -> Result<StepFile, StepError> {
    let spec = match &steps.bundled {
        _ if name == OCI_FETCH => Some(fetch_spec()),
        Some(port) => port.spec(name),
        None => None,
    };
    let spec = spec.ok_or_else(|| ReferenceError::Bundled(name.to_owned()))?;
    Ok(StepFile { spec, body: Body::Bundled(name.to_owned()), env: IndexMap::new() })
}

/// Signals that end a bundled step's shell without a failure, as in gitlab-runner (docs/spec/steps.md, section 8.6).
const TOLERATED_SIGNALS: [Signal; 4] = [Signal::HUP, Signal::PIPE, Signal::USR1, Signal::USR2];

pub(super) async fn run(
    steps: &UserSteps<'_>,
    name: &str,
    frame: &Frame<'_>,
    shell_result: &mut Option<ExecResult>,
) -> Result<Map<String, Value>, StepError> {
    let inputs = &frame.inputs;
    let result = match &steps.bundled {
        _ if name == OCI_FETCH => fetch(steps, inputs).await,
        Some(port) => {
            let print = |message: &str| steps.log.write(Stream::Runner, style::info(message).as_bytes());
            let lookup = |name: &str| steps.variable(name);
            let call = BundledCall { name, inputs, work_dir: steps.work_dir, lookup: &lookup, print: &print };
            match port.commands(&call) {
                Some(Ok(commands)) => run_commands(steps, &commands, frame, shell_result).await,
                Some(Err(error)) => Err(error.into()),
                None => port.run(call, steps.stop).await.map_err(StepError::from),
            }
        }
        None => Err(ReferenceError::Bundled(name.to_owned()).into()),
    };
    match result {
        // In step-runner 0.11.0, these steps are processes, which print their errors.
        Err(error @ (StepError::Step(_) | StepError::Fetch { .. })) if steps.is_legacy() => {
            steps.log.write(Stream::Runner, style::error(&error.to_string()).as_bytes());
            Err(StepError::Exit(1))
        }
        result => result,
    }
}

impl From<PortError> for StepError {
    fn from(error: PortError) -> Self {
        match error {
            PortError::Stopped(cause) => Self::Stopped(cause),
            PortError::Failed(message) => Self::Step(message),
            PortError::System(message) => Self::System(message),
        }
    }
}

async fn run_commands(
    steps: &UserSteps<'_>,
    commands: &str,
    frame: &Frame<'_>,
    shell_result: &mut Option<ExecResult>,
) -> Result<Map<String, Value>, StepError> {
    // The environment of a process cannot contain a name with `=` or NUL, or a value with NUL.
    let is_valid = |(name, value): &(&String, String)| !name.contains(['=', '\0']) && !value.contains('\0');
    let variables = steps.variables.iter().map(|(name, value)| (name, to_text(value))).filter(is_valid);
    let mut env = frame.env.clone();
    env.extend(variables.map(|(name, value)| (name.clone(), value)));
    match steps.script(commands, &env, shell_result).await {
        Err(StepError::Signal(signal)) if TOLERATED_SIGNALS.iter().any(|tolerated| tolerated.as_raw() == signal) => {
            Ok(Map::new())
        }
        result => result.map(|()| Map::new()),
    }
}

fn parameter(default: Option<&str>) -> Parameter {
    Parameter { kind: Kind::String, default: default.map(Value::from), is_sensitive: false }
}

fn fetch_spec() -> Spec {
    let named =
        |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), parameter(None))).collect::<IndexMap<_, _>>();
    let mut inputs = named(&["registry", "repository", "tag"]);
    inputs.insert("step_path".to_owned(), parameter(Some("")));
    Spec { inputs, outputs: Outputs::Declared(named(&["fetched_step_path", "ref"])) }
}

/// Fetches an image. The policy and the lock file apply as they do to a reference to a step in the image.
async fn fetch(steps: &UserSteps<'_>, inputs: &Map<String, Value>) -> Result<Map<String, Value>, StepError> {
    let text = |name: &str| inputs.get(name).map(to_text).unwrap_or_default();
    let location = Location::Oci {
        registry: text("registry"),
        repository: text("repository"),
        tag: text("tag"),
        dir: text("step_path"),
        file: String::new(),
    };
    let step = RemoteStep::at(&location, steps.settings.dialect)?;
    let _ = steps.check_policy(&step.reference())?;
    // Boxed, because the future is large.
    let dir = Box::pin(steps.fetch(&step.source)).await?.join(&step.dir);
    let message = format!("fetched step image={}", step.source);
    steps.log.write(Stream::Runner, style::info(&message).as_bytes());
    let outputs = json!({"fetched_step_path": dir.to_string_lossy(), "ref": step.source.to_string()});
    Ok(outputs.as_object().cloned().unwrap_or_default())
}
