//! Tests of the exposed metrics, with the text of scrapes.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use prometheus::core::Collector as _;
use prometheus::proto::MetricFamily;
use prometheus::{GaugeVec, Histogram, HistogramOpts, Opts};

use super::*;
use crate::Telemetry;
use crate::spans::SpanSettings;

const BUILD: Build = Build { name: "muster", version: "1.2.3", revision: "abc", branch: "main", built_at: "unknown" };

fn telemetry() -> Arc<Telemetry> {
    Telemetry::new(&BUILD, &Arc::default(), SpanSettings::default())
}

fn labels(name: &str) -> EntryLabels {
    EntryLabels { runner: "abcdefghi".to_owned(), runner_name: name.to_owned(), system_id: "s_1".to_owned() }
}

fn facts() -> JobFacts {
    JobFacts {
        url: "https://gitlab.example/group/project/-/jobs/7".to_owned(),
        mode: ExecutionMode::Traditional,
        age: Duration::ZERO,
        queued: Duration::from_secs(2),
        project_jobs_running: "+Inf".to_owned(),
        queue: Some((12, 3)),
    }
}

fn text(telemetry: &Telemetry) -> String {
    telemetry.metrics.text(ProcessState::Running)
}

/// Returns telemetry in which every metric of this crate has a series.
fn telemetry_with_all_series() -> (Arc<Telemetry>, Arc<EntryMetrics>, JobRecord) {
    let telemetry = telemetry();
    let metrics = &telemetry.metrics;
    metrics.set_concurrent(4);
    metrics.configuration_loaded(true);
    metrics.configuration_saved(false);
    metrics.state_written("insert", Duration::from_micros(300));
    metrics.record_spans("exported", 3);
    metrics.inputs_interpolated(2);
    metrics.inputs_failed(InputFailure::Evaluation);
    let entry = metrics.entry(&labels("one"));
    entry.set_limit(2);
    entry.record_dispatch(Duration::from_millis(3));
    entry.record_job_usage(Some(Duration::from_millis(1200)), Some(30_000_000));
    entry.set_trace_pending(0, 10);
    entry.set_trace_pending(10, 2);
    entry.trace_acknowledged(8);
    entry.token().set_request_limits(4, 1.5, 2);
    entry.token().record_call("request_job", "POST", Some(204), Duration::from_secs(50));
    entry.token().record_call("patch_trace", "PATCH", None, Duration::from_millis(1));
    let job = metrics.job(&entry, facts());
    metrics.job_started(ExecutionMode::Traditional, "shell");
    metrics.record_stage("get_sources", 0.2);
    job.record_stage("step_script", 1.0);
    job.record_failure("script_failure");
    job.set_stage("step_script");
    job.set_state(JobMetricState::Running, ExecutorStage::Prepare);
    drop(metrics.job(&entry, facts()));
    (telemetry, entry, job)
}

#[tokio::test]
async fn acknowledged_jobs_are_not_counted_as_unreported() {
    let telemetry = telemetry();
    let entry = telemetry.metrics.entry(&labels("one"));
    let job = telemetry.metrics.job(&entry, facts());
    let unreported = |count: u32| {
        let text = text(&telemetry);
        text.lines().any(|line| line.starts_with("muster_unreported_jobs{") && line.ends_with(&format!(" {count}")))
    };
    assert!(unreported(0), "the job is running");
    job.set_state(JobMetricState::Success, ExecutorStage::Finish);
    assert!(unreported(1));
    job.set_state(JobMetricState::Success, ExecutorStage::Cleanup);
    assert!(unreported(0), "the server has the result");
}

#[tokio::test(start_paused = true)]
async fn last_contact_age_resets_on_successful_call() {
    let telemetry = telemetry();
    let entry = telemetry.metrics.entry(&labels("one"));
    let age = || {
        let text = text(&telemetry);
        let series = "muster_last_contact_age_seconds{runner=\"abcdefghi\",system_id=\"s_1\"} ";
        let line = text.lines().find_map(|line| line.strip_prefix(series));
        line.unwrap_or_else(|| panic!("{series} in:\n{text}")).parse::<f64>().unwrap()
    };
    tokio::time::advance(Duration::from_secs(30)).await;
    assert_eq!(age(), 30.0, "without a successful call, the age counts from the creation of the metrics");
    entry.token().record_call("request_job", "POST", None, Duration::from_secs(1));
    entry.token().record_call("request_job", "POST", Some(502), Duration::from_secs(1));
    entry.token().record_call("request_job", "POST", Some(403), Duration::from_secs(1));
    assert_eq!(age(), 30.0, "a failed call must not reset the age");
    entry.token().record_call("patch_trace", "PATCH", Some(202), Duration::from_secs(1));
    assert_eq!(age(), 0.0);
    tokio::time::advance(Duration::from_millis(1500)).await;
    assert_eq!(age(), 1.5);
}

