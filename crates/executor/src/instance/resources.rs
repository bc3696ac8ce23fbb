//! Resource usage of instances, for operators and metrics only.

use std::collections::BTreeMap;
use std::sync::Weak;
use std::time::Duration;

use muster_fleeting::extension::ResourceUsage;
use muster_fleeting::model::InstanceId;
use muster_job::error_chain;
use muster_taskscaler::driver::{MetricSet, Scaler};
use muster_taskscaler::engine::InstanceStatus;
use muster_taskscaler::fleet::{InstanceUsage, name_among};
use muster_taskscaler::types::GroupId;
use parking_lot::Mutex;
use prometheus::proto::MetricFamily;
use tokio::time::Instant;

use super::plugin_group::PluginGroup;

/// Initial and maximum interval between samples. The interval doubles, because a sample can be expensive.
const SAMPLE_INTERVAL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(15));
/// Maximum number of instances whose usage is requested. The usage of further instances is unknown.
const MAX_INSTANCES_PER_CALL: usize = 500;

/// Usage of the instances at the last sample, by group.
#[derive(Debug, Default)]
pub(super) struct InstanceUsageTracker(Mutex<BTreeMap<usize, GroupUsage>>);

#[derive(Debug, Default)]
struct GroupUsage {
    instances: BTreeMap<String, InstanceUsage>,
    /// Number of CPUs that the instances kept busy between the last two samples.
    cpus: f64,
    at: Option<Instant>,
}

impl InstanceUsageTracker {
    /// Returns the usage of each instance by its unique name. `names` are the names of the groups.
    pub(super) fn current(&self, names: &[&str]) -> BTreeMap<String, InstanceUsage> {
        let groups = self.0.lock();
        let named = groups.iter().filter_map(|(group, usage)| Some((names.get(*group)?, usage)));
        named
            .flat_map(|(group, usage)| {
                usage.instances.iter().map(|(id, used)| (name_among(names.len(), group, id), *used))
            })
            .collect()
    }

    fn record(&self, group: GroupId, resources: Vec<ResourceUsage>, at: Instant) {
        let mut groups = self.0.lock();
        let usage = groups.entry(group.0).or_default();
        let mut busy = 0.0;
        let mut instances = BTreeMap::new();
        for ResourceUsage { instance, cpu_seconds, memory_bytes, memory_limit_bytes, processes } in resources {
            let name = instance.as_str().to_owned();
            if let Some(before) = usage.instances.get(&name) {
                busy += (cpu_seconds - before.cpu_seconds).max(0.0);
            }
            instances.insert(name, InstanceUsage { cpu_seconds, memory_bytes, memory_limit_bytes, processes });
        }
        let between = usage.at.map_or(0.0, |before| at.saturating_duration_since(before).as_secs_f64());
        let cpus = if between > 0.0 && busy.is_finite() { busy / between } else { 0.0 };
        *usage = GroupUsage { instances, cpus, at: Some(at) };
    }

    #[expect(clippy::cast_precision_loss, reason = "bytes of memory are far below 2^52")]
    pub(super) fn families(&self) -> Vec<MetricFamily> {
        let groups = self.0.lock();
        let all = || groups.values().flat_map(|usage| usage.instances.values());
        // The numbers come from a plugin, so an integer sum could overflow.
        let sum = |field: fn(&InstanceUsage) -> u64| all().map(|used| field(used) as f64).sum::<f64>();
        let mut set = MetricSet::default();
        for (name, help, value) in [
            ("muster_instances_with_usage", "Instances whose resource usage the plugin reports.", all().count() as f64),
            (
                "muster_instances_busy_cpus",
                "Number of busy CPUs of the instances whose resource usage the plugin reports.",
                groups.values().map(|usage| usage.cpus).sum(),
            ),
            (
                "muster_instances_memory_bytes",
                "Memory usage in bytes of the instances whose resource usage the plugin reports.",
                sum(|used| used.memory_bytes),
            ),
            (
                "muster_instances_processes",
                "Number of processes on the instances whose resource usage the plugin reports.",
                sum(|used| u64::from(used.processes)),
            ),
        ] {
            set.float_gauge(name, help).set(value);
        }
        set.collect()
    }
}

