//! Metrics of plugins, as metric families.

use muster_fleeting::host::{CALL_SECONDS, CallResult, Calls, Counts};
use muster_taskscaler::driver::{Family, Kind, Sample};

/// Returns the metrics of the plugins of all groups, labeled with the group's name.
///
/// They exist from the first attempt to start the plugin, even if every attempt fails.
pub(super) fn families(groups: &[(String, Counts)]) -> Vec<Family> {
    let mut all: Vec<Family> = Vec::new();
    for (group, counts) in groups {
        for (index, mut family) in plugin_families(counts).into_iter().enumerate() {
            for sample in &mut family.samples {
                sample.labels.insert(0, ("group", group.clone()));
            }
            match all.get_mut(index) {
                Some(known) => known.samples.append(&mut family.samples),
                None => all.push(family),
            }
        }
    }
    all
}

/// Returns the metrics of one plugin, always in the same order.
fn plugin_families(counts: &Counts) -> Vec<Family> {
    let family = |name, help, kind, samples| Family { name, help, kind, samples };
    let calls = |of: &dyn Fn(&'static str, &Calls) -> Vec<Sample>| {
        counts.calls.iter().flat_map(|(call, calls)| of(call, calls)).collect()
    };
    let results = |call, calls: &Calls| {
        let count = |result: &CallResult| calls.results.get(result).copied().unwrap_or_default();
        let sample = |result: &CallResult| number(&[("rpc", call), ("result", result.label())], count(result));
        CallResult::ALL.iter().map(sample).collect()
    };
    vec![
        family(
            "muster_plugin_up",
            "Whether the plugin runs and can be called.",
            Kind::Gauge,
            vec![number(&[], u64::from(counts.is_up))],
        ),
        family(
            "muster_plugin_starts_total",
            "Starts of the plugin's process.",
            Kind::Counter,
            vec![number(&[("result", "ok")], counts.starts), number(&[("result", "failed")], counts.failed_starts)],
        ),
        family("muster_plugin_calls_total", "Calls of the plugin by result.", Kind::Counter, calls(&results)),
        family(
            "muster_plugin_call_seconds",
            "Time of each call of the plugin.",
            Kind::Histogram,
            calls(&|call, calls| vec![times(call, calls)]),
        ),
        family(
            "muster_plugin_invalid_responses_total",
            "Invalid responses of the plugin, and responses with invalid parts.",
            Kind::Counter,
            calls(&|call, calls| vec![number(&[("rpc", call)], calls.invalid_responses)]),
        ),
        family(
            "muster_plugin_log_lines_dropped_total",
            "Lines of the plugin's log that were dropped because there were too many.",
            Kind::Counter,
            vec![number(&[], counts.log_lines_dropped)],
        ),
    ]
}

#[expect(clippy::cast_precision_loss, reason = "counters stay far below 2^52")]
fn number(labels: &[(&'static str, &str)], value: u64) -> Sample {
    let labels = labels.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    Sample { labels, value: value as f64, buckets: Vec::new() }
}

fn times(call: &'static str, calls: &Calls) -> Sample {
    let mut sum = 0;
    let bounds = CALL_SECONDS.into_iter().chain([f64::INFINITY]);
    let buckets = bounds.zip(calls.times).map(|(bound, count)| {
        sum += count;
        (bound, sum)
    });
    Sample { labels: vec![("rpc", call.to_owned())], value: calls.seconds, buckets: buckets.collect() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn calls_are_counted_by_name_and_result() {
        let mut calls = Calls { invalid_responses: 1, seconds: 6.5, ..Calls::default() };
        calls.results = BTreeMap::from([(CallResult::Ok, 3), (CallResult::Timeout, 1)]);
        calls.times[0] = 2;
        calls.times[CALL_SECONDS.len()] = 2;
        let counts = Counts { is_up: true, starts: 4, calls: BTreeMap::from([("Update", calls)]), ..Counts::default() };
        let families = families(&[("g".to_owned(), counts), ("h".to_owned(), Counts::default())]);
        let samples = |name: &str| &families.iter().find(|family| family.name == name).unwrap().samples;
        let sample = |name: &str, values: &[&str]| {
            let is_it =
                |sample: &&Sample| sample.labels.iter().map(|(_, value)| value.as_str()).eq([&["g"], values].concat());
            samples(name).iter().find(is_it).unwrap().clone()
        };
        assert_eq!(samples("muster_plugin_up").iter().map(|sample| sample.value).collect::<Vec<_>>(), [1.0, 0.0]);
        assert_eq!(sample("muster_plugin_up", &[]).value, 1.0);
        assert_eq!(sample("muster_plugin_starts_total", &["ok"]).value, 4.0);
        assert_eq!(sample("muster_plugin_starts_total", &["failed"]).value, 0.0);
        assert_eq!(sample("muster_plugin_calls_total", &["Update", "timeout"]).value, 1.0);
        assert_eq!(sample("muster_plugin_calls_total", &["Update", "disconnected"]).value, 0.0);
        assert_eq!(sample("muster_plugin_invalid_responses_total", &["Update"]).value, 1.0);
        let times = sample("muster_plugin_call_seconds", &["Update"]);
        assert_eq!((times.value, times.buckets[0]), (6.5, (0.005, 2)));
        assert_eq!(times.buckets.last(), Some(&(f64::INFINITY, 4)));
    }
}