#[test]
fn every_metric_is_exposed_with_name_and_type() {
    let (telemetry, _entry, _job) = telemetry_with_all_series();
    let text = text(&telemetry);
    for definition in names::ALL {
        let line = format!("# TYPE {} {}\n", definition.name, definition.kind.label());
        assert!(text.contains(&line), "`{line}` is missing in:\n{text}");
    }
    assert_eq!(text.matches("# TYPE ").count(), names::ALL.len());
}

#[test]
fn series_equal_those_of_gitlab_runner() {
    let (telemetry, _entry, _job) = telemetry_with_all_series();
    let text = text(&telemetry);
    let r = r#"runner="abcdefghi",runner_name="one""#;
    for line in [
        "gitlab_runner_concurrent 4",
        &format!("gitlab_runner_limit{{{r},system_id=\"s_1\"}} 2"),
        &format!(
            "gitlab_runner_jobs{{executor_stage=\"prepare\",{r},stage=\"step_script\",state=\"running\",system_id=\"s_1\"}} 1"
        ),
        &format!("gitlab_runner_jobs{{executor_stage=\"idle\",{r},stage=\"idle\",state=\"idle\",system_id=\"s_1\"}} 0"),
        &format!("gitlab_runner_jobs_total{{{r},system_id=\"s_1\"}} 2"),
        &format!("gitlab_runner_job_duration_seconds_bucket{{mode=\"traditional\",{r},system_id=\"s_1\",le=\"30\"}} 1"),
        &format!(
            "gitlab_runner_job_queue_duration_seconds_bucket{{project_jobs_running=\"+Inf\",{r},system_id=\"s_1\",le=\"+Inf\"}} 2"
        ),
        &format!("gitlab_runner_failed_jobs_total{{failure_reason=\"script_failure\",mode=\"traditional\",{r}}} 1"),
        r#"gitlab_runner_api_request_statuses_total{endpoint="patch_trace",method="patch",runner="abcdefghi",status="-1",system_id="s_1"} 1"#,
        r#"gitlab_runner_api_request_duration_seconds_bucket{endpoint="request_job",method="post",runner="abcdefghi",status_class="2xx",system_id="s_1",le="0.1"} 0"#,
        r#"gitlab_runner_worker_slot_operations_total{operation="started"} 4"#,
        r#"gitlab_runner_errors_total{level="warning"} 0"#,
        "gitlab_runner_job_inputs_interpolations_total 2",
        r#"gitlab_runner_job_inputs_interpolation_failures_total{error_type="evaluation"} 1"#,
        r#"gitlab_runner_job_inputs_interpolation_failures_total{error_type="parse"} 0"#,
        r#"gitlab_runner_process_state_info{state="running"} 1"#,
        "muster_trace_pending_bytes{runner=\"abcdefghi\",runner_name=\"one\",system_id=\"s_1\"} 2",
    ] {
        assert!(text.contains(&format!("\n{line}\n")), "`{line}` is missing in:\n{text}");
    }
}

#[test]
fn promtool_accepts_output() {
    let (telemetry, _entry, _job) = telemetry_with_all_series();
    let promtool =
        Command::new("promtool").args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let Ok(mut promtool) = promtool else {
        return muster_test_prerequisites::missing("promtool is not installed (Debian: prometheus)");
    };
    std::io::Write::write_all(&mut promtool.stdin.take().unwrap(), text(&telemetry).as_bytes()).unwrap();
    let checked = promtool.wait_with_output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
}

#[test]
fn series_of_entry_disappear_with_its_last_job() {
    let telemetry = telemetry();
    let (one, two) = (telemetry.metrics.entry(&labels("one")), telemetry.metrics.entry(&labels("two")));
    let job = telemetry.metrics.job(&one, facts());
    drop(one);
    assert!(
        text(&telemetry).contains("runner_name=\"one\""),
        "the series must exist while a job of the entry is running"
    );
    drop(job);
    let after = text(&telemetry);
    assert!(!after.contains("runner_name=\"one\"") && after.contains("runner_name=\"two\""), "{after}");
    assert!(after.contains("gitlab_runner_request_concurrency{"), "the other entry has the same token:\n{after}");
    drop(two);
    assert!(!text(&telemetry).contains("abcdefghi"));
    // The entry can reappear.
    let _recreated = telemetry.metrics.entry(&labels("one"));
    assert!(text(&telemetry).contains("runner_name=\"one\""));
}

