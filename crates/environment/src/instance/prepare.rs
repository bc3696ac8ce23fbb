//! From an instance that runs to one that jobs can have.

use std::sync::Weak;

use async_trait::async_trait;
use muster_fleeting::connector::Session;
use muster_taskscaler::driver::{Prepare, Up};

use super::provider::Shared;
use super::reach::{Addresses, Dial, run};

/// Makes an instance ready: the command of the configuration, then the agent.
pub(super) struct Ready(pub(super) Weak<Shared>);

#[async_trait]
impl Prepare for Ready {
    async fn prepare(&self, up: Up) -> Result<(), String> {
        let shared = self.0.upgrade().ok_or("the manager ends")?;
        let instance = shared.instance(&up.group, &up.id);
        if !up.host_keys.is_empty() {
            shared.hosts().pin(&shared.name(&up.group, up.id.as_str()), &up.host_keys);
        }
        let way = Way { shared: &shared, up: &up };
        // Once: what it removes or starts again may be in use by the jobs of an earlier start.
        if let Some(command) = shared.settings().instance_ready_command.as_ref().filter(|_| !up.again) {
            run(&way, command).await.map_err(|error| format!("instance_ready_command: {error}"))?;
        }
        instance.connect(&way).await.map(drop).map_err(|error| error.to_string())
    }
}

/// To an instance that no job has yet.
struct Way<'a> {
    shared: &'a Shared,
    up: &'a Up,
}

#[async_trait]
impl Dial for Way<'_> {
    async fn dial(&self) -> Result<(Box<dyn Session>, Addresses), String> {
        // One that was ready before has its key.
        self.shared.dial((&self.up.group, &self.up.id), || self.up.connect_info(), !self.up.again).await
    }
}
