//! Plugin calls. Each call runs in a separate task, so that calls do not wait for each other.

use std::sync::Arc;

use super::context::DriverContext;
use super::ports::{InstanceCallError, InstanceGroupPort, Prepare, StartingInstance};
use crate::engine::Engine;
use crate::event::{Action, Event};
use crate::types::GroupId;

pub(super) struct Call {
    pub(super) action: Action,
    group: GroupId,
    group_name: String,
    plugin: Arc<dyn InstanceGroupPort>,
    shared: Arc<DriverContext>,
    prepare: Arc<dyn Prepare>,
}

/// Returns the plugin call that performs an action, or `None` if the action needs no plugin.
pub(super) fn plugin_call(
    engine: &Engine,
    shared: &Arc<DriverContext>,
    prepare: &Arc<dyn Prepare>,
    action: Action,
) -> Option<Call> {
    let group = action.group()?;
    let plugin = shared.plugin(group)?;
    let group_name = engine.config().groups.get(group.0).map(|group| group.name.clone()).unwrap_or_default();
    Some(Call { action, group, group_name, plugin, shared: Arc::clone(shared), prepare: Arc::clone(prepare) })
}

impl Call {
    /// Returns the event to handle if the call panics.
    pub(super) fn panic_event(&self) -> Event {
        let (group, error) = (self.group, || "the plugin call panicked (this is a bug, please report it)".to_owned());
        match self.action.clone() {
            Action::List { call, .. } => Event::Listed { group, call, result: Err(error()) },
            Action::Increase { call, .. } => Event::Increased { group, call, result: Err(error()) },
            Action::Decrease { ids, .. } => Event::Decreased { group, ids, result: Err(error()) },
            Action::Suspend { ids, .. } => Event::Suspended { group, ids, result: Err(error()) },
            Action::Resume { ids, .. } => Event::Resumed { group, ids, result: Err(error()) },
            Action::Prepare { id, .. } => Event::Prepared { group, id, result: Err(error()) },
            Action::Heartbeat { id, .. } => Event::HealthUnknown { group, id },
            Action::Assign(_)
            | Action::EnvironmentSaved { .. }
            | Action::ResumeFailed { .. }
            | Action::Lost { .. }
            | Action::RevokeReservation { .. }
            | Action::ForgetInstance { .. }
            | Action::OperatorReply { .. } => Event::Tick,
        }
    }

    pub(super) async fn execute(self) -> Event {
        let Self { action, group, group_name, plugin, shared, prepare } = self;
        match action {
            Action::List { call, .. } => Event::Listed { group, call, result: plugin.update().await },
            Action::Increase { call, count, .. } => {
                Event::Increased { group, call, result: plugin.increase(count).await }
            }
            Action::Decrease { ids, .. } => {
                let result = plugin.decrease(&ids).await;
                Event::Decreased { group, ids, result }
            }
            Action::Suspend { ids, .. } => {
                let result = plugin.suspend(&ids).await;
                Event::Suspended { group, ids, result }
            }
            Action::Resume { ids, .. } => {
                let result = plugin.resume(&ids).await;
                Event::Resumed { group, ids, result }
            }
            Action::Prepare { id, was_ready, .. } => {
                // The instance may have restarted since its details were cached.
                shared.forget_connect_info(group, &id);
                let result = match plugin.host_keys(&id).await {
                    Ok(host_keys) => {
                        let instance = StartingInstance {
                            group: group_name,
                            id: id.clone(),
                            host_keys,
                            was_ready,
                            group_id: group,
                            shared,
                        };
                        connect_and_prepare(&*prepare, instance).await
                    }
                    Err(error) => Err(error),
                };
                Event::Prepared { group, id, result }
            }
            Action::Heartbeat { id, .. } => match plugin.heartbeat(&id).await {
                Ok(()) => Event::Health { group, id, result: Ok(()) },
                Err(InstanceCallError::Instance(error)) => Event::Health { group, id, result: Err(error) },
                Err(InstanceCallError::Plugin(_)) => Event::HealthUnknown { group, id },
            },
            Action::Assign(_)
            | Action::EnvironmentSaved { .. }
            | Action::ResumeFailed { .. }
            | Action::Lost { .. }
            | Action::RevokeReservation { .. }
            | Action::ForgetInstance { .. }
            | Action::OperatorReply { .. } => Event::Tick,
        }
    }
}

async fn connect_and_prepare(prepare: &dyn Prepare, instance: StartingInstance) -> Result<(), String> {
    instance.connect_info().await.map_err(|error| error.to_string())?;
    prepare.prepare(instance).await
}
