use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

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
        mode: Mode::Traditional,
        age: Duration::ZERO,
        queued: Duration::from_secs(2),
        project_jobs_running: "Inf+".to_owned(),
        queue: Some((12, 3)),
    }
}

fn text(telemetry: &Telemetry) -> String {
    telemetry.metrics.text(ProcessState::Running)
}

/// Returns telemetry in which every metric of this crate has a series.
fn busy() -> (Arc<Telemetry>, Arc<EntryMetrics>, JobRecord) {
    let telemetry = telemetry();
    let metrics = &telemetry.metrics;
    metrics.set_concurrent(4);
    metrics.configuration_loaded(true);
    metrics.configuration_saved(false);
    metrics.stored("insert", Duration::from_micros(300));
    metrics.spans("exported", 3);
    metrics.inputs_put_in(2);
    metrics.inputs_failed(InputFailure::Evaluation);
    let entry = metrics.entry(&labels("one"));
    entry.set_limit(2);
    entry.handed_over(Duration::from_millis(3));
    entry.job_used(Some(Duration::from_millis(1200)), Some(30_000_000));
    entry.trace_waits(0, 10);
    entry.trace_waits(10, 2);
    entry.trace_acknowledged(8);
    entry.token().set_request_limits(4, 1.5, 2);
    entry.token().called("request_job", "POST", Some(204), Duration::from_secs(50));
    entry.token().called("patch_trace", "PATCH", None, Duration::from_millis(1));
    let job = metrics.job(&entry, facts());
    metrics.job_started(Mode::Traditional, "shell");
    metrics.stage_took("get_sources", 0.2);
    job.stage_took("step_script", 1.0);
    job.failed("script_failure");
    job.set_stage("step_script");
    job.set_state(State::Running, ExecutorStage::Prepare);
    drop(metrics.job(&entry, facts()));
    (telemetry, entry, job)
}

#[tokio::test(start_paused = true)]
async fn the_age_of_the_heartbeat_grows_until_the_server_takes_something() {
    let telemetry = telemetry();
    let entry = telemetry.metrics.entry(&labels("one"));
    let age = || {
        let text = text(&telemetry);
        let series = "muster_heartbeat_age_seconds{runner=\"abcdefghi\",system_id=\"s_1\"} ";
        let line = text.lines().find_map(|line| line.strip_prefix(series));
        line.unwrap_or_else(|| panic!("{series} in:\n{text}")).parse::<f64>().unwrap()
    };
    tokio::time::advance(Duration::from_secs(30)).await;
    assert_eq!(age(), 30.0, "a manager that never gets through is silent from its start on");
    entry.token().called("request_job", "POST", None, Duration::from_secs(1));
    entry.token().called("request_job", "POST", Some(502), Duration::from_secs(1));
    entry.token().called("request_job", "POST", Some(403), Duration::from_secs(1));
    assert_eq!(age(), 30.0, "nothing of this was taken");
    entry.token().called("patch_trace", "PATCH", Some(202), Duration::from_secs(1));
    assert_eq!(age(), 0.0);
    tokio::time::advance(Duration::from_millis(1500)).await;
    assert_eq!(age(), 1.5);
}

#[test]
fn every_defined_metric_is_exposed_under_its_exact_name_and_type() {
    let (telemetry, _entry, _job) = busy();
    let text = text(&telemetry);
    for definition in names::ALL {
        let kind = match definition.kind {
            names::Kind::Counter => "counter",
            names::Kind::Gauge => "gauge",
            names::Kind::Histogram(_) => "histogram",
        };
        let line = format!("# TYPE {} {kind}\n", definition.name);
        assert!(text.contains(&line), "`{line}` is missing in:\n{text}");
    }
    assert_eq!(text.matches("# TYPE ").count(), names::ALL.len());
}

#[test]
fn series_read_as_those_of_gitlab_runner() {
    let (telemetry, _entry, _job) = busy();
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
            "gitlab_runner_job_queue_duration_seconds_bucket{{project_jobs_running=\"Inf+\",{r},system_id=\"s_1\",le=\"+Inf\"}} 2"
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
        "muster_trace_waiting_bytes{runner=\"abcdefghi\",runner_name=\"one\",system_id=\"s_1\"} 2",
    ] {
        assert!(text.contains(&format!("\n{line}\n")), "`{line}` is missing in:\n{text}");
    }
}

#[test]
fn the_format_is_what_promtool_accepts() {
    let (telemetry, _entry, _job) = busy();
    let promtool =
        Command::new("promtool").args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let Ok(mut promtool) = promtool else {
        return muster_test_needs::missing("there is no promtool (Debian: prometheus)");
    };
    std::io::Write::write_all(&mut promtool.stdin.take().unwrap(), text(&telemetry).as_bytes()).unwrap();
    let checked = promtool.wait_with_output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
}

