//! Prepares a running instance for jobs.

use std::sync::{Arc, Weak};

use async_trait::async_trait;
use muster_config::settings::AutoscalerSettings;
use muster_job::error_chain;
use muster_taskscaler::driver::{Prepare, StartingInstance};

use super::provider::ExecutorContext;
use crate::deploy::{DeployError, Dial, Dialed, run_command};

/// Prepares instances: runs the configured command, then starts the agent.
///
/// With `vm_isolation`, deletes orphaned virtual machines instead of starting an agent.
pub(super) struct InstancePreparer {
    pub(super) shared: Weak<ExecutorContext>,
    pub(super) settings: Arc<AutoscalerSettings>,
}

#[async_trait]
impl Prepare for InstancePreparer {
    async fn prepare(&self, instance: StartingInstance) -> Result<(), String> {
        let shared = self.shared.upgrade().ok_or("the manager is shutting down")?;
        if !instance.host_keys.is_empty() {
            shared.known_hosts().pin(shared.name(&instance.group, instance.id.as_str()).as_str(), &instance.host_keys);
        }
        let dialer = PrepareDialer { shared: &shared, instance: &instance };
        // The command runs only once per instance, because it could disturb jobs of an earlier manager process.
        if let Some(command) = self.settings.instance_ready_command.as_ref().filter(|_| !instance.was_ready) {
            run_command(&dialer, command)
                .await
                .map_err(|error| format!("instance_ready_command: {}", error_chain(&error)))?;
        }
        if let Some(settings) = &self.settings.isolation {
            let name = shared.name(&instance.group, instance.id.as_str());
            let prepared = shared.isolation.prepare(settings, &dialer, (name.as_str(), &instance.id)).await;
            return prepared.map_err(|error| error.to_string());
        }
        let ready = shared.instance(&instance.group, &instance.id).connect(&dialer).await;
        ready.map(drop).map_err(|error| error.to_string())
    }
}

struct PrepareDialer<'a> {
    shared: &'a ExecutorContext,
    instance: &'a StartingInstance,
}

#[async_trait]
impl Dial for PrepareDialer<'_> {
    async fn dial(&self) -> Result<Dialed, DeployError> {
        // An instance that was ready before is not new: its host key is known, and it accepts the credentials.
        let id = (self.instance.group.as_str(), &self.instance.id);
        let (session, addresses) =
            self.shared.dial(id, || self.instance.connect_info(), !self.instance.was_ready).await?;
        Ok(self.shared.with_trace_lines(id, session, &addresses))
    }
}
