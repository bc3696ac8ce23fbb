//! The scaler's metrics: those of gitlab-runner (docs/spec/runner-config.md, section 3.5), and Muster's own.

use prometheus::proto::MetricFamily;
use prometheus::{Gauge, Histogram, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

use super::machines::MachineMetrics;
use super::metric_set::MetricSet;
use super::sharing_metrics::SharingMetrics;
use crate::config::Config;
use crate::decision::{DecisionKind, InstanceOrigin};
use crate::engine::{Engine, NoCapacity};
use crate::event::Action;
use crate::types::RemovalReason;

/// Upper bounds of histogram buckets, in seconds. An empty list means the default.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Buckets {
    /// `instance_operation_time_buckets`: the default of the other lists, except [`Self::life`].
    pub operation: Vec<f64>,
    /// `instance_creation_time_buckets`.
    pub creation: Vec<f64>,
    /// `instance_is_running_time_buckets`.
    pub is_running: Vec<f64>,
    /// `instance_deletion_time_buckets`.
    pub deletion: Vec<f64>,
    /// `instance_readiness_time_buckets`.
    pub readiness: Vec<f64>,
    /// `instance_life_duration_buckets`.
    pub life: Vec<f64>,
}

const OPERATION_BUCKETS: [f64; 10] = [1.0, 5.0, 10.0, 15.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0];
const LIFE_BUCKETS: [f64; 9] = [60.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 21600.0, 43200.0, 86400.0];
const WAIT_BUCKETS: [f64; 12] = [0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0];

/// Metrics of a scaler.
#[derive(Debug)]
pub struct Metrics {
    set: MetricSet,
    max_instances: IntGauge,
    desired_change: IntGauge,
    cost: Gauge,
    unmanaged: IntGauge,
    instances: IntGaugeVec,
    instance_operations: IntCounterVec,
    internal_operations: IntCounterVec,
    tasks: IntGaugeVec,
    task_operations: IntCounterVec,
    scale_operations: IntCounterVec,
    removals: IntCounterVec,
    missing_from_list: IntCounter,
    creation_failures: IntCounter,
    list_failures: IntCounter,
    lost_jobs: IntCounter,
    creation: Histogram,
    boot: Histogram,
    deletion: Histogram,
    life: Histogram,
    readiness: Histogram,
    wait: Histogram,
    sharing: SharingMetrics,
    machines: MachineMetrics,
}

impl Metrics {
    /// Creates the metrics of a scaler that has done nothing yet.
    #[must_use]
    #[expect(clippy::too_many_lines, reason = "a list of all metrics")]
    pub fn new(config: &Config, buckets: &Buckets) -> Self {
        let mut set = MetricSet::default();
        set.gauge("fleeting_taskscaler_max_tasks_per_instance", "Number of slots per instance.")
            .set(config.capacity.get().into());
        set.gauge(
            "fleeting_taskscaler_max_use_count_per_instance",
            "Maximum number of jobs per instance. 0 means no limit.",
        )
        .set(config.max_uses.map_or(0, std::num::NonZeroU32::get).into());
        let operation = bounds(&buckets.operation, &OPERATION_BUCKETS);
        let metrics = Self {
            max_instances: set
                .gauge("fleeting_provisioner_max_instances", "Maximum number of instances. 0 means no limit."),
            desired_change: set.gauge(
                "fleeting_taskscaler_desired_instances",
                "Number of instances to create (positive) or to delete (negative).",
            ),
            cost: set.float_gauge(
                "muster_taskscaler_cost_per_hour",
                "Cost of all instances per hour, as far as prices are known.",
            ),
            unmanaged: set.gauge(
                "muster_taskscaler_unmanaged_instances",
                "Number of instances that belong to the groups, but were not created by this manager.",
            ),
            instances: set.gauges("fleeting_provisioner_instances", "Number of instances by state.", &["state"]),
            instance_operations: set.counters(
                "fleeting_provisioner_instance_operations_total",
                "Operations on instances.",
                &["operation"],
            ),
            internal_operations: set.counters(
                "fleeting_provisioner_internal_operations_total",
                "Plugin calls by operation.",
                &["operation"],
            ),
            tasks: set.gauges("fleeting_taskscaler_tasks", "Number of slots by state.", &["state"]),
            task_operations: set.counters(
                "fleeting_taskscaler_task_operations_total",
                "Operations on slots.",
                &["operation"],
            ),
            scale_operations: set.counters(
                "fleeting_taskscaler_scale_operations_total",
                "Instances that were created, and instances that were deleted because they were not needed.",
                &["operation"],
            ),
            removals: set.counters("muster_taskscaler_removals_total", "Deleted instances by reason.", &["reason"]),
            missing_from_list: set.counter(
                "fleeting_provisioner_missed_updates_total",
                "Number of times that a list omitted a known instance.",
            ),
            creation_failures: set.counter(
                "muster_taskscaler_creation_failures_total",
                "Creations that failed, or whose instance did not become ready.",
            ),
            list_failures: set.counter("muster_taskscaler_list_failures_total", "Failed attempts to list instances."),
            lost_jobs: set.counter("muster_taskscaler_lost_jobs_total", "Jobs whose instance was lost."),
            creation: set.histogram(
                "fleeting_provisioner_instance_creation_time_seconds",
                "Time from the request for an instance until it is listed.",
                bounds(&buckets.creation, operation),
            ),
            boot: set.histogram(
                "fleeting_provisioner_instance_is_running_time_seconds",
                "Time from the request for an instance until it is running.",
                bounds(&buckets.is_running, operation),
            ),
            deletion: set.histogram(
                "fleeting_provisioner_instance_deletion_time_seconds",
                "Time from the first delete call for an instance until it is deleted.",
                bounds(&buckets.deletion, operation),
            ),
            life: set.histogram(
                "fleeting_provisioner_instance_life_duration_seconds",
                "Time from the first listing of an instance until it is deleted.",
                bounds(&buckets.life, &LIFE_BUCKETS),
            ),
            readiness: set.histogram(
                "fleeting_taskscaler_task_instance_readiness_time_seconds",
                "Time from running until an instance is ready for jobs.",
                bounds(&buckets.readiness, operation),
            ),
            wait: set.histogram(
                "muster_taskscaler_acquire_wait_seconds",
                "Time that jobs waited for a slot.",
                &WAIT_BUCKETS,
            ),
            sharing: SharingMetrics::new(&mut set),
            machines: MachineMetrics::new(&mut set),
            set,
        };
        metrics.create_series();
        metrics
    }

