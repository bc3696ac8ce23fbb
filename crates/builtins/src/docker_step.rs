//! `builtin://docker/container`: runs steps in a container of a Docker or Podman engine. [`docker`] does the work.

use std::sync::Arc;

use async_trait::async_trait;
use muster_agent_api::builtin::DockerContainer;
use muster_steps::builtin::{DelegateTarget, OpenTarget};
use muster_steps::engine::Job as _;
use muster_steps::failure::Failure;
use muster_steps::stop::StopToken;

use crate::context::Context;
use crate::docker;

#[async_trait]
impl DelegateTarget<Context> for DockerContainer {
    async fn open(&self, context: &Arc<Context>, stop: &StopToken) -> Result<Box<dyn OpenTarget>, Failure> {
        let has_mirror_view = context.mirror_view.lock().is_some();
        let facts = docker::JobFacts { log: context.log(), prepared: &context.shared.prepared, has_mirror_view };
        Box::pin(docker::open(self, &facts, stop)).await
    }

    async fn remove_leftovers(&self) -> Result<(), Failure> {
        docker::remove_leftovers(self).await
    }
}