/// Requests the usage of a group's instances at intervals, and records it in `usage`.
///
/// Ends when the plugin is dropped or the scaler ends. Cancel-safe.
pub(super) async fn follow(
    plugin: Weak<PluginGroup>,
    scaler: Scaler,
    group_id: GroupId,
    usage: &InstanceUsageTracker,
    runner: &str,
) {
    let mut wait = SAMPLE_INTERVAL.0;
    loop {
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(SAMPLE_INTERVAL.1);
        let Some(status) = scaler.status().await else { return };
        let Some(name) = status.groups.get(group_id.0).map(|group| &group.name) else { return };
        let has_booted = |instance: &&InstanceStatus| instance.group == *name && instance.state != "booting";
        let ids = status.instances.iter().filter(has_booted).take(MAX_INSTANCES_PER_CALL);
        let ids: Vec<InstanceId> = ids.map(|instance| InstanceId::new(&instance.id)).collect();
        let Some(plugin) = plugin.upgrade() else { return };
        let group = plugin.group();
        // Checked for each sample, because the plugin may have been restarted in a version that reports usage.
        let answer = if ids.is_empty() || !group.features().resource_usage {
            Ok(Vec::new())
        } else {
            group.resource_usage(&ids).await
        };
        match answer {
            Ok(resources) => usage.record(group_id, resources, Instant::now()),
            Err(error) => {
                tracing::debug!(runner, error = error_chain(&error), "failed to get the resource usage of instances");
                usage.record(group_id, Vec::new(), Instant::now());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(name: &str, cpu_seconds: f64, memory_bytes: u64) -> ResourceUsage {
        ResourceUsage {
            instance: InstanceId::new(name),
            cpu_seconds,
            memory_bytes,
            memory_limit_bytes: None,
            processes: 3,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn busy_cpus_are_measured_since_the_last_sample() {
        let usage = InstanceUsageTracker::default();
        usage.record(GroupId(0), vec![used("a", 100.0, 10), used("deleted", 7.0, 1)], Instant::now());
        tokio::time::advance(Duration::from_secs(10)).await;
        usage.record(GroupId(1), vec![used("other", 1.0, 0)], Instant::now());
        usage.record(GroupId(0), vec![used("a", 115.0, 20), used("new", 50.0, 5)], Instant::now());
        let families = usage.families();
        let value = |name: &str| {
            let family = families.iter().find(|family| family.name() == name).unwrap();
            family.get_metric()[0].get_gauge().get_value()
        };
        let now = ["with_usage", "busy_cpus", "memory_bytes", "processes"]
            .map(|name| value(&format!("muster_instances_{name}")));
        assert_eq!(now, [3.0, 1.5, 25.0, 9.0], "CPU time before the first sample of an instance must not count");
        usage.record(GroupId(0), vec![used("a", 116.0, u64::MAX), used("new", 51.0, u64::MAX)], Instant::now());
        assert_eq!(usage.families().len(), 4);
        assert_eq!(usage.current(&["one", "two"]).into_keys().collect::<Vec<_>>(), ["one/a", "one/new", "two/other"]);
    }

    #[tokio::test(start_paused = true)]
    async fn instances_of_the_same_name_in_two_groups_are_distinct() {
        let usage = InstanceUsageTracker::default();
        usage.record(GroupId(0), vec![used("i-1", 1.0, 10)], Instant::now());
        assert_eq!(usage.current(&["only"])["i-1"].memory_bytes, 10);
        usage.record(GroupId(1), vec![used("i-1", 2.0, 20)], Instant::now());
        let now = usage.current(&["spot", "fixed"]);
        assert_eq!((now["spot/i-1"].memory_bytes, now["fixed/i-1"].memory_bytes, now.len()), (10, 20, 2));
    }
}