#[test]
fn the_series_of_an_entry_leave_with_it_and_its_last_job() {
    let telemetry = telemetry();
    let (one, two) = (telemetry.metrics.entry(&labels("one")), telemetry.metrics.entry(&labels("two")));
    let job = telemetry.metrics.job(&one, facts());
    drop(one);
    assert!(text(&telemetry).contains("runner_name=\"one\""), "a job of it is under way");
    drop(job);
    let after = text(&telemetry);
    assert!(!after.contains("runner_name=\"one\"") && after.contains("runner_name=\"two\""), "{after}");
    assert!(after.contains("gitlab_runner_request_concurrency{"), "both have the same token:\n{after}");
    drop(two);
    assert!(!text(&telemetry).contains("abcdefghi"));
    // The entry can reappear.
    let _again = telemetry.metrics.entry(&labels("one"));
    assert!(text(&telemetry).contains("runner_name=\"one\""));
}

#[test]
fn entries_that_differ_in_their_system_id_only_live_side_by_side() {
    let telemetry = telemetry();
    let now = telemetry.metrics.entry(&labels("one"));
    let earlier = telemetry.metrics.entry(&EntryLabels { system_id: "r_2".to_owned(), ..labels("one") });
    for entry in [&now, &earlier] {
        telemetry.metrics.job(entry, facts()).failed("script_failure");
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
fn requests_are_counted_while_they_are_open() {
    let telemetry = telemetry();
    let entry = telemetry.metrics.entry(&labels("one"));
    let open = entry.token().request();
    let series = "gitlab_runner_request_concurrency{runner=\"abcdefghi\",system_id=\"s_1\"} ";
    assert!(text(&telemetry).contains(&format!("{series}1\n")));
    drop(open);
    assert!(text(&telemetry).contains(&format!("{series}0\n")));
}

#[test]
fn the_process_tells_about_itself() {
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
fn a_label_from_the_server_is_bounded() {
    let telemetry = telemetry();
    let entry = telemetry.metrics.entry(&labels("one"));
    let facts = JobFacts { project_jobs_running: "9".repeat(10_000), ..facts() };
    let _job = telemetry.metrics.job(&entry, facts);
    assert!(text(&telemetry).contains(&format!("project_jobs_running=\"{}\"", "9".repeat(32))));
}

#[test]
fn what_another_room_counts_is_exposed_with_the_labels_of_its_entry() {
    struct Counted;
    impl Source for Counted {
        fn numbers(&self) -> Vec<(EntryLabels, Vec<Family>)> {
            let sample = |value, labels, buckets| Sample { labels, value, buckets };
            let state = vec![("state", "say \"on\"".to_owned())];
            let gauge = sample(2.0, state, Vec::new());
            let histogram = sample(7.5, Vec::new(), vec![(1.0, 1), (f64::INFINITY, 3)]);
            let family = |name, kind, sample| Family { name, help: "of a test", kind, samples: vec![sample] };
            let both = || {
                vec![
                    family("a_gauge", FamilyKind::Gauge, gauge.clone()),
                    family("z_seconds", FamilyKind::Histogram, histogram.clone()),
                ]
            };
            vec![(labels("one"), both()), (labels("two"), both())]
        }
    }
    let (telemetry, _entry, _job) = busy();
    let source: Arc<dyn Source> = Arc::new(Counted);
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
    assert!(!text(&telemetry).contains("a_gauge"), "it goes with who counts it");
}

/// For example, a fleet that has not deleted an instance yet has no deletions by reason.
#[test]
fn a_family_without_numbers_cuts_no_other_one_off() {
    struct Nothing;
    impl Source for Nothing {
        fn numbers(&self) -> Vec<(EntryLabels, Vec<Family>)> {
            let empty = Family { name: "a_total", help: "of a test", kind: FamilyKind::Counter, samples: Vec::new() };
            vec![(labels("one"), vec![empty])]
        }
    }
    let (telemetry, _entry, _job) = busy();
    let before = text(&telemetry).matches("# TYPE ").count();
    let source: Arc<dyn Source> = Arc::new(Nothing);
    telemetry.metrics.add_source(Arc::downgrade(&source));
    let exposed = text(&telemetry);
    assert_eq!(exposed.matches("# TYPE ").count(), before, "{exposed}");
    assert!(exposed.contains("\nprocess_open_fds "), "{exposed}");
}

/// The page documents each metric and no others.
#[test]
fn the_reference_page_lists_the_same_metrics() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/metrics.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (listed, _) = page.split_once("## Not fed").unwrap();
    let mut rows: Vec<_> = listed.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    let mut defined: Vec<_> = names::ALL.iter().chain(names::FLEET).map(|definition| definition.name).collect();
    rows.sort_unstable();
    defined.sort_unstable();
    assert_eq!(rows, defined);
}