#[test]
fn entries_with_different_system_ids_coexist() {
    let telemetry = telemetry();
    let current = telemetry.metrics.entry(&labels("one"));
    let earlier = telemetry.metrics.entry(&EntryLabels { system_id: "r_2".to_owned(), ..labels("one") });
    for entry in [&current, &earlier] {
        telemetry.metrics.job(entry, facts()).record_failure("script_failure");
    }
    let failed = |count| {
        format!(
            "gitlab_runner_failed_jobs_total{{failure_reason=\"script_failure\",mode=\"traditional\",\
             runner=\"abcdefghi\",runner_name=\"one\"}} {count}\n"
        )
    };
    let both = text(&telemetry);
    assert!(both.contains(&failed(2)) && both.contains("system_id=\"r_2\""), "{both}");
    drop(earlier);
    let rest = text(&telemetry);
    assert!(rest.contains(&failed(2)) && !rest.contains("r_2"), "{rest}");
}

#[test]
fn open_requests_are_counted() {
    let telemetry = telemetry();
    let entry = telemetry.metrics.entry(&labels("one"));
    let open = entry.token().count_open_request();
    let series = "gitlab_runner_request_concurrency{runner=\"abcdefghi\",system_id=\"s_1\"} ";
    assert!(text(&telemetry).contains(&format!("{series}1\n")));
    drop(open);
    assert!(text(&telemetry).contains(&format!("{series}0\n")));
}

#[test]
fn process_metrics_are_plausible() {
    let text = text(&telemetry());
    let value = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap();
        line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()
    };
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    assert!(value("process_resident_memory_bytes") > 100_000.0);
    assert!(value("process_open_fds") >= 3.0 && value("process_open_fds") <= value("process_max_fds"));
    assert!((0.0..86_400.0).contains(&(now - value("process_start_time_seconds"))), "{text}");
}

#[test]
fn label_from_coordinator_is_truncated() {
    let telemetry = telemetry();
    let entry = telemetry.metrics.entry(&labels("one"));
    let facts = JobFacts { project_jobs_running: "9".repeat(10_000), ..facts() };
    let _job = telemetry.metrics.job(&entry, facts);
    assert!(text(&telemetry).contains(&format!("project_jobs_running=\"{}\"", "9".repeat(32))));
}

#[test]
fn source_is_exposed_with_labels_of_its_entry() {
    struct TestSource;
    impl Source for TestSource {
        fn families(&self) -> Vec<(EntryLabels, Vec<MetricFamily>)> {
            let gauge = GaugeVec::new(Opts::new("a_gauge", "of a test"), &["state"]).unwrap();
            gauge.with_label_values(&["say \"on\""]).set(2.0);
            let options = HistogramOpts::new("z_seconds", "of a test").buckets(vec![1.0]);
            let histogram = Histogram::with_opts(options).unwrap();
            for seconds in [0.5, 3.0, 4.0] {
                histogram.observe(seconds);
            }
            let both = || [gauge.collect(), histogram.collect()].concat();
            vec![(labels("one"), both()), (labels("two"), both())]
        }
    }
    let (telemetry, _entry, _job) = telemetry_with_all_series();
    let source: Arc<dyn Source> = Arc::new(TestSource);
    telemetry.metrics.add_source(Arc::downgrade(&source));
    let exposed = text(&telemetry);
    let r = |name: &str| format!("runner=\"abcdefghi\",runner_name=\"{name}\"");
    for line in [
        format!("a_gauge{{{},state=\"say \\\"on\\\"\",system_id=\"s_1\"}} 2", r("two")),
        format!("z_seconds_bucket{{{},system_id=\"s_1\",le=\"1\"}} 1", r("one")),
        format!("z_seconds_bucket{{{},system_id=\"s_1\",le=\"+Inf\"}} 3", r("one")),
        format!("z_seconds_count{{{},system_id=\"s_1\"}} 3", r("one")),
        format!("z_seconds_sum{{{},system_id=\"s_1\"}} 7.5", r("one")),
    ] {
        assert!(
            exposed.contains(&format!("\n{line}\n")) || exposed.starts_with(&line),
            "`{line}` is missing in:\n{exposed}"
        );
    }
    assert_eq!(exposed.matches("# TYPE a_gauge gauge").count(), 1, "one family for all entries");
    drop(source);
    assert!(!text(&telemetry).contains("a_gauge"), "the metrics of a dropped source must disappear");
}

/// A family can have no series: for example, deletions by reason before the first instance is deleted.
#[test]
fn empty_family_does_not_truncate_output() {
    struct EmptySource;
    impl Source for EmptySource {
        fn families(&self) -> Vec<(EntryLabels, Vec<MetricFamily>)> {
            let empty = IntCounterVec::new(Opts::new("a_total", "of a test"), &["reason"]).unwrap();
            vec![(labels("one"), empty.collect())]
        }
    }
    let (telemetry, _entry, _job) = telemetry_with_all_series();
    let before = text(&telemetry).matches("# TYPE ").count();
    let source: Arc<dyn Source> = Arc::new(EmptySource);
    telemetry.metrics.add_source(Arc::downgrade(&source));
    let exposed = text(&telemetry);
    assert_eq!(exposed.matches("# TYPE ").count(), before, "{exposed}");
    assert!(exposed.contains("\nprocess_open_fds "), "{exposed}");
}
