//! `builtin://docker/container` and `builtin://docker/service`, implemented with [`docker`].

use std::sync::Arc;

use async_trait::async_trait;
use muster_agent_api::builtin::{DockerContainer, Inputs as _, ServiceContainer};
use muster_steps::builtin::{BesideSteps, Builtin, DelegateTarget, OpenTarget};
use muster_steps::engine::Job as _;
use muster_steps::failure::Failure;
use muster_steps::stop::StopToken;

use crate::context::Context;
use crate::docker;

#[async_trait]
impl DelegateTarget<Context> for DockerContainer {
    async fn open(
        &self,
        context: &Arc<Context>,
        beside: &dyn BesideSteps,
        stop: &StopToken,
    ) -> Result<Box<dyn OpenTarget>, Failure> {
        let has_mirror_view = context.mirror_view.lock().is_some();
        let (log, prepared) = (context.log(), &context.shared.prepared);
        let service_host = &context.service_host;
        let facts = docker::JobFacts { log, prepared, has_mirror_view, service_steps: beside, service_host };
        Box::pin(docker::open(self, &facts, stop)).await
    }

    async fn remove_leftovers(&self) -> Result<(), Failure> {
        docker::remove_leftovers(self).await
    }
}

#[async_trait]
impl Builtin<Context> for ServiceContainer {
    async fn run(&self, context: &Arc<Context>, stop: &StopToken) -> Result<(), Failure> {
        let host = context.service_host.lock().clone();
        let host = host.ok_or_else(|| {
            Failure::Configuration(format!(
                "the service {} can only start beside the step builtin://{}",
                self.title,
                DockerContainer::BUILTIN
            ))
        })?;
        host.start(self, stop).await
    }
}
