//! Sets of metrics that are registered and unregistered together: of the process, of a `[[runners]]` entry, or of a token.

use std::collections::HashMap;

use prometheus::core::Collector;
use prometheus::{
    Counter, Gauge, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry,
};

use crate::names::{Definition, MetricType};

/// Set of registered metrics with the same fixed labels.
pub(super) struct MetricSet {
    registry: Registry,
    labels: HashMap<String, String>,
    registered: Vec<Box<dyn Collector>>,
}

#[expect(clippy::expect_used, reason = "the names of metrics and labels are constants, which tests use")]
impl MetricSet {
    pub(super) fn new(registry: &Registry, labels: &[(&str, &str)]) -> Self {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Self { registry: registry.clone(), labels, registered: Vec::new() }
    }

    pub(super) fn counter(&mut self, definition: &Definition) -> IntCounter {
        let counter = IntCounter::with_opts(self.options(definition)).expect("the definition is invalid");
        self.register(counter)
    }

    pub(super) fn counters(&mut self, definition: &Definition) -> IntCounterVec {
        let counters =
            IntCounterVec::new(self.options(definition), definition.labels).expect("the definition is invalid");
        self.register(counters)
    }

    /// Registers a counter with fractional values, such as seconds.
    pub(super) fn float_counter(&mut self, definition: &Definition) -> Counter {
        let counter = Counter::with_opts(self.options(definition)).expect("the definition is invalid");
        self.register(counter)
    }

    pub(super) fn gauge(&mut self, definition: &Definition) -> IntGauge {
        let gauge = IntGauge::with_opts(self.options(definition)).expect("the definition is invalid");
        self.register(gauge)
    }

    pub(super) fn float_gauge(&mut self, definition: &Definition) -> Gauge {
        let gauge = Gauge::with_opts(self.options(definition)).expect("the definition is invalid");
        self.register(gauge)
    }

    pub(super) fn gauges(&mut self, definition: &Definition) -> IntGaugeVec {
        let gauges = IntGaugeVec::new(self.options(definition), definition.labels).expect("the definition is invalid");
        self.register(gauges)
    }

    pub(super) fn histogram(&mut self, definition: &Definition) -> Histogram {
        let histogram = Histogram::with_opts(self.histogram_opts(definition)).expect("the definition is invalid");
        self.register(histogram)
    }

    pub(super) fn histograms(&mut self, definition: &Definition) -> HistogramVec {
        let histograms =
            HistogramVec::new(self.histogram_opts(definition), definition.labels).expect("the definition is invalid");
        self.register(histograms)
    }

    /// Registers a metric. If a metric with this name and these labels exists, logs an error and does not expose the
    /// new one, because no configuration may stop the process.
    pub(super) fn register<T: Collector + Clone + 'static>(&mut self, metric: T) -> T {
        match self.registry.register(Box::new(metric.clone())) {
            Ok(()) => self.registered.push(Box::new(metric.clone())),
            Err(error) => tracing::error!(%error, "failed to register a metric, so it is not exposed"),
        }
        metric
    }

    pub(super) fn unregister(&mut self) {
        for member in self.registered.drain(..) {
            // Fails only if the metric is not registered.
            let _ = self.registry.unregister(member);
        }
    }

    fn options(&self, definition: &Definition) -> Opts {
        Opts::new(definition.name, definition.help).const_labels(self.labels.clone())
    }

    fn histogram_opts(&self, definition: &Definition) -> HistogramOpts {
        let buckets = match definition.kind {
            MetricType::Histogram(buckets) => buckets.to_vec(),
            MetricType::Counter | MetricType::Gauge => Vec::new(),
        };
        HistogramOpts::new(definition.name, definition.help).const_labels(self.labels.clone()).buckets(buckets)
    }
}
