//! A job's own `run:` list, by the engine of `muster-steps`.

use async_trait::async_trait;
use muster_agent_api::result::StepNode;
use muster_steps::engine::{BuiltinSteps, Engine, StepError};
use muster_steps::stop::Stop;
use serde_json::{Map, Value};

use crate::context::Context;
use crate::failure::Failure;

/// Runs the list; a node for each step that was started goes to `nodes`.
pub(crate) async fn run(
    context: &Context,
    list: &Value,
    stop: &Stop,
    nodes: &mut Vec<StepNode>,
) -> Result<(), Failure> {
    context.user_code_starts(stop).await?;
    let engine = Engine::new(
        &context.processes,
        context.log(),
        stop,
        context.grace,
        context.variables.values(&context.temp_dir),
        context.project_dir.clone(),
        context.temp_dir.clone(),
        &NoBuiltins,
    );
    engine.run(list, nodes).await.map_err(|error| failure(&error))
}

/// What a step's error means for the job; the text names the steps on the way.
fn failure(error: &StepError) -> Failure {
    match error.cause() {
        StepError::Exit(code) => Failure::Exit(*code),
        StepError::Signal(signal) => Failure::Signal(*signal),
        StepError::Stopped(cause) => Failure::Stopped(*cause),
        StepError::System(message) => Failure::System(message.clone()),
        _ => Failure::Step(error.to_string()),
    }
}

/// The phases of a job are no steps that an author can call.
struct NoBuiltins;

#[async_trait]
impl BuiltinSteps for NoBuiltins {
    async fn run(&self, _: &str, _: &Map<String, Value>, _: &Stop) -> Option<Result<Map<String, Value>, StepError>> {
        None
    }
}
