//! Metrics that other crates count. They are read on each scrape and get the labels of their `[[runners]]` entry.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use prometheus::proto::{self, MetricFamily, MetricType};

use super::entry::EntryLabels;

/// Counts something for `[[runners]]` entries.
pub trait Source: Send + Sync {
    /// All numbers, at this moment. Called at each scrape; it must not wait.
    fn numbers(&self) -> Vec<(EntryLabels, Vec<Family>)>;
}

/// What a family is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FamilyKind {
    /// It goes up and down.
    Gauge,
    /// It only goes up.
    Counter,
    /// Observations by size.
    Histogram,
}

/// Numbers of one name.
#[derive(Debug, Clone, PartialEq)]
pub struct Family {
    /// Its name.
    pub name: &'static str,
    /// What it says.
    pub help: &'static str,
    /// What it is.
    pub kind: FamilyKind,
    /// The numbers.
    pub samples: Vec<Sample>,
}

/// One number, or one histogram.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Labels beside those of the entry.
    pub labels: Vec<(&'static str, String)>,
    /// The number; of a histogram, the sum.
    pub value: f64,
    /// Of a histogram: each bound with the observations up to it; the last bound is infinite.
    pub buckets: Vec<(f64, u64)>,
}

/// The sources that live.
#[derive(Default)]
pub(super) struct Sources(Mutex<Vec<Weak<dyn Source>>>);

impl Sources {
    pub(super) fn add(&self, source: Weak<dyn Source>) {
        self.0.lock().push(source);
    }

    /// All families by name, those of all entries together.
    pub(super) fn gather(&self) -> BTreeMap<&'static str, MetricFamily> {
        let live: Vec<Arc<dyn Source>> = {
            let mut sources = self.0.lock();
            sources.retain(|source| source.strong_count() > 0);
            sources.iter().filter_map(Weak::upgrade).collect()
        };
        let mut all: BTreeMap<&'static str, MetricFamily> = BTreeMap::new();
        for (labels, families) in live.iter().flat_map(|source| source.numbers()) {
            for family in families {
                let known = all.entry(family.name).or_insert_with(|| empty(&family));
                let samples = family.samples.iter().map(|sample| metric(family.kind, &labels, sample));
                known.mut_metric().extend(samples);
            }
        }
        all
    }
}

fn empty(family: &Family) -> MetricFamily {
    let mut empty = MetricFamily::default();
    empty.set_name(family.name.to_owned());
    empty.set_help(family.help.to_owned());
    empty.set_field_type(match family.kind {
        FamilyKind::Gauge => MetricType::GAUGE,
        FamilyKind::Counter => MetricType::COUNTER,
        FamilyKind::Histogram => MetricType::HISTOGRAM,
    });
    empty
}

fn metric(kind: FamilyKind, entry: &EntryLabels, sample: &Sample) -> proto::Metric {
    let fixed = [("runner", &entry.runner), ("runner_name", &entry.runner_name), ("system_id", &entry.system_id)];
    let own = sample.labels.iter().map(|(name, value)| (*name, value));
    let mut pairs: Vec<(&str, &String)> = fixed.into_iter().chain(own).collect();
    pairs.sort_unstable_by_key(|(name, _)| *name);
    let pairs = pairs.into_iter().map(|(name, value)| {
        let mut pair = proto::LabelPair::default();
        pair.set_name(name.to_owned());
        pair.set_value(value.clone());
        pair
    });
    let mut metric = proto::Metric::from_label(pairs.collect());
    match kind {
        FamilyKind::Gauge => {
            let mut gauge = proto::Gauge::default();
            gauge.set_value(sample.value);
            metric.set_gauge(gauge);
        }
        FamilyKind::Counter => {
            let mut counter = proto::Counter::default();
            counter.set_value(sample.value);
            metric.set_counter(counter);
        }
        FamilyKind::Histogram => metric.set_histogram(histogram(sample)),
    }
    metric
}

fn histogram(sample: &Sample) -> proto::Histogram {
    let mut histogram = proto::Histogram::default();
    histogram.set_sample_sum(sample.value);
    histogram.set_sample_count(sample.buckets.last().map_or(0, |(_, count)| *count));
    // The encoder adds the infinite one, and would write this one's bound in Rust's way.
    let finite = sample.buckets.iter().filter(|(bound, _)| bound.is_finite());
    let buckets = finite.map(|(bound, count)| {
        let mut bucket = proto::Bucket::default();
        bucket.set_upper_bound(*bound);
        bucket.set_cumulative_count(*count);
        bucket
    });
    histogram.set_bucket(buckets.collect());
    histogram
}
