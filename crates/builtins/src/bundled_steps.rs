//! The steps that come with the agent and that lists of steps may call.

use async_trait::async_trait;
use muster_steps::bundled::{BundledCall, BundledSteps};
use muster_steps::definition::Spec;
use muster_steps::failure::PortError;
use muster_steps::stop::StopToken;
use serde_json::{Map, Value};

use crate::oci_steps::OciSteps;
use crate::script_legacy;

/// The bundled steps of one job.
pub(crate) struct JobSteps {
    pub(crate) oci: OciSteps,
}

#[async_trait]
impl BundledSteps for JobSteps {
    fn spec(&self, name: &str) -> Option<Spec> {
        if name == script_legacy::NAME { Some(script_legacy::spec()) } else { self.oci.spec(name) }
    }

    fn commands(&self, call: &BundledCall<'_>) -> Option<Result<String, PortError>> {
        (call.name == script_legacy::NAME).then(|| script_legacy::commands(call))
    }

    async fn run(&self, call: BundledCall<'_>, stop: &StopToken) -> Result<Map<String, Value>, PortError> {
        self.oci.run(call, stop).await
    }
}
