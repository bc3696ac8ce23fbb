//! GitLab Runner's metrics for `docker+machine`, computed from instances, so that dashboards for these metrics keep working.

use std::collections::BTreeMap;

use super::family::{Family, Histogram, Kind, Sample};
use crate::decision::DecisionKind;

const STATES: &str = "gitlab_runner_autoscaling_machine_states";
const CREATION: &str = "gitlab_runner_autoscaling_machine_creation_duration_seconds";
/// Upper bounds of the buckets in seconds: ten bounds from 30 s on, each 1.25 times the one before.
const CREATION_SECONDS: [f64; 10] = [
    30.0,
    37.5,
    46.875,
    58.59375,
    73.2421875,
    91.552734375,
    114.44091796875,
    143.0511474609375,
    178.813_934_326_171_88,
    223.517_417_907_714_84,
];

/// State of the metrics.
#[derive(Debug)]
pub(super) struct Machines {
    creation: Histogram,
    /// Number of instances by state of `docker+machine`.
    states: BTreeMap<&'static str, u64>,
}

impl Machines {
    pub(super) fn new() -> Self {
        Self { creation: Histogram::new(&[&CREATION_SECONDS]), states: BTreeMap::new() }
    }

    pub(super) fn note(&mut self, what: &DecisionKind) {
        if let DecisionKind::Ready { created: Some(took), .. } = what {
            self.creation.observe(*took);
        }
    }

    pub(super) fn observe(&mut self, states: impl IntoIterator<Item = (&'static str, u64)>) {
        self.states = states.into_iter().collect();
    }

    #[expect(clippy::cast_precision_loss, reason = "counts of instances are far below 2^52")]
    pub(super) fn families(&self) -> [Family; 2] {
        let sample = |(state, count): (&&'static str, &u64)| Sample {
            labels: vec![("state", (*state).to_owned())],
            value: *count as f64,
            buckets: Vec::new(),
        };
        [
            Family {
                name: CREATION,
                help: "From the request for an instance until jobs can have it.",
                kind: Kind::Histogram,
                samples: vec![self.creation.sample()],
            },
            Family {
                name: STATES,
                help: "Instances by the machine states of docker+machine.",
                kind: Kind::Gauge,
                samples: self.states.iter().map(sample).collect(),
            },
        ]
    }
}