    /// Creates the series before the first operation, so that a rate includes it.
    fn create_series(&self) {
        for (counters, operations) in [
            (&self.instance_operations, &["create", "delete", "suspend", "resume"][..]),
            (&self.internal_operations, &["removal", "reconcile", "provision"]),
            (
                &self.task_operations,
                &[
                    "acquire",
                    "acquire_capacity_failure",
                    "acquire_timeout",
                    "release",
                    "reserve",
                    "reserve_iop_capacity_failure",
                    "reserve_available_capacity_failure",
                    "unreserve",
                ],
            ),
            (&self.scale_operations, &["up", "down"]),
        ] {
            for operation in operations {
                counters.with_label_values(&[operation]);
            }
        }
    }

    pub(super) fn record_reservation(&self, refused: Option<&NoCapacity>) {
        let operation = match refused {
            None => "reserve",
            // gitlab-runner counts "iop" if no slot is available and no instance can be created.
            Some(NoCapacity::NoneAvailableOrPending { .. }) => "reserve_iop_capacity_failure",
            Some(NoCapacity::NoneAvailable { .. } | NoCapacity::LedgerUnavailable { .. }) => {
                "reserve_available_capacity_failure"
            }
        };
        self.task_operations.with_label_values(&[operation]).inc();
    }

    pub(super) fn record_unreserve(&self) {
        self.task_operations.with_label_values(&["unreserve"]).inc();
    }

    pub(super) fn record_acquire_timeout(&self) {
        self.task_operations.with_label_values(&["acquire_timeout"]).inc();
    }

    pub(super) fn record_call(&self, action: &Action) {
        let count = |counters: &IntCounterVec, operation, n: usize| {
            counters.with_label_values(&[operation]).inc_by(n as u64);
        };
        match action {
            Action::List { .. } => count(&self.internal_operations, "reconcile", 1),
            Action::Increase { .. } => count(&self.internal_operations, "provision", 1),
            Action::Decrease { ids, .. } => {
                count(&self.internal_operations, "removal", 1);
                count(&self.instance_operations, "delete", ids.len());
            }
            Action::Suspend { ids, .. } => count(&self.instance_operations, "suspend", ids.len()),
            Action::Resume { ids, .. } => count(&self.instance_operations, "resume", ids.len()),
            _ => {}
        }
    }

