//! Metrics of plugins.

use muster_fleeting::host::{CALL_SECONDS, CallResult, Calls, Counts};
use muster_taskscaler::driver::MetricSet;
use prometheus::proto::{Bucket, Histogram, LabelPair, Metric, MetricFamily, MetricType};

/// Metrics of the plugins, labeled with the group's name. They exist from the first attempt to start a plugin.
pub(super) fn families(groups: &[(String, Counts)]) -> Vec<MetricFamily> {
    let mut set = MetricSet::default();
    let up = set.gauges("muster_plugin_up", "1 if the plugin is running and can be called, otherwise 0.", &["group"]);
    let starts =
        set.counters("muster_plugin_starts_total", "Starts of the plugin's process by result.", &["group", "result"]);
    let results = set.counters("muster_plugin_calls_total", "Plugin calls by result.", &["group", "rpc", "result"]);
    let invalid_responses = set.counters(
        "muster_plugin_invalid_responses_total",
        "Responses of the plugin that were not valid, completely or in part.",
        &["group", "rpc"],
    );
    let lines_dropped = set.counters(
        "muster_plugin_log_lines_dropped_total",
        "Lines of the plugin's log that were dropped because there were too many.",
        &["group"],
    );
    let mut seconds = MetricFamily::default();
    seconds.set_name("muster_plugin_call_seconds".to_owned());
    seconds.set_help("Duration of plugin calls.".to_owned());
    seconds.set_field_type(MetricType::HISTOGRAM);
    for (group, counts) in groups {
        let group = group.as_str();
        up.with_label_values(&[group]).set(counts.is_up.into());
        starts.with_label_values(&[group, "ok"]).inc_by(counts.starts);
        starts.with_label_values(&[group, "failed"]).inc_by(counts.failed_starts);
        lines_dropped.with_label_values(&[group]).inc_by(counts.log_lines_dropped);
        for (&rpc, calls) in &counts.calls {
            for result in CallResult::ALL {
                let count = calls.results.get(&result).copied().unwrap_or_default();
                results.with_label_values(&[group, rpc, result.label()]).inc_by(count);
            }
            invalid_responses.with_label_values(&[group, rpc]).inc_by(calls.invalid_responses);
            seconds.mut_metric().push(call_seconds(group, rpc, calls));
        }
    }
    let mut families = set.collect();
    families.push(seconds);
    families
}

/// Returns the metric of the durations of one group's calls to `rpc`.
///
/// Its histogram has only the finite buckets, because the encoder adds the infinite one.
fn call_seconds(group: &str, rpc: &str, calls: &Calls) -> Metric {
    let mut histogram = Histogram::default();
    histogram.set_sample_sum(calls.seconds);
    histogram.set_sample_count(calls.times.iter().sum());
    let mut count = 0;
    let buckets = CALL_SECONDS.into_iter().zip(calls.times).map(|(bound, calls_in_bucket)| {
        count += calls_in_bucket;
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(bound);
        bucket.set_cumulative_count(count);
        bucket
    });
    histogram.set_bucket(buckets.collect());
    let labels = [("group", group), ("rpc", rpc)].map(|(name, value)| {
        let mut pair = LabelPair::default();
        pair.set_name(name.to_owned());
        pair.set_value(value.to_owned());
        pair
    });
    let mut metric = Metric::from_label(labels.into());
    metric.set_histogram(histogram);
    metric
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn calls_are_counted_by_rpc_and_result() {
        let mut calls = Calls { invalid_responses: 1, seconds: 6.5, ..Calls::default() };
        calls.results = BTreeMap::from([(CallResult::Ok, 3), (CallResult::Timeout, 1)]);
        calls.times[0] = 2;
        calls.times[CALL_SECONDS.len()] = 2;
        let counts = Counts { is_up: true, starts: 4, calls: BTreeMap::from([("Update", calls)]), ..Counts::default() };
        let families = families(&[("g".to_owned(), counts), ("h".to_owned(), Counts::default())]);
        let series = |name: &str| families.iter().find(|family| family.name() == name).unwrap().get_metric();
        let find = |name: &str, values: &[&str]| {
            // The labels are sorted by name: group, result, rpc.
            let matches =
                |metric: &&Metric| metric.get_label().iter().map(LabelPair::value).eq([&["g"], values].concat());
            series(name).iter().find(matches).unwrap().clone()
        };
        let count = |name: &str, values: &[&str]| find(name, values).get_counter().get_value();
        let up = series("muster_plugin_up").iter().map(|metric| metric.get_gauge().get_value());
        assert_eq!(up.collect::<Vec<_>>(), [1.0, 0.0]);
        assert_eq!(count("muster_plugin_starts_total", &["ok"]), 4.0);
        assert_eq!(count("muster_plugin_starts_total", &["failed"]), 0.0);
        assert_eq!(count("muster_plugin_calls_total", &["timeout", "Update"]), 1.0);
        assert_eq!(count("muster_plugin_calls_total", &["disconnected", "Update"]), 0.0);
        assert_eq!(count("muster_plugin_invalid_responses_total", &["Update"]), 1.0);
        let seconds = find("muster_plugin_call_seconds", &["Update"]);
        let seconds = seconds.get_histogram();
        let first = &seconds.get_bucket()[0];
        assert_eq!((first.upper_bound(), first.cumulative_count()), (0.005, 2));
        assert_eq!((seconds.get_sample_sum(), seconds.get_sample_count()), (6.5, 4));
    }
}
