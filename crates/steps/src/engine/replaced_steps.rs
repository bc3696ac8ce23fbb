//! Runs steps of the operator in place of built-in steps.

use std::sync::Arc;

use indexmap::IndexMap;
use muster_agent_api::result::StepNode;
use serde_json::{Map, Value};

use super::user_steps::{StepError, UserSteps};
use crate::builtin::{Offer, Replacement};
use crate::definition::{Call, Extension, StepEntry, StepFile};

/// Runs the operator's step with its own inputs, and the offered inputs that its step file declares.
pub(super) async fn run(
    steps: &mut UserSteps<'_>,
    path: &str,
    replacement: &Replacement,
    offer: Offer,
    nodes: &mut Vec<StepNode>,
) -> Result<Map<String, Value>, StepError> {
    offer.sensitive.into_iter().for_each(|text| steps.log.add_sensitive(&Value::String(text)));
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
