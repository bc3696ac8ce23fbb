//! Metrics that other crates count. They are read on each scrape and get the labels of their `[[runners]]` entry.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use prometheus::proto::{LabelPair, MetricFamily};

use super::entry::EntryLabels;

/// Source of metrics for `[[runners]]` entries.
pub trait Source: Send + Sync {
    /// Returns the current values of all metrics, by entry. Called on each scrape, so it must not block.
    fn families(&self) -> Vec<(EntryLabels, Vec<MetricFamily>)>;
}

/// The sources that have not been dropped.
#[derive(Default)]
pub(super) struct Sources(Mutex<Vec<Weak<dyn Source>>>);

impl Sources {
    pub(super) fn add(&self, source: Weak<dyn Source>) {
        self.0.lock().push(source);
    }

    /// Returns one family for each name, with the series of all entries.
    pub(super) fn gather(&self) -> Vec<MetricFamily> {
        let live: Vec<Arc<dyn Source>> = {
            let mut sources = self.0.lock();
            sources.retain(|source| source.strong_count() > 0);
            sources.iter().filter_map(Weak::upgrade).collect()
        };
        let mut all: BTreeMap<String, MetricFamily> = BTreeMap::new();
        for (entry, families) in live.iter().flat_map(|source| source.families()) {
            for mut family in families {
                let mut series = family.take_metric();
                for metric in &mut series {
                    let mut labels = metric.take_label();
                    labels.extend(entry_labels(&entry));
                    labels.sort_unstable_by(|one, other| one.name().cmp(other.name()));
                    metric.set_label(labels);
                }
                all.entry(family.name().to_owned()).or_insert(family).mut_metric().extend(series);
            }
        }
        all.into_values().collect()
    }
}

fn entry_labels(entry: &EntryLabels) -> [LabelPair; 3] {
    [("runner", &entry.runner), ("runner_name", &entry.runner_name), ("system_id", &entry.system_id)].map(
        |(name, value)| {
            let mut pair = LabelPair::default();
            pair.set_name(name.to_owned());
            pair.set_value(value.clone());
            pair
        },
    )
}
