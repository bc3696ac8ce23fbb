//! Metrics of virtual machines.

use std::time::Duration;

use muster_taskscaler::driver::MetricSet;
use prometheus::proto::MetricFamily;
use prometheus::{Histogram, IntCounterVec};

const DURATION_BOUNDS: [f64; 10] = [1.0, 5.0, 10.0, 15.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    /// A machine was created, and its agent answered.
    Create,
    /// A machine could not be created, or its agent did not answer.
    CreateFailed,
    /// A machine was deleted, because its job had ended or could not start.
    Delete,
    /// A machine could not be deleted.
    DeleteFailed,
    /// A machine that another job left in the slot was deleted.
    Stomp,
    /// An orphaned machine was deleted while its instance was prepared.
    Orphan,
    /// A job continues in its machine after a restart of the manager.
    Reuse,
    Lost,
}

impl Operation {
    const ALL: [Self; 8] = [
        Self::Create,
        Self::CreateFailed,
        Self::Delete,
        Self::DeleteFailed,
        Self::Stomp,
        Self::Orphan,
        Self::Reuse,
        Self::Lost,
    ];

    fn label(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::CreateFailed => "create_failed",
            Self::Delete => "delete",
            Self::DeleteFailed => "delete_failed",
            Self::Stomp => "stomp",
            Self::Orphan => "orphan",
            Self::Reuse => "reuse",
            Self::Lost => "lost",
        }
    }
}

#[derive(Debug)]
pub(super) struct VmMetrics {
    set: MetricSet,
    operations: IntCounterVec,
    create: Histogram,
    delete: Histogram,
}

impl Default for VmMetrics {
    fn default() -> Self {
        let mut set = MetricSet::default();
        let operations = set.counters(
            "muster_nesting_operations_total",
            "Operations on virtual machines of instances.",
            &["operation"],
        );
        for operation in Operation::ALL {
            operations.with_label_values(&[operation.label()]);
        }
        let create = set.histogram(
            "muster_nesting_create_seconds",
            "Time from the request for a virtual machine until its agent responds.",
            &DURATION_BOUNDS,
        );
        let delete = set.histogram(
            "muster_nesting_delete_seconds",
            "Duration of the deletion of a virtual machine.",
            &DURATION_BOUNDS,
        );
        Self { set, operations, create, delete }
    }
}

impl VmMetrics {
    pub(super) fn count(&self, operation: Operation) {
        self.operations.with_label_values(&[operation.label()]).inc();
    }

    pub(super) fn record_creation(&self, took: Duration) {
        self.count(Operation::Create);
        self.create.observe(took.as_secs_f64());
    }

    pub(super) fn record_deletion(&self, took: Duration) {
        self.count(Operation::Delete);
        self.delete.observe(took.as_secs_f64());
    }

    pub(super) fn families(&self) -> Vec<MetricFamily> {
        self.set.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_operations_and_records_durations_of_successes() {
        let metrics = VmMetrics::default();
        metrics.record_creation(Duration::from_secs(2));
        metrics.record_creation(Duration::from_secs(40));
        metrics.count(Operation::CreateFailed);
        metrics.count(Operation::Lost);
        let families = metrics.families();
        let counted = |name: &str| {
            let mut series = families[0].get_metric().iter();
            let counter = series.find(|metric| metric.get_label()[0].value() == name).unwrap();
            counter.get_counter().get_value()
        };
        assert_eq!(["create", "create_failed", "delete", "reuse", "lost"].map(counted), [2.0, 1.0, 0.0, 0.0, 1.0]);
        let create = families[1].get_metric()[0].get_histogram();
        assert_eq!((create.get_sample_sum(), create.get_sample_count()), (42.0, 2));
        let bucket = &create.get_bucket()[1];
        assert_eq!((bucket.upper_bound(), bucket.cumulative_count()), (5.0, 1));
        assert_eq!(families[2].get_metric()[0].get_histogram().get_sample_count(), 0);
    }
}
