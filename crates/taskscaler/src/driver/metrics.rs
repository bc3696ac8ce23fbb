//! The scaler's metrics: those of gitlab-runner, for existing dashboards (docs/spec/runner-config.md, section 3.5), and
//! Muster's own.
//!
//! [`Metrics::families`] returns them as values. The module does not know how they are exported.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::family::{Family, Histogram, Kind, Sample};
use super::machines::Machines;
use super::sharing_metrics::SharingMetrics;
use crate::config::Config;
use crate::decision::{DecisionKind, InstanceOrigin};
use crate::engine::{Engine, NoCapacity};
use crate::event::Action;
use crate::types::RemovalReason;

/// Upper bounds of histogram buckets, in seconds. An empty list means the default of the key in `config.toml`.
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

const OPERATION: [f64; 10] = [1.0, 5.0, 10.0, 15.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0];
const LIFE: [f64; 9] = [60.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 21600.0, 43200.0, 86400.0];
const WAIT: [f64; 12] = [0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0];

type Labelled = BTreeMap<&'static str, u64>;

#[derive(Debug)]
struct Counters {
    gauges: BTreeMap<&'static str, f64>,
    instances: Labelled,
    tasks: Labelled,
    instance_operations: Labelled,
    internal_operations: Labelled,
    task_operations: Labelled,
    scale_operations: Labelled,
    removals: Labelled,
    missing_from_list: u64,
    creation_failures: u64,
    list_failures: u64,
    lost_jobs: u64,
    creation: Histogram,
    is_running: Histogram,
    deletion: Histogram,
    life: Histogram,
    readiness: Histogram,
    wait: Histogram,
    density: SharingMetrics,
    machines: Machines,
}

/// Metrics of a scaler.
#[derive(Debug)]
pub struct Metrics(Mutex<Counters>);

