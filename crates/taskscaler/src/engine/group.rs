//! State of one instance group.

use std::time::Duration;

use muster_fleeting::model::{InstanceId, InstanceState};

use super::creation_control::CreationControl;
use super::list_schedule::ListSchedule;
use super::scale_up::{MatchedRequest, ScaleUpRequests};
use super::unmanaged::{DeletedIds, EarlyRetirements, UnmanagedInstances};
use crate::config::{GroupConfig, UnmanagedPolicy};
use crate::time::{Now, Time};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Plugin {
    /// The plugin is not running.
    Down { cause: String },
    /// `max_size` is the plugin's maximum number of instances. 0 means unknown.
    Up { max_size: u32 },
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Estimate {
    /// Duration of the fastest recent operation. Each slower operation raises it by a sixteenth of the difference.
    pub(super) fastest: Option<Duration>,
}

impl Estimate {
    pub(super) fn learn(&mut self, duration: Duration) {
        self.fastest = Some(match self.fastest {
            Some(fastest) if duration >= fastest => (fastest * 15 + duration) / 16,
            _ => duration,
        });
    }
}

#[derive(Debug)]
pub(super) enum Discovery {
    /// The instance was considered deleted.
    Reappeared,
    /// A scale-up request has created the instance.
    Requested(MatchedRequest),
    /// The instance is unmanaged, or already being deleted. It is ignored.
    Unmanaged,
    /// The instance is unmanaged and will be used.
    Adopted,
    /// The instance is unmanaged and will be deleted.
    Unwanted,
}

#[derive(Debug)]
pub(super) struct GroupState {
    pub(super) config: GroupConfig,
    pub(super) plugin: Plugin,
    /// Whether the plugin can suspend and resume instances. `None` means unknown.
    pub(super) can_suspend: Option<bool>,
    /// Operator and reason, if the group is drained.
    pub(super) drained: Option<String>,
    pub(super) is_listed: bool,
    pub(super) requests: ScaleUpRequests,
    pub(super) creation: CreationControl,
    pub(super) list_calls: ListSchedule,
    pub(super) is_priced: bool,
    pub(super) is_out_of_stock: bool,
    pub(super) early_retirements: EarlyRetirements,
    pub(super) unmanaged: UnmanagedInstances,
    pub(super) deleted: DeletedIds,
    /// Time from the request to the first list that reports an instance as running.
    pub(super) boot: Estimate,
    /// Time from running to ready.
    pub(super) preparation: Estimate,
    /// Time from the first delete call to the first list without the instance.
    pub(super) deletion: Estimate,
}

impl GroupState {
    pub(super) fn new(config: GroupConfig, at: Time) -> Self {
        Self {
            is_priced: config.price_per_hour > 0.0,
            creation: CreationControl::new(&config, at),
            config,
            plugin: Plugin::Down { cause: "it has not been started yet".to_owned() },
            can_suspend: None,
            drained: None,
            is_listed: false,
            requests: ScaleUpRequests::default(),
            list_calls: ListSchedule::new(at),
            is_out_of_stock: false,
            early_retirements: EarlyRetirements::default(),
            unmanaged: UnmanagedInstances::default(),
            deleted: DeletedIds::default(),
            boot: Estimate::default(),
            preparation: Estimate::default(),
            deletion: Estimate::default(),
        }
    }

    pub(super) fn record_plugin_up(&mut self, max_size: u32, at: Time) {
        self.plugin = Plugin::Up { max_size };
        self.list_calls.restart(at);
        let max = self.max_instances().unwrap_or(0);
        self.creation.set_max_instances(&self.config, max, at);
    }

    pub(super) fn is_plugin_down(&self) -> bool {
        matches!(self.plugin, Plugin::Down { .. })
    }

    /// `None` means no limit.
    pub(super) fn max_instances(&self) -> Option<u32> {
        let plugin_max = match self.plugin {
            Plugin::Up { max_size, .. } if max_size > 0 => Some(max_size),
            _ => None,
        };
        match (self.config.max_instances, plugin_max) {
            (0, max) => max,
            (max, None) => Some(max),
            (max, Some(plugin_max)) => Some(max.min(plugin_max)),
        }
    }

    /// Number of instances that are expected to appear and that jobs can then use.
    ///
    /// 0 if the group is drained, because its requested instances are deleted when they appear.
    pub(super) fn expected_usable(&self) -> u32 {
        if self.drained.is_some() { 0 } else { self.requests.expected() }
    }

    /// Number of instances outside the pool that exist or may appear.
    pub(super) fn outside_pool(&self) -> usize {
        self.unmanaged.len() + self.requests.may_appear() as usize
    }

    pub(super) fn discover(
        &mut self,
        at: Time,
        id: &InstanceId,
        state: InstanceState,
        policy: UnmanagedPolicy,
    ) -> Discovery {
        if self.deleted.contains(id) {
            return Discovery::Reappeared;
        }
        if state == InstanceState::Deleting {
            return Discovery::Unmanaged;
        }
        if let Some(matched) = self.requests.match_instance(at) {
            return Discovery::Requested(matched);
        }
        match policy {
            UnmanagedPolicy::Ignore => Discovery::Unmanaged,
            UnmanagedPolicy::Adopt => Discovery::Adopted,
            UnmanagedPolicy::Delete => Discovery::Unwanted,
        }
    }

    /// `duration` is that of the deletion, if this manager deleted the instance.
    pub(super) fn record_deleted(&mut self, id: InstanceId, now: Now, duration: Option<Duration>) {
        self.deleted.insert(id, now);
        if let Some(duration) = duration {
            self.deletion.learn(duration);
        }
    }
}