    pub(super) fn record(&self, decision: &DecisionKind) {
        self.sharing.record(decision);
        self.machines.record(decision);
        match decision {
            DecisionKind::ScaleUpAccepted { accepted, .. } => {
                self.instance_operations.with_label_values(&["create"]).inc_by((*accepted).into());
                self.scale_operations.with_label_values(&["up"]).inc_by((*accepted).into());
            }
            DecisionKind::Discovered {
                origin: InstanceOrigin::Requested | InstanceOrigin::RequestedLate,
                after,
                ..
            } => self.creation.observe(after.as_secs_f64()),
            DecisionKind::Running { after, .. } => self.boot.observe(after.as_secs_f64()),
            DecisionKind::Ready { after, .. } => self.readiness.observe(after.as_secs_f64()),
            DecisionKind::Leased { waited, .. } => {
                self.task_operations.with_label_values(&["acquire"]).inc();
                self.wait.observe(waited.as_secs_f64());
            }
            DecisionKind::Released { .. } => self.task_operations.with_label_values(&["release"]).inc(),
            DecisionKind::Delete { reason, .. } => {
                if matches!(reason, RemovalReason::Idle { .. }) {
                    self.scale_operations.with_label_values(&["down"]).inc();
                }
                self.removals.with_label_values(&[removal_label(reason)]).inc();
            }
            DecisionKind::Deleted { lifetime, deletion, .. } => {
                self.life.observe(lifetime.as_secs_f64());
                if let Some(duration) = deletion {
                    self.deletion.observe(duration.as_secs_f64());
                }
            }
            DecisionKind::MissingFromList { .. } => self.missing_from_list.inc(),
            DecisionKind::CreationFailed { .. } => self.creation_failures.inc(),
            DecisionKind::ListFailed { .. } => self.list_failures.inc(),
            DecisionKind::Lost { jobs, .. } => self.lost_jobs.inc_by(jobs.len() as u64),
            _ => {}
        }
    }

    pub(super) fn observe(&self, engine: &Engine) {
        let (slots, totals) = (engine.slot_counts(), engine.totals());
        for (state, count) in [
            ("idle", slots.idle),
            ("pending", slots.pending),
            ("acquired", slots.acquired),
            ("reserved", slots.reserved),
            ("unavailable", slots.unavailable),
        ] {
            self.tasks.with_label_values(&[state]).set(gauge_value(count));
        }
        for (state, count) in &totals.by_state {
            self.instances.with_label_values(&[state]).set(gauge_value(*count));
        }
        self.machines.observe(&totals.machines);
        self.max_instances.set(totals.max.map_or(0, gauge_value));
        self.desired_change.set(totals.desired_change);
        self.cost.set(totals.cost_per_hour);
        self.unmanaged.set(gauge_value(totals.unmanaged));
    }

    /// Returns all metrics with their current values.
    #[must_use]
    pub fn families(&self) -> Vec<MetricFamily> {
        self.set.collect()
    }
}

/// Returns `configured`, or `default` if no bounds are configured or they are not in ascending order.
fn bounds<'a>(configured: &'a [f64], default: &'a [f64]) -> &'a [f64] {
    let is_valid = !configured.is_empty() && configured.is_sorted_by(|one, next| one < next);
    if is_valid { configured } else { default }
}

pub(super) fn gauge_value(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn removal_label(reason: &RemovalReason) -> &'static str {
    match reason {
        RemovalReason::Idle { .. } => "idle",
        RemovalReason::MaxUsesReached { .. } => "max_uses_reached",
        RemovalReason::Unhealthy { .. } => "unhealthy",
        RemovalReason::ReadyTimeout { .. } => "ready_timeout",
        RemovalReason::BootTimeout => "boot_timeout",
        RemovalReason::AboveMaxInstances => "above_max_instances",
        RemovalReason::AboveMaxCost => "above_max_cost",
        RemovalReason::Reappeared => "reappeared",
        RemovalReason::Unmanaged => "unmanaged",
        RemovalReason::ProviderDeleted => "provider_deleted",
        RemovalReason::Retired { .. } => "retired",
        RemovalReason::Unclaimed => "unclaimed",
        RemovalReason::Expired => "expired",
        RemovalReason::NotResumable => "not_resumable",
        RemovalReason::ResumeFailed { .. } => "resume_failed",
        RemovalReason::NoSpareInstance => "no_spare_instance",
        RemovalReason::Shutdown => "shutdown",
        RemovalReason::Operator { .. } | RemovalReason::GroupDrained { .. } => "operator",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejected_reservations_have_the_labels_of_gitlab_runner() {
        let config = Config::new(crate::config::GroupConfig::new("main", 10));
        let metrics = Metrics::new(&config, &Buckets::default());
        let (slots, blocks) = (String::new(), Vec::new());
        metrics.record_reservation(Some(&NoCapacity::NoneAvailableOrPending { slots, blocks }));
        let count = |label: &str| metrics.task_operations.with_label_values(&[label]).get();
        let counts = || (count("reserve_iop_capacity_failure"), count("reserve_available_capacity_failure"));
        assert_eq!(counts(), (1, 0));
        let (slots, blocks) = (String::new(), Vec::new());
        metrics.record_reservation(Some(&NoCapacity::NoneAvailable { slots, blocks }));
        assert_eq!(counts(), (1, 1));
    }
}