fn zeros(names: &[&'static str]) -> Labelled {
    names.iter().map(|name| (*name, 0)).collect()
}

impl Metrics {
    /// Creates the metrics of a scaler that has done nothing yet.
    #[must_use]
    pub fn new(config: &Config, buckets: &Buckets) -> Self {
        let operation = buckets.operation.as_slice();
        let histogram = |own: &[f64]| Histogram::new(&[own, operation, &OPERATION]);
        let mut gauges = BTreeMap::new();
        gauges.insert(MAX_TASKS, f64::from(config.capacity.get()));
        gauges.insert(MAX_USES, f64::from(config.max_uses.map_or(0, std::num::NonZeroU32::get)));
        Self(Mutex::new(Counters {
            gauges,
            instances: BTreeMap::new(),
            tasks: BTreeMap::new(),
            instance_operations: zeros(&["create", "delete", "suspend", "resume"]),
            internal_operations: zeros(&["removal", "reconcile", "provision"]),
            task_operations: zeros(&[
                "acquire",
                "acquire_capacity_failure",
                "acquire_timeout",
                "release",
                "reserve",
                "reserve_iop_capacity_failure",
                "reserve_available_capacity_failure",
                "unreserve",
            ]),
            scale_operations: zeros(&["up", "down"]),
            removals: BTreeMap::new(),
            missing_from_list: 0,
            creation_failures: 0,
            list_failures: 0,
            lost_jobs: 0,
            creation: histogram(&buckets.creation),
            is_running: histogram(&buckets.is_running),
            deletion: histogram(&buckets.deletion),
            life: Histogram::new(&[&buckets.life, &LIFE]),
            readiness: histogram(&buckets.readiness),
            wait: Histogram::new(&[&WAIT]),
            density: SharingMetrics::new(),
            machines: Machines::new(),
        }))
    }

    fn numbers(&self) -> std::sync::MutexGuard<'_, Counters> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn reserved(&self, refused: Option<&NoCapacity>) {
        let mut numbers = self.numbers();
        let operation = match refused {
            None => "reserve",
            Some(NoCapacity::NoneAvailable { .. }) => "reserve_iop_capacity_failure",
            Some(NoCapacity::NoneAvailableOrPending { .. } | NoCapacity::LedgerUnavailable { .. }) => {
                "reserve_available_capacity_failure"
            }
        };
        add(&mut numbers.task_operations, operation, 1);
    }

    pub(super) fn unreserved(&self) {
        add(&mut self.numbers().task_operations, "unreserve", 1);
    }

    pub(super) fn acquire_timed_out(&self) {
        add(&mut self.numbers().task_operations, "acquire_timeout", 1);
    }

    pub(super) fn called(&self, action: &Action) {
        let mut numbers = self.numbers();
        match action {
            Action::List { .. } => add(&mut numbers.internal_operations, "reconcile", 1),
            Action::Increase { .. } => {
                add(&mut numbers.internal_operations, "provision", 1);
            }
            Action::Decrease { ids, .. } => {
                add(&mut numbers.internal_operations, "removal", 1);
                add(&mut numbers.instance_operations, "delete", ids.len() as u64);
            }
            Action::Suspend { ids, .. } => add(&mut numbers.instance_operations, "suspend", ids.len() as u64),
            Action::Resume { ids, .. } => add(&mut numbers.instance_operations, "resume", ids.len() as u64),
            _ => {}
        }
    }

    pub(super) fn note(&self, what: &DecisionKind) {
        let numbers = &mut *self.numbers();
        numbers.density.record(what);
        numbers.machines.note(what);
        match what {
            DecisionKind::ScaleUpAccepted { accepted: granted, .. } => {
                add(&mut numbers.instance_operations, "create", u64::from(*granted));
                add(&mut numbers.scale_operations, "up", u64::from(*granted));
            }
            DecisionKind::Discovered {
                origin: InstanceOrigin::Requested | InstanceOrigin::RequestedLate,
                after,
                ..
            } => numbers.creation.observe(*after),
            DecisionKind::Running { after, .. } => numbers.is_running.observe(*after),
            DecisionKind::Ready { after, .. } => numbers.readiness.observe(*after),
            DecisionKind::Leased { waited, .. } => {
                add(&mut numbers.task_operations, "acquire", 1);
                numbers.wait.observe(*waited);
            }
            DecisionKind::Released { .. } => add(&mut numbers.task_operations, "release", 1),
            DecisionKind::Delete { reason: why, .. } => {
                if matches!(why, RemovalReason::Idle { .. }) {
                    add(&mut numbers.scale_operations, "down", 1);
                }
                add(&mut numbers.removals, removal_label(why), 1);
            }
            DecisionKind::Deleted { lifetime: life, deletion, .. } => {
                numbers.life.observe(*life);
                if let Some(took) = deletion {
                    numbers.deletion.observe(*took);
                }
            }
            DecisionKind::MissingFromList { .. } => numbers.missing_from_list += 1,
            DecisionKind::CreationFailed { .. } => numbers.creation_failures += 1,
            DecisionKind::ListFailed { .. } => numbers.list_failures += 1,
            DecisionKind::Lost { jobs, .. } => numbers.lost_jobs += jobs.len() as u64,
            _ => {}
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "counts of instances are far below 2^52")]
    pub(super) fn observe(&self, engine: &Engine) {
        let tasks = engine.slot_counts();
        let counts = engine.totals();
        let mut numbers = self.numbers();
        numbers.tasks = [
            ("idle", tasks.idle),
            ("pending", tasks.pending),
            ("acquired", tasks.acquired),
            ("reserved", tasks.reserved),
            ("unavailable", tasks.unavailable),
        ]
        .into();
        numbers.instances = counts.by_state.into_iter().collect();
        numbers.machines.observe(counts.machines);
        numbers.gauges.insert(MAX_INSTANCES, counts.max.map_or(0.0, |max| max as f64));
        numbers.gauges.insert(DESIRED, counts.desired_change as f64);
        numbers.gauges.insert(COST, counts.cost_per_hour);
        numbers.gauges.insert(UNMANAGED, counts.unmanaged as f64);
    }

    /// Returns all metrics with their current values.
    #[must_use]
    pub fn families(&self) -> Vec<Family> {
        let numbers = self.numbers();
        let mut families = Vec::new();
        for (name, help) in GAUGES {
            families.push(one(name, help, Kind::Gauge, numbers.gauges.get(name).copied().unwrap_or(0.0)));
        }
        for (name, help, kind, label, values) in [
            ("fleeting_provisioner_instances", "Instances by state.", Kind::Gauge, "state", &numbers.instances),
            (
                "fleeting_provisioner_instance_operations_total",
                "Operations on instances.",
                Kind::Counter,
                "operation",
                &numbers.instance_operations,
            ),
            (
                "fleeting_provisioner_internal_operations_total",
                "Calls of the plugin.",
                Kind::Counter,
                "operation",
                &numbers.internal_operations,
            ),
            ("fleeting_taskscaler_tasks", "Slots by state.", Kind::Gauge, "state", &numbers.tasks),
            (
                "fleeting_taskscaler_task_operations_total",
                "Operations on slots.",
                Kind::Counter,
                "operation",
                &numbers.task_operations,
            ),
            (
                "fleeting_taskscaler_scale_operations_total",
                "Instances that were created, and those that were removed because nobody needed them.",
                Kind::Counter,
                "operation",
                &numbers.scale_operations,
            ),
            (
                "muster_taskscaler_removals_total",
                "Deleted instances by reason.",
                Kind::Counter,
                "reason",
                &numbers.removals,
            ),
        ] {
            families.push(Family { name, help, kind, samples: labelled(label, values) });
        }
        for (name, help, value) in [
            (
                "fleeting_provisioner_missed_updates_total",
                "Times that a known instance was missing in a list.",
                numbers.missing_from_list,
            ),
            (
                "muster_taskscaler_creation_failures_total",
                "Creations that failed, or gave nothing that got ready.",
                numbers.creation_failures,
            ),
            ("muster_taskscaler_list_failures_total", "Failed attempts to list instances.", numbers.list_failures),
            ("muster_taskscaler_lost_jobs_total", "Jobs whose instance was lost.", numbers.lost_jobs),
        ] {
            families.push(one(name, help, Kind::Counter, to_float(value)));
        }
        families.extend(numbers.histograms());
        families.extend(numbers.density.families());
        families.extend(numbers.machines.families());
        families
    }
}

