//! Prepares a running instance for its first job.

use std::sync::{Arc, Weak};

use async_trait::async_trait;
use muster_config::settings::AutoscalerSettings;
use muster_taskscaler::driver::{Prepare, StartingInstance};

use super::provider::Shared;
use crate::deploy::{Dial, Dialed, run_command};

/// Prepares instances: runs the configured command, then starts the agent or clears the nesting daemon.
pub(super) struct InstancePreparer {
    pub(super) shared: Weak<Shared>,
    /// Settings with which the scaler was started.
    pub(super) settings: Arc<AutoscalerSettings>,
}

#[async_trait]
impl Prepare for InstancePreparer {
    async fn prepare(&self, up: StartingInstance) -> Result<(), String> {
        let shared = self.shared.upgrade().ok_or("the manager ends")?;
        if !up.host_keys.is_empty() {
            shared.hosts().pin(shared.name(&up.group, up.id.as_str()).as_str(), &up.host_keys);
        }
        let way = PrepareDialer { shared: &shared, up: &up };
        // Runs only once per instance, because it could disturb jobs of an earlier start.
        if let Some(command) = self.settings.instance_ready_command.as_ref().filter(|_| !up.again) {
            run_command(&way, command).await.map_err(|error| format!("instance_ready_command: {error}"))?;
        }
        if let Some(settings) = &self.settings.isolation {
            return shared.isolation.prepare(settings, &way, up.id.as_str()).await;
        }
        let ready = shared.instance(&up.group, &up.id).connect(&way).await;
        ready.map(drop).map_err(|error| error.to_string())
    }
}

/// Opens sessions with an instance that no job has yet.
struct PrepareDialer<'a> {
    shared: &'a Shared,
    up: &'a StartingInstance,
}

#[async_trait]
impl Dial for PrepareDialer<'_> {
    async fn dial(&self) -> Result<Dialed, String> {
        // An instance that was prepared before has its host key.
        let id = (self.up.group.as_str(), &self.up.id);
        let (session, addresses) = self.shared.dial(id, || self.up.connect_info(), !self.up.again).await?;
        Ok(self.shared.dialed(id, session, &addresses))
    }
}
