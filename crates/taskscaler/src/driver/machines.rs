//! GitLab Runner's metrics for `docker+machine`, for existing dashboards.

use prometheus::{Histogram, IntGaugeVec};

use super::metric_set::MetricSet;
use crate::decision::DecisionKind;

/// Upper bounds of the buckets in seconds: each is 1.25 times the one before, as in GitLab Runner.
const CREATION_SECONDS: [f64; 10] = [
    30.0,
    37.5,
    46.875,
    58.59375,
    73.242_187_5,
    91.552_734_375,
    114.440_917_968_75,
    143.051_147_460_937_5,
    178.813_934_326_171_88,
    223.517_417_907_714_84,
];

#[derive(Debug)]
pub(super) struct MachineMetrics {
    creation: Histogram,
    states: IntGaugeVec,
}

impl MachineMetrics {
    pub(super) fn new(set: &mut MetricSet) -> Self {
        let creation = set.histogram(
            "gitlab_runner_autoscaling_machine_creation_duration_seconds",
            "Time from the request for an instance until it is ready for jobs.",
            &CREATION_SECONDS,
        );
        let states = set.gauges(
            "gitlab_runner_autoscaling_machine_states",
            "Number of instances by the machine states of docker+machine.",
            &["state"],
        );
        Self { creation, states }
    }

    pub(super) fn record(&self, decision: &DecisionKind) {
        if let DecisionKind::Ready { created: Some(duration), .. } = decision {
            self.creation.observe(duration.as_secs_f64());
        }
    }

    pub(super) fn observe(&self, states: &[(&'static str, u64)]) {
        for (state, count) in states {
            self.states.with_label_values(&[state]).set(super::metrics::gauge_value(*count));
        }
    }
}
