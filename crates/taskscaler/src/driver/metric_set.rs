//! Sets of Prometheus metrics.

use std::fmt;

use prometheus::core::Collector;
use prometheus::proto::{LabelPair, Metric, MetricFamily};
use prometheus::{
    Gauge, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
};

/// Set of metrics that are exposed together.
#[derive(Default)]
pub struct MetricSet(Vec<Box<dyn Collector>>);

impl fmt::Debug for MetricSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricSet").field("metrics", &self.0.len()).finish_non_exhaustive()
    }
}

#[expect(
    clippy::expect_used,
    reason = "names, labels and buckets are constants or checked, and tests create each metric"
)]
impl MetricSet {
    /// Adds a counter without labels.
    pub fn counter(&mut self, name: &str, help: &str) -> IntCounter {
        self.add(IntCounter::new(name, help).expect("the name is invalid"))
    }

    /// Adds a counter with labels.
    pub fn counters(&mut self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        self.add(IntCounterVec::new(Opts::new(name, help), labels).expect("a name is invalid"))
    }

    /// Adds a gauge without labels.
    pub fn gauge(&mut self, name: &str, help: &str) -> IntGauge {
        self.add(IntGauge::new(name, help).expect("the name is invalid"))
    }

    /// Adds a gauge with fractional values and without labels.
    pub fn float_gauge(&mut self, name: &str, help: &str) -> Gauge {
        self.add(Gauge::new(name, help).expect("the name is invalid"))
    }

    /// Adds a gauge with labels.
    pub fn gauges(&mut self, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
        self.add(IntGaugeVec::new(Opts::new(name, help), labels).expect("a name is invalid"))
    }

    /// Adds a histogram without labels. `bounds` are the upper bounds of its buckets, in ascending order.
    pub fn histogram(&mut self, name: &str, help: &str, bounds: &[f64]) -> Histogram {
        self.add(Histogram::with_opts(buckets(name, help, bounds)).expect("the name or the bounds are invalid"))
    }

    /// Adds a histogram with one label, and a series for each of its `values`.
    pub fn histograms(&mut self, name: &str, help: &str, bounds: &[f64], label: &str, values: &[&str]) -> HistogramVec {
        let histograms =
            HistogramVec::new(buckets(name, help, bounds), &[label]).expect("a name or the bounds are invalid");
        for value in values {
            histograms.with_label_values(&[value]);
        }
        self.add(histograms)
    }

    fn add<T: Collector + Clone + 'static>(&mut self, metric: T) -> T {
        self.0.push(Box::new(metric.clone()));
        metric
    }

    /// Returns the current values of all metrics. The series of each metric are sorted by their labels.
    #[must_use]
    pub fn collect(&self) -> Vec<MetricFamily> {
        let mut families: Vec<MetricFamily> = self.0.iter().flat_map(|metric| metric.collect()).collect();
        for family in &mut families {
            family.mut_metric().sort_by(|one, other| label_values(one).cmp(label_values(other)));
        }
        families
    }
}

fn label_values(metric: &Metric) -> impl Iterator<Item = &str> {
    metric.get_label().iter().map(LabelPair::value)
}

fn buckets(name: &str, help: &str, bounds: &[f64]) -> HistogramOpts {
    HistogramOpts::new(name, help).buckets(bounds.to_vec())
}
