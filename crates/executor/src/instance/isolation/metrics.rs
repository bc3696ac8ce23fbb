//! Metrics of virtual machines.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_taskscaler::driver::{Family, Histogram, Kind, Sample};
use parking_lot::Mutex;

/// Bounds of the histograms for creations and deletions, in seconds.
const DURATION_BOUNDS: [f64; 10] = [1.0, 5.0, 10.0, 15.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0];

/// Counted operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Operation {
    /// A machine was created, and its agent answered.
    Create,
    /// A machine could not be created, or its agent did not answer.
    CreateFailed,
    /// A machine was deleted with its job.
    Delete,
    /// A machine could not be deleted, and is left.
    DeleteFailed,
    /// A machine that another job left in the slot was deleted.
    Stomp,
    /// An orphaned machine was deleted while its instance was prepared.
    Orphan,
    /// A job continues in its machine after a restart of the manager.
    Reuse,
    /// A machine of a running job was lost.
    Lost,
}

impl Operation {
    const ALL: [(Self, &'static str); 8] = [
        (Self::Create, "create"),
        (Self::CreateFailed, "create_failed"),
        (Self::Delete, "delete"),
        (Self::DeleteFailed, "delete_failed"),
        (Self::Stomp, "stomp"),
        (Self::Orphan, "orphan"),
        (Self::Reuse, "reuse"),
        (Self::Lost, "lost"),
    ];
}

#[derive(Debug)]
struct Counters {
    operations: BTreeMap<Operation, u64>,
    create: Histogram,
    delete: Histogram,
}

/// Counters and histograms of virtual machines.
#[derive(Debug)]
pub(super) struct VmMetrics(Mutex<Counters>);

impl Default for VmMetrics {
    fn default() -> Self {
        let histogram = || Histogram::new(&[&DURATION_BOUNDS]);
        Self(Mutex::new(Counters { operations: BTreeMap::new(), create: histogram(), delete: histogram() }))
    }
}

impl VmMetrics {
    pub(super) fn count(&self, operation: Operation) {
        *self.0.lock().operations.entry(operation).or_default() += 1;
    }

    /// Records a creation, with the time from the request to the answer of the agent.
    pub(super) fn created(&self, took: Duration) {
        self.count(Operation::Create);
        self.0.lock().create.observe(took);
    }

    pub(super) fn deleted(&self, took: Duration) {
        self.count(Operation::Delete);
        self.0.lock().delete.observe(took);
    }

    /// Returns all metric families, even if nothing was counted.
    pub(super) fn families(&self) -> Vec<Family> {
        let counted = self.0.lock();
        let sample = |(operation, name): (Operation, &str)| Sample {
            labels: vec![("operation", name.to_owned())],
            value: f64::from(
                u32::try_from(counted.operations.get(&operation).copied().unwrap_or(0)).unwrap_or(u32::MAX),
            ),
            buckets: Vec::new(),
        };
        vec![
            Family {
                name: "muster_nesting_operations_total",
                help: "Virtual machines on instances: what was done with them.",
                kind: Kind::Counter,
                samples: Operation::ALL.into_iter().map(sample).collect(),
            },
            Family {
                name: "muster_nesting_create_seconds",
                help: "From the request for a virtual machine until its agent answers.",
                kind: Kind::Histogram,
                samples: vec![counted.create.sample()],
            },
            Family {
                name: "muster_nesting_delete_seconds",
                help: "How long the removal of a virtual machine took.",
                kind: Kind::Histogram,
                samples: vec![counted.delete.sample()],
            },
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_counted_and_durations_are_observed() {
        let numbers = VmMetrics::default();
        numbers.created(Duration::from_secs(2));
        numbers.created(Duration::from_secs(40));
        numbers.count(Operation::CreateFailed);
        numbers.count(Operation::Lost);
        let families = numbers.families();
        let counted = |name: &str| {
            let samples = &families[0].samples;
            samples.iter().find(|sample| sample.labels[0].1 == name).unwrap().value
        };
        assert_eq!(["create", "create_failed", "delete", "reuse", "lost"].map(counted), [2.0, 1.0, 0.0, 0.0, 1.0]);
        let create = &families[1].samples[0];
        assert_eq!((create.value, create.buckets[1], create.buckets.last().unwrap().1), (42.0, (5.0, 1), 2));
        assert_eq!(families[2].samples[0].buckets.last().unwrap().1, 0);
    }
}