impl Counters {
    fn histograms(&self) -> Vec<Family> {
        let all = [
            (
                "fleeting_provisioner_instance_creation_time_seconds",
                "From the request for an instance to its first sight.",
                &self.creation,
            ),
            (
                "fleeting_provisioner_instance_is_running_time_seconds",
                "From the request for an instance until it runs.",
                &self.is_running,
            ),
            (
                "fleeting_provisioner_instance_deletion_time_seconds",
                "From the first removal of an instance until it is gone.",
                &self.deletion,
            ),
            (
                "fleeting_provisioner_instance_life_duration_seconds",
                "From the first sight of an instance until it is gone.",
                &self.life,
            ),
            (
                "fleeting_taskscaler_task_instance_readiness_time_seconds",
                "From running until jobs can have an instance.",
                &self.readiness,
            ),
            ("muster_taskscaler_acquire_wait_seconds", "How long jobs waited for a slot.", &self.wait),
        ];
        let family = |(name, help, histogram): (_, _, &Histogram)| Family {
            name,
            help,
            kind: Kind::Histogram,
            samples: vec![histogram.sample()],
        };
        all.into_iter().map(family).collect()
    }
}

const MAX_TASKS: &str = "fleeting_taskscaler_max_tasks_per_instance";
const MAX_USES: &str = "fleeting_taskscaler_max_use_count_per_instance";
const MAX_INSTANCES: &str = "fleeting_provisioner_max_instances";
const DESIRED: &str = "fleeting_taskscaler_desired_instances";
const COST: &str = "muster_taskscaler_cost_per_hour";
const UNMANAGED: &str = "muster_taskscaler_unmanaged_instances";
const GAUGES: [(&str, &str); 6] = [
    (MAX_INSTANCES, "The most instances; 0: no limit."),
    (MAX_TASKS, "Slots of an instance."),
    (MAX_USES, "Jobs of an instance in its life; 0: no limit."),
    (DESIRED, "Instances to create (positive) or to remove (negative)."),
    (COST, "What the instances cost per hour at most, by the prices that are known."),
    (UNMANAGED, "Instances in the groups that this manager did not create."),
];

/// Returns the value of the label `reason` for a deletion.
fn removal_label(why: &RemovalReason) -> &'static str {
    match why {
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
        RemovalReason::ResumeFailed { .. } => "resume_failed",
        RemovalReason::NoSpareInstance => "no_spare_instance",
        RemovalReason::Shutdown => "shutdown",
        RemovalReason::Operator { .. } | RemovalReason::GroupDrained { .. } => "operator",
    }
}

fn add(values: &mut Labelled, name: &'static str, n: u64) {
    *values.entry(name).or_default() += n;
}

fn one(name: &'static str, help: &'static str, kind: Kind, value: f64) -> Family {
    Family { name, help, kind, samples: vec![Sample { labels: Vec::new(), value, buckets: Vec::new() }] }
}

fn labelled(label: &'static str, values: &Labelled) -> Vec<Sample> {
    let sample = |(name, value): (&&'static str, &u64)| Sample {
        labels: vec![(label, (*name).to_owned())],
        value: to_float(*value),
        buckets: Vec::new(),
    };
    values.iter().map(sample).collect()
}

#[expect(clippy::cast_precision_loss, reason = "a counter beyond 2^52 is none that anyone reads")]
fn to_float(value: u64) -> f64 {
    value as f64
}
