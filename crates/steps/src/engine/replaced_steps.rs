//! Runs steps of the operator in place of built-in steps.
//!
//! Such a step gets only the inputs of the built-in step that its step file declares, and the inputs that the operator sets.

use std::sync::Arc;

use indexmap::IndexMap;
use muster_agent_api::result::StepNode;
use serde_json::{Map, Value};

use super::Job;
use super::settings::{LOG_LEVEL, Settings};
use super::user_steps::{StepError, UserSteps};
use crate::builtin::{Offer, Replacement};
use crate::definition::{Call, Extension, StepEntry, StepFile};
use crate::expression::Dialect;

/// Runs the operator's step with the inputs that the built-in step offers. Adds its node to `nodes`.
///
/// # Errors
/// [`StepError`] of the operator's step.
pub(super) async fn run(
    steps: &mut UserSteps<'_>,
    path: &str,
    replacement: &Replacement,
    offer: Offer,
    nodes: &mut Vec<StepNode>,
) -> Result<Map<String, Value>, StepError> {
    // The author of the job must neither change how the step is read, nor get a file with its results.
    steps.settings = Settings { dialect: Dialect::Current, is_debug: false, ..steps.settings };
    offer.sensitive.into_iter().for_each(|text| steps.log.add(&Value::String(text)));
    steps.offered = Arc::new(offer.inputs);
    let entry = StepEntry {
        name: replacement.builtin.replace('/', "_"),
        env: IndexMap::new(),
        inputs: replacement.with.clone(),
        call: Call::Step(replacement.step.clone()),
        extension: Extension::default(),
    };
    steps.run_file(path, &StepFile::of_list(vec![entry]), nodes).await
}

/// Gives the processes of the steps the environment of a script of the job.
pub(super) fn set_environment_of_script(steps: &mut UserSteps<'_>, job: &impl Job) {
    let mut environment = job.step_environment();
    environment.push((LOG_LEVEL.into(), steps.settings.log_level.into()));
    steps.environment = environment.into();
}
