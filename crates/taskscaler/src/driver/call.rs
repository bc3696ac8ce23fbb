//! Calls of plugins, each in a task of its own: none waits for another.

use std::sync::Arc;

use super::context::DriverContext;
use super::host::{InstanceGroupPort, NoAnswer, Prepare, StartingInstance};
use crate::engine::Engine;
use crate::event::{Action, Event};
use crate::types::GroupId;

/// A call that is to be made.
pub(super) struct Call {
    pub(super) action: Action,
    group: GroupId,
    group_name: String,
    host: Arc<dyn InstanceGroupPort>,
    shared: Arc<DriverContext>,
    prepare: Arc<dyn Prepare>,
}

/// The call that an action is; none where it is none, or where there is nobody to call any more.
pub(super) fn of(
    engine: &Engine,
    shared: &Arc<DriverContext>,
    prepare: &Arc<dyn Prepare>,
    action: Action,
) -> Option<Call> {
    let group = action.group()?;
    let host = shared.host(group)?;
    let group_name = engine.config().groups.get(group.0).map(|group| group.name.clone()).unwrap_or_default();
    Some(Call { action, group, group_name, host, shared: Arc::clone(shared), prepare: Arc::clone(prepare) })
}

impl Call {
    /// The answer where there is none: a defect in an adapter, or in what is called.
    pub(super) fn failed(&self) -> Event {
        let (group, why) = (self.group, || "the call ended in a panic".to_owned());
        match self.action.clone() {
            Action::List { call, .. } => Event::Listed { group, call, result: Err(why()) },
            Action::Increase { call, .. } => Event::Increased { group, call, result: Err(why()) },
            Action::Decrease { ids, .. } => Event::Decreased { group, ids, result: Err(why()) },
            Action::Suspend { ids, .. } => Event::Suspended { group, ids, result: Err(why()) },
            Action::Resume { ids, .. } => Event::Resumed { group, ids, result: Err(why()) },
            Action::Prepare { id, .. } => Event::Prepared { group, id, result: Err(why()) },
            Action::Heartbeat { id, .. } => Event::HealthUnknown { group, id },
            Action::Grant(_)
            | Action::EnvironmentSaved { .. }
            | Action::ResumeFailed { .. }
            | Action::Lost { .. }
            | Action::RevokeReservation { .. }
            | Action::ForgetInstance { .. }
            | Action::OperatorReply { .. } => Event::Tick,
        }
    }

    /// Makes it; its answer.
    pub(super) async fn execute(self) -> Event {
        let Self { action, group, group_name, host, shared, prepare } = self;
        match action {
            Action::List { call, .. } => Event::Listed { group, call, result: host.update().await },
            Action::Increase { call, n, .. } => Event::Increased { group, call, result: host.increase(n).await },
            Action::Decrease { ids, .. } => {
                let result = host.decrease(&ids).await;
                Event::Decreased { group, ids, result }
            }
            Action::Suspend { ids, .. } => {
                let result = host.suspend(&ids).await;
                Event::Suspended { group, ids, result }
            }
            Action::Resume { ids, .. } => {
                let result = host.resume(&ids).await;
                Event::Resumed { group, ids, result }
            }
            Action::Prepare { id, again, .. } => {
                // Details of before a restart may be wrong.
                shared.forget(group, &id);
                let result = match host.host_keys(&id).await {
                    Ok(host_keys) => {
                        let up =
                            StartingInstance { group: group_name, id: id.clone(), host_keys, again, of: group, shared };
                        make_ready(&*prepare, up).await
                    }
                    Err(error) => Err(error),
                };
                Event::Prepared { group, id, result }
            }
            Action::Heartbeat { id, .. } => match host.heartbeat(&id).await {
                Ok(()) => Event::Health { group, id, result: Ok(()) },
                Err(NoAnswer::Instance(error)) => Event::Health { group, id, result: Err(error) },
                Err(NoAnswer::Plugin(_)) => Event::HealthUnknown { group, id },
            },
            Action::Grant(_)
            | Action::EnvironmentSaved { .. }
            | Action::ResumeFailed { .. }
            | Action::Lost { .. }
            | Action::RevokeReservation { .. }
            | Action::ForgetInstance { .. }
            | Action::OperatorReply { .. } => Event::Tick,
        }
    }
}

async fn make_ready(prepare: &dyn Prepare, up: StartingInstance) -> Result<(), String> {
    up.connect_info().await?;
    prepare.prepare(up).await
}
