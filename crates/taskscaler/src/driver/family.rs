//! Numbers as values: families of them, and histograms.

use std::time::Duration;

/// What a family is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
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
    pub kind: Kind,
    /// The numbers.
    pub samples: Vec<Sample>,
}

/// One number, or one histogram.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Labels and values.
    pub labels: Vec<(&'static str, String)>,
    /// The number; of a histogram, the sum.
    pub value: f64,
    /// Of a histogram: each bound with the observations up to it; the last bound is infinite.
    pub buckets: Vec<(f64, u64)>,
}

/// Observations by size.
#[derive(Debug)]
pub struct Histogram {
    bounds: Vec<f64>,
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    /// With the first bounds that are any.
    #[must_use]
    pub fn new(candidates: &[&[f64]]) -> Self {
        let bounds =
            candidates.iter().find(|bounds| !bounds.is_empty()).map(|bounds| bounds.to_vec()).unwrap_or_default();
        let counts = vec![0; bounds.len() + 1];
        Self { bounds, counts, sum: 0.0 }
    }

    /// One more, in seconds.
    pub fn observe(&mut self, duration: Duration) {
        self.observe_number(duration.as_secs_f64());
    }

    /// One more.
    pub fn observe_number(&mut self, number: f64) {
        let place = self.bounds.iter().position(|bound| number <= *bound).unwrap_or(self.bounds.len());
        if let Some(count) = self.counts.get_mut(place) {
            *count += 1;
        }
        self.sum += number;
    }

    /// As a value, without a label.
    #[must_use]
    pub fn sample(&self) -> Sample {
        let mut sum = 0;
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        let buckets = bounds.zip(&self.counts).map(|(bound, count)| {
            sum += count;
            (bound, sum)
        });
        Sample { labels: Vec::new(), value: self.sum, buckets: buckets.collect() }
    }
}
